#!/usr/bin/env python3
"""Fails where source files form an import cycle: where a file imports itself through others.

    scripts/check_circles.py [FOLDER...]     src folders of crates (default: those of the whole workspace)
    scripts/check_circles.py --rooms [CRATE...]    modules, imports and levels of crates, by folder name (default: all)
    scripts/check_circles.py --self-test

With `--rooms`, a module is a folder of a crate's `src`, or a file directly in `src`. An import between two modules goes back
up where each reaches the other. The levels are the steps of the longest chain of imports.

A file imports the file that defines what it names, in `use crate::..`, `use super::..` and `use child::..`, and in paths
such as `crate::a::b()`. The script follows re-exports to the definition. `mod x;` imports nothing, nor does `pub use
x::Y` in the root of a crate or in a file that defines nothing itself, unless the same file also uses the Y that it re-exports.
Code that is only compiled for tests does not count.
"""

import sys
import tempfile
from pathlib import Path

from circles.modules import Module, lex

WORKSPACE = Path(__file__).resolve().parent.parent


def imports(source):
    """The files that each file of a crate imports: {file: {file: names}}."""
    ties = {}
    for root in filter(Path.exists, [source / "lib.rs", source / "main.rs"]):
        crate = Module((), root, None)
        crate.parse(lex(root))
        for module in crate.all():
            for found in module.imports():
                if isinstance(found, tuple) and found[0] != module.file:
                    ties.setdefault(module.file, {}).setdefault(found[0], set()).add(found[1])
    return ties


def cycles(ties):
    """The largest sets of files in which each file reaches every other."""

    def reached(file):
        seen, todo = set(), [file]
        while todo:
            new = set(ties.get(todo.pop(), ())) - seen
            seen |= new
            todo += new
        return seen

    below = {file: reached(file) for file in ties}
    rings = {frozenset(b for b in below[a] if a in below.get(b, ())) for a in below if a in below[a]}
    return sorted(sorted(ring) for ring in rings)


def check(sources):
    found = 0
    for source in sources:
        ties = imports(source)
        for ring in cycles(ties):
            found += 1
            print(f"import cycle {found}, in {source}:")
            for a in ring:
                for b in (b for b in ring if b in ties[a]):
                    names = ", ".join(sorted(ties[a][b]))
                    print(f"  {a.relative_to(source)} -> {b.relative_to(source)}: {names}")
    if found:
        print("error: import cycles; move what both files need to a file below them", file=sys.stderr)
        return 1
    print(f"no import cycle among the files of {len(sources)} crates")
    return 0


def module(file, source):
    inside = file.relative_to(source)
    return inside.parent if len(inside.parts) > 1 else inside


def back_up(ring, below):
    """The imports within a ring of modules that go back up, about as few as there can be (Eades, Lin and Smyth 1993)."""
    left, order = set(ring), []
    while left:
        # The module next from the top: it takes most from those left, and they take least from it.
        top = max(sorted(left), key=lambda a: len(below[a] & left) - sum(a in below[b] for b in left))
        order.append(top)
        left.remove(top)
    return [(a, b) for i, a in enumerate(order) for b in order[:i] if b in below[a]]


def modules(crates):
    for crate in crates:
        source = WORKSPACE / "crates" / crate / "src"
        # The root of a crate only hands names on, and files of tests do not count.
        files = {f for f in source.rglob("*.rs") if f.name != "lib.rs" and not f.stem.endswith("tests")}
        ties = {a: {b: names for b, names in taken.items() if b in files} for a, taken in imports(source).items() if a in files}
        below = {module(file, source): set() for file in files}
        for a, taken in ties.items():
            below[module(a, source)] |= {module(b, source) for b in taken} - {module(a, source)}
        back = [pair for ring in cycles(below) for pair in back_up(ring, below)]
        down = {a: {b for b in taken if (a, b) not in back} for a, taken in below.items()}
        heights = {}

        def height(a):
            if a not in heights:
                heights[a] = 1 + max(map(height, down[a]), default=0)
            return heights[a]

        levels = max(map(height, below), default=0)
        print(f"{crate}: {len(below)} modules, {levels} levels, {sum(map(len, below.values()))} imports, {len(back)} back up")
        for a, b in back:
            names = {n for f, taken in ties.items() for g, names in taken.items() for n in names
                     if (module(f, source), module(g, source)) == (a, b)}  # fmt: skip
            print(f"  back up: {a} -> {b}: {', '.join(sorted(names))}")
        for folder in [source, *(p for p in source.rglob("*") if p.is_dir())]:
            if (count := len(list(folder.iterdir()))) > 15:
                print(f"  {folder.relative_to(WORKSPACE)} has {count} entries")


# For each made-up crate: what it tests, whether it has a cycle, and its files.
CASES = [
    ("a line", False, {"lib.rs": "mod a; mod b;", "a.rs": "use crate::b::B;", "b.rs": "pub struct B;"}),
    ("two files", True, {"lib.rs": "mod a; mod b;", "a.rs": "use crate::b::B; pub struct A;", "b.rs": "pub struct B(crate::a::A);"}),
    ("tests, comments and strings", False, {
        "lib.rs": "mod a; mod b;", "a.rs": "use crate::b::B; pub struct A;",
        "b.rs": "// crate::a::A\npub struct B; const S: &str = \"crate::a::A\"; #[cfg(test)] mod t { use crate::a::A; }"}),
    ("a face", False, {"lib.rs": "mod a;", "a/mod.rs": "mod b; mod c; pub use b::B;", "a/b.rs": "use super::c::C; pub struct B;", "a/c.rs": "pub struct C;"}),
    ("a parent that uses its child", True, {"lib.rs": "mod a;", "a/mod.rs": "mod b; pub use b::B; pub struct A(B);", "a/b.rs": "use super::A; pub struct B;"}),
    ("through a re-export", True, {"lib.rs": "mod a; mod b; pub use a::A;", "a.rs": "use crate::b::run; pub struct A;", "b.rs": "use crate::A; pub fn run() {}"}),
    ("through a module's name", True, {"lib.rs": "mod a; mod b;", "a.rs": "use crate::b; pub fn f() { b::g() }", "b.rs": "use super::a; pub fn g() { a::f() }"}),
]  # fmt: skip


def self_test():
    for what, expected, files in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            found = cycles(imports(Path(folder)))
        if bool(found) != expected:
            print(f"error: {what}: found {found}, expected {'a' if expected else 'no'} cycle", file=sys.stderr)
            return 1
    print(f"{len(CASES)} made-up crates: right")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if sys.argv[1:2] == ["--rooms"]:
        sys.exit(modules(sys.argv[2:] or sorted(m.parent.name for m in WORKSPACE.glob("crates/*/Cargo.toml"))))
    everywhere = sorted(manifest.parent / "src" for folder in ("crates/*", "models") for manifest in WORKSPACE.glob(f"{folder}/Cargo.toml"))
    sys.exit(check([Path(folder) for folder in sys.argv[1:]] or everywhere))
