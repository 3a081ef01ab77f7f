#!/usr/bin/env python3
"""Fails if a page names a source file that does not exist.

A path in backticks must end a path of the repository: `crates/model/src/attention.rs`, or short, `attention/qkv.rs`.
"""
import re
import subprocess
import sys

PAGES = ["docs/*.md", "*.md", "crates/*/README.md"]
NAME = re.compile(r"`([\w./{},-]+\.(?:rs|py|sh|cu|md|json|toml))`")


def expanded(name):
    """The names that braces stand for: `a/{b,c}.rs` is two."""
    braces = re.search(r"\{([^}]*)\}", name)
    if not braces:
        return [name]
    return [name[: braces.start()] + part + name[braces.end() :] for part in braces[1].split(",")]


def main():
    listed = lambda *patterns: subprocess.run(
        ["git", "ls-files", *patterns], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    files = ["/" + path for path in listed()]
    missing = []
    for page in listed(*PAGES):
        with open(page, encoding="utf-8") as text:
            for number, line in enumerate(text, 1):
                for name in (part for found in NAME.findall(line) for part in expanded(found)):
                    if "src/" in name or name.endswith(".rs"):
                        if not any(path.endswith("/" + name.lstrip("./")) for path in files):
                            missing.append(f"{page}:{number}: {name}")
    print("\n".join(missing) or "every source file that a page names exists")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
