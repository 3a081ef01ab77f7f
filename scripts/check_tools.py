#!/usr/bin/env python3
"""Runs every tool of scripts/ in its shortest form, and pyflakes on all of it.

    cargo build --release && scripts/check_tools.py [WORD...]     all, or those whose names contain a word

A tool is a file that one starts: it begins with `#!`, or has `__main__`. Its shortest form is --help, or its row in TOOLS. For
--help, packages that are not installed get stand-ins.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
PACKAGES = ROOT / "target/python"
INSTALL = f"{sys.executable} -m pip install --target target/python tree-sitter tree-sitter-rust pyflakes"
LIMIT = 300  # seconds for each


@dataclass(frozen=True)
class Short:
    """The shortest form of a tool: its arguments, where {out} is an empty folder; variables; and what it cannot do without."""

    arguments: str
    variables: tuple = ()
    needs: tuple = ()
    install: str = ""


HELP = Short("--help")
# The gate runs these whole.
WHOLE = None
TOOLS = {
    "bench_circuits.py": Short("--dry-run --rounds 1 --tokens 8"),
    "bench_discovery.py": Short("--dry-run --pairs 2 --rounds 1 --tokens 8"),
    "bench_lora.py": Short("--dry-run --rounds 1 --batch 1 --tokens 8"),
    "bench_vs_engines.py": Short("--plan"),
    "check.sh": WHOLE,
    "check_circles.py": Short("--self-test"),
    "check_gpu.py": Short("--self-test"),
    "check_memory.sh": WHOLE,
    "check_metal.py": Short("--self-test"),
    "check_packages.sh": WHOLE,
    "check_paths.py": WHOLE,
    "check_tools.py": WHOLE,
    "cuda/beside_cpu.py": Short("--self-test"),
    "cuda/bugs.py": Short("--list"),
    "cuda/check.sh": WHOLE,
    "cuda/driver/nvcc": Short("--version"),
    "cuda/kernels.py": Short("--self-test"),
    "cuda/on_device.py": Short("--self-test"),
    "cuda/nvcc-float": Short("--version", variables=(("REAL_NVCC", "scripts/cuda/nvcc-typecheck"),)),
    "cuda/nvcc-typecheck": Short("--version"),
    "fuzz.sh": Short("--list"),
    "hostile.py": Short("--self-test"),
    "live_page.py": Short("--check"),
    "make_pictures.py": Short("--out {out}", needs=("chromium", "chromedriver"), install="apt-get install chromium chromium-driver"),
    "mutants.py": Short("--self-test", needs=("tree_sitter", "tree_sitter_rust"), install=INSTALL),
    "parallel_model.py": Short(""),
    "stand_ins.py": Short("scripts/make_reference.py --help"),
    "web.sh": WHOLE,
}


def tools():
    """The files that one starts, by their paths in scripts/; not what git ignores."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "."]
    names = subprocess.run(listing, cwd=SCRIPTS, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in sorted(filter(None, set(names))):
        text = (SCRIPTS / name).read_bytes() if (SCRIPTS / name).is_file() else b""
        if text.startswith(b"#!") or (name.endswith(".py") and b'if __name__ == "__main__"' in text):
            yield name


def problems(names):
    """What is wrong before anything runs: a row without a tool, and a tool that the gate does not run whole."""
    gate = (SCRIPTS / "check.sh").read_text()
    yield from (f"scripts/{name} is in TOOLS, and is no tool" for name in TOOLS if name not in names)
    whole = [name for name in names if TOOLS.get(name, HELP) is WHOLE and name != "check.sh"]
    yield from (f"scripts/{name} is to be run whole, and check.sh does not" for name in whole if f" scripts/{name}" not in gate)
    yield lint()


def lint():
    """Names that are nowhere defined, and imports that nothing uses."""
    if not find_spec("pyflakes"):
        return missing("the Python files' names", "pyflakes", INSTALL)
    done = subprocess.run([sys.executable, "-m", "pyflakes", SCRIPTS], capture_output=True, text=True, env=environment())
    return done.stdout + done.stderr


def missing(what, tool, install):
    """An error under CI, elsewhere a line that says what is skipped."""
    if os.environ.get("CI"):
        return f"{what}: no {tool}; run: {install}"
    print(f"SKIPPED {what}: no {tool}; run: {install}", file=sys.stderr)
    return ""


def environment():
    paths = [str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def run(name):
    """Runs a tool; returns what is wrong, or nothing."""
    short = TOOLS.get(name, HELP)
    for tool in short.needs:
        if not (find_spec(tool) or shutil.which(tool)):
            return missing(f"scripts/{name}", tool, short.install)
    command = [sys.executable, SCRIPTS / name] if name.endswith(".py") else [SCRIPTS / name]
    if name.endswith(".py") and short is HELP:
        command.insert(1, SCRIPTS / "stand_ins.py")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpt2-tools-") as out:
        command += [word.replace("{out}", out) for word in short.arguments.split()]
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment() | dict(short.variables), **pipes)
        except subprocess.TimeoutExpired:
            return f"scripts/{name} {short.arguments}: no end after {LIMIT} s"
    if done.returncode != 0 or not done.stdout.strip():
        return f"scripts/{name} {short.arguments}: ended with status {done.returncode}:\n{done.stdout[-2000:]}"
    print(f"  {time.monotonic() - begun:5.1f} s  scripts/{name} {short.arguments}", flush=True)
    return ""


def main():
    sys.path.append(str(PACKAGES))
    names, words = list(tools()), sys.argv[1:]
    found = list(problems(names))
    asked = [name for name in names if not words or any(word in name for word in words)]
    with ThreadPoolExecutor(2) as pool:
        found += pool.map(run, [name for name in asked if TOOLS.get(name, HELP) is not WHOLE])
    if found := list(filter(None, found)):
        sys.exit("error: " + "\nerror: ".join(found))
    print("every tool of scripts/ runs")


if __name__ == "__main__":
    main()
