"""Tests of the mutants' own scripts: what they change, and that each change is compiled in and runs when it is chosen."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from . import sites, suite, tree

PROGRAM = """//! A program with a place for each kind of change.
const TABLE: [u8; 2] = [1, 2];

fn numbers(a: u64, b: u64) -> u64 {
    let mut sum = a + 0x0fu64;
    sum += b * 3_u64;
    if sum > 20 && b != 0 {
        sum -= 1;
    }
    push(&mut sum);
    sum.min(40)
}

fn push(sum: &mut u64) {
    *sum = *sum + 2;
}

fn main() {
    let all: Vec<u64> = (0..6).map(|b| numbers(TABLE[0].into(), b * 7)).collect();
    println!("{all:?} {}", all.iter().any(|n| *n == 40));
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_here_is_changed() {
        assert_eq!(1 + 1, 2);
    }
}
"""
KINDS = set(sites.WEIGHTS)


def same(what, found, expected):
    if found != expected:
        raise SystemExit(f"error: {what}: found {found!r}, expected {expected!r}")


def run(repository):
    literals()
    names(repository)
    everything_is_read(repository)
    with tempfile.TemporaryDirectory(prefix="gpt2-mutants-") as folder:
        compiled_in(Path(folder))
    print("mutants: what is changed, where, and that it runs when chosen: all as expected")


def literals():
    for text, expected in [
        ("0", "1"), ("41", "42"), ("7usize", "8usize"), ("1_000", "1001"), ("3_u64", "4u64"), ("2f32", "3f32"), ("0x1f32", "7987"),
        ("0xffu8", "256u8"), ("0xcbf29ce484222325u64", "14695981039346656038u64"), ("0x9e37_79b9", "2654435770"),
        ("0b101", "6"), ("0b1_0u8", "3u8"), ("0o17", "16"), ("1i128", "2i128"),
    ]:  # fmt: skip
        same(f"the number after {text}", sites.next_integer(text), expected)


def names(repository):
    """Every crate's own files in a build folder are known; those of dependencies are not."""
    ours = tree.ours(repository)
    for crate in (repository / "crates").iterdir():
        same(f"the test of {crate.name}", bool(ours.match(f"{crate.name}-0123456789abcdef")), True)
    for name, expected in [
        ("libgpt2_model-0123456789abcdef.rlib", True), ("gpt2-cli-0123456789abcdef", True), ("libcandle_fused-01.rmeta", True),
        ("libcandle_core-0123456789abcdef.rlib", False), ("libclap-0123456789abcdef.rlib", False),
    ]:  # fmt: skip
        same(name, bool(ours.match(name)), expected)
    related = {name for crate, others in suite.RELATED.items() for name in (crate, *others)}
    same("crates of RELATED that there are not", {n for n in related if not (repository / "crates" / n).is_dir()}, set())


def everything_is_read(repository):
    """Every file of the repository gives its places, none of them outside the text."""
    for crate in sites.crates(repository):
        found = [site for file in sites.sources(repository, crate) for site in sites.of_file(repository, crate, file)]
        texts = {site.file: (repository / site.file).read_bytes() for site in found}
        for site in found:
            same(f"{site.file}:{site.line}", texts[site.file][site.start : site.end].decode(), site.original)
        if not found or sites.lines_of_code(repository, crate) == 0:
            raise SystemExit(f"error: no place to change in crates/{crate}")


def compiled_in(folder):
    """Puts every change of a program into it, one at a time where they overlap, and runs each."""
    copy, original = folder / "tree", folder / "original"
    for root in (copy, original):
        (root / "crates/one/src").mkdir(parents=True)
        (root / "crates/one/src/main.rs").write_text(PROGRAM)
    found = sites.of_file(original, "one", "crates/one/src/main.rs")
    same("the kinds of change", {site.operator for site in found}, KINDS)
    first, last = PROGRAM.index("fn numbers"), PROGRAM.index("#[cfg(test)]")
    same("changes outside of the code", [s.line for s in found if not first <= s.start < last], [])
    pool = sites.Pool(original, "one", 7)
    mutants = {}
    while (site := pool.draw(mutants.values())) is not None:
        mutants[len(mutants) + 1] = site
    written = tree.Tree(copy, original, folder / "target")
    written.write(mutants)
    text = (copy / "crates/one/src/main.rs").read_bytes()
    for start, end, number in written.ranges["crates/one/src/main.rs"]:
        same(f"mutant {number}", text[start:end].decode(), mutants[number].text(number))
    program = folder / "program"
    build = ["rustc", "--edition", "2024", "-A", "warnings", "-O", "-o", program, copy / "crates/one/src/main.rs"]
    done = subprocess.run(build, capture_output=True, text=True)
    same("what rustc says", (done.returncode, done.stderr[:400]), (0, ""))
    said = {}
    for number in (0, *mutants):
        environment = {**os.environ, "GPT2_MUTANT": str(number)}
        # An index out of range and a loop without end are changes, too.
        try:
            done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=10)
            said[number] = (done.returncode, done.stdout)
        except subprocess.TimeoutExpired:
            said[number] = (None, "")
    plain = [row for row in json.loads(said[0][1].split("]")[0] + "]")]
    same("the program without a mutant", plain[0], 18)
    unseen = [f"{site.original} -> {site.mutated}" for number, site in mutants.items() if said[number] == said[0]]
    if len(unseen) > len(mutants) // 3:
        raise SystemExit(f"error: {len(unseen)} of {len(mutants)} mutants change nothing: {unseen}")
