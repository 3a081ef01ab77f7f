#!/usr/bin/env python3
"""Runs every tool of scripts/ in its shortest form, and fails for one that has none.

    cargo build --release && scripts/check_tools.py [WORD...]     all, or those whose names contain a word

A tool is a file that one starts: it begins with `#!`, or has `__main__`. It needs a row in TOOLS. Every Python file must be a
tool, or belong to one, and take from the others only what they have. For --help, packages that are not installed get stand-ins.
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

from tools.names import Scripts

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
    "archive.py": HELP,
    "arm.sh": HELP,
    "bench_attention.py": HELP,
    "bench_circuits.py": Short("--dry-run --rounds 1 --tokens 8"),
    "bench_discovery.py": Short("--dry-run --pairs 2 --rounds 1 --tokens 8"),
    "bench_models.py": HELP,
    "bench_python.py": HELP,
    "bench_lora.py": Short("--dry-run --rounds 1 --batch 1 --tokens 8"),
    "bench_vs_engines.py": Short("--plan"),
    "bench_vs_pytorch.py": HELP,
    "check-gpu.sh": HELP,
    "check.sh": WHOLE,
    "check_circles.py": Short("--self-test"),
    "check_gpu.py": Short("--self-test"),
    "check_memory.sh": WHOLE,
    "check_packages.sh": WHOLE,
    "check_paths.py": WHOLE,
    "check_tools.py": WHOLE,
    "check_visualizers.py": HELP,
    "circuit_reference_bridge.py": HELP,
    "circuit_reference_checks.py": HELP,
    "circuit_reference_discovery.py": HELP,
    "circuit_reference_lens.py": HELP,
    "circuit_reference_weights.py": HELP,
    "feature_reference.py": HELP,
    "compare_with_peft.py": HELP,
    "compare_with_transformers.py": HELP,
    "cuda/bugs.py": Short("--list"),
    "cuda/build.sh": HELP,
    "cuda/check.sh": WHOLE,
    "cuda/kernels.py": Short("--self-test"),
    "cuda/link-stubs.sh": Short("{out}"),
    "cuda/nvcc-float": Short("--version", variables=(("REAL_NVCC", "scripts/cuda/nvcc-typecheck"),)),
    "cuda/nvcc-typecheck": Short("--version"),
    "cuda/toolkit.sh": HELP,
    "fuzz.sh": Short("--list"),
    "make_attention_reference.py": HELP,
    "make_circuit_reference.py": HELP,
    "make_gguf_reference.py": HELP,
    "make_pictures.py": Short("--out {out}", needs=("chromium",), install="apt-get install chromium"),
    "make_reference.py": HELP,
    "make_seed_constants.py": HELP,
    "mutants.py": Short("--self-test", needs=("tree_sitter", "tree_sitter_rust"), install=INSTALL),
    "parallel_model.py": Short(""),
    "python.sh": HELP,
    "release.sh": HELP,
    "tools/stand_ins.py": Short("scripts/make_reference.py --help"),
    "transformerlens_demo.py": HELP,
    "web.sh": WHOLE,
    "windows.sh": HELP,
    "wine.sh": HELP,
}


def started(folder):
    """The files of a folder that one starts, by their paths in it; not what git ignores."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "."]
    names = subprocess.run(listing, cwd=folder, check=True, capture_output=True, text=True).stdout.split("\0")
    found = []
    for name in sorted(filter(None, set(names))):
        text = (folder / name).read_bytes() if (folder / name).is_file() else b""
        if text.startswith(b"#!") or (name.endswith(".py") and b'if __name__ == "__main__"' in text):
            found.append(name)
    return found


def problems(folder, rows, gate):
    """What is wrong before anything runs: a tool without a row, a row without a tool, a name that is not there."""
    tools, scripts = started(folder), Scripts(folder)
    yield from (f"scripts/{name} has no shortest form; add its row to TOOLS in check_tools.py" for name in tools if name not in rows)
    yield from (f"scripts/{name} is in TOOLS, and is no tool" for name in rows if name not in tools)
    whole = [name for name, short in rows.items() if short is WHOLE and name != "check.sh"]
    yield from (f"scripts/{name} is to be run whole, and check.sh does not" for name in whole if f"step scripts/{name}" not in gate)
    yield from scripts.missing()
    unused = scripts.unused([folder / name for name in tools])
    yield from (f"{path} is no tool, and no tool imports it" for path in unused)


def test_problems():
    """Plants each problem in a small folder."""
    row = {"tool.py": HELP}
    tool = 'import other\n\nif __name__ == "__main__":\n    print(other.told)\n'
    for expected, changed, rows in [
        ("", {}, row),
        ("scripts/new.py has no shortest form", {"new.py": tool}, row),
        ("scripts/new has no shortest form", {"new": "#!/bin/sh\n"}, row),
        ("scripts/gone.py is in TOOLS", {}, row | {"gone.py": HELP}),
        ("scripts/tool.py is to be run whole", {}, {"tool.py": WHOLE}),
        ("other.py has no told", {"other.py": "untold = 1\n"}, row),
        ("other.py has no told", {"tool.py": tool.replace("import other", "from other import told"), "other.py": "x = 1\n"}, row),
        ("more.py is no tool, and no tool imports it", {"more.py": "more = 1\n"}, row),
    ]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
            for name, text in ({"tool.py": tool, "other.py": "told = 1\n"} | changed).items():
                (folder / name).write_text(text)
            found = "\n".join(problems(folder, rows, gate=""))
        if expected not in found or bool(expected) != bool(found):
            raise SystemExit(f"error: check_tools.py: of {changed} found {found!r}, expected {expected!r}")


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
    short = TOOLS[name]
    for tool in short.needs:
        if not (find_spec(tool) or shutil.which(tool)):
            return missing(f"scripts/{name}", tool, short.install)
    command = [sys.executable, SCRIPTS / name] if name.endswith(".py") else [SCRIPTS / name]
    if name.endswith(".py") and short is HELP:
        command.insert(1, SCRIPTS / "tools/stand_ins.py")
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
    test_problems()
    words = sys.argv[1:]
    found = [*problems(SCRIPTS, TOOLS, (SCRIPTS / "check.sh").read_text()), lint()]
    names = [name for name, short in TOOLS.items() if short and (not words or any(word in name for word in words))]
    with ThreadPoolExecutor(2) as pool:
        found += pool.map(run, names)
    if found := list(filter(None, found)):
        sys.exit("error: " + "\nerror: ".join(found))
    print("every tool of scripts/ runs")


if __name__ == "__main__":
    main()
