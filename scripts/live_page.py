#!/usr/bin/env python3
"""Writes docs/live.html, the live page that runs from a clone without any build.

    cargo build --release && scripts/live_page.py [--check] [GPT2]

It is the page that `gpt2 live` writes, but its module and its model are scripts beside it, so that the repository has each once:
a page that is opened from disk may load scripts, and nothing else. --check writes nothing, and fails if docs/live.html is not that page.
GPT2 is the command, by default target/release/gpt2.
"""

import re
import sys
import tempfile
from pathlib import Path
from subprocess import run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/live.html"
MODEL = ROOT / "docs/live/model.js"
MODULE = ROOT / "crates/page-module/module/gpt2_web.wasm.js"


def script(kind: str, content: str) -> str:
    """A script that has what other pages have in a block of this kind."""
    return f'(globalThis.gpt2Live ??= {{}})["{kind}"] = "{content}";\n'


def parts(whole: str) -> dict[Path, str]:
    """The page without what is beside it, and the model."""
    blocks = dict(re.findall(r'<script type="text/plain" class="(module|file-\d+)">([^<]*)', whole))
    module = blocks.pop("module")
    if script("module", module) != MODULE.read_text():
        sys.exit(f"{MODULE}: not the module of the command; build it first")
    page = whole
    for kind, content in [("module", module), *blocks.items()]:
        page = page.replace(f'<script type="text/plain" class="{kind}">{content}</script>', "")
    beside = "".join(f'<script src="{path}"></script>' for path in ["../crates/page-module/module/gpt2_web.wasm.js", "live/model.js"])
    own = '<script type="module">'
    if page.count(own) != 1 or page.count("script-src ") != 1:
        sys.exit("the page has changed, and this program does not know it")
    page = page.replace(own, beside + own).replace("script-src ", "script-src 'self' file: ")
    return {PAGE: page, MODEL: "".join(script(kind, content) for kind, content in blocks.items())}


def main() -> None:
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return
    is_check = "--check" in arguments
    command = next((argument for argument in arguments if argument != "--check"), str(ROOT / "target/release/gpt2"))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "live.html"
        run([command, "live", "--out", str(whole), "-q"], check=True)
        found = parts(whole.read_text())
    for path, content in found.items():
        name = path.relative_to(ROOT)
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            print(f"{name}: {len(content)} bytes")
        elif not path.exists() or path.read_text() != content:
            sys.exit(f"{name} is not the page of {command}: run scripts/live_page.py, and commit what it writes")
        else:
            print(f"{name} is the page of {command}")


if __name__ == "__main__":
    main()
