"""A copy of the repository with every mutant compiled in behind one switch."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

ERRORS_SHOWN = 5
# Goes to the end of each crate's root. The load is one instruction, and is inlined into kernels as well.
SWITCH = """
#[allow(dead_code)]
#[inline(always)]
pub(crate) fn mutant_is(number: u32) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static MUTANT: AtomicU32 = AtomicU32::new(u32::MAX);
    #[cold]
    fn read() -> u32 {
        let chosen = std::env::var("GPT2_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        MUTANT.store(chosen, Ordering::Relaxed);
        chosen
    }
    let chosen = MUTANT.load(Ordering::Relaxed);
    (if chosen == u32::MAX { read() } else { chosen }) == number
}
"""


class BuildFailed(Exception):
    pass


def copy(repository, tree):
    """The files that git tracks or would track, in their present state."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, listing.split("\0")):
        source, target = repository / name, tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def refresh_tests(repository, tree):
    """Copies the present integration tests; unit tests inside sources stay as they were."""
    shutil.rmtree(tree / "tests")
    shutil.copytree(repository / "tests", tree / "tests")


def ours(repository):
    """What begins the names of this workspace's files in a build folder: libraries, the command, and the tests, named after
    their folders."""
    folders = "|".join(sorted(path.name for path in (Path(repository) / "crates").iterdir()))
    return re.compile(rf"(lib)?(gpt2|candle[-_]fused)|({folders})-[0-9a-f]{{16}}")


def seed_target(repository, theirs, target):
    """Copies dependencies that another target folder has already built, but nothing of this workspace."""
    named = ours(repository)
    for folder in ["release/.fingerprint", "release/build", "release/deps"]:
        if (Path(theirs) / folder).is_dir() and not (target / folder).exists():
            own = lambda _, names: filter(named.match, names)  # noqa: E731
            shutil.copytree(Path(theirs) / folder, target / folder, symlinks=True, ignore=own)


class Tree:
    def __init__(self, root, repository, target):
        self.root, self.repository, self.target = root, repository, target
        # file -> [(start, end, number)] in the mutated text
        self.ranges = {}

    def write(self, mutants):
        """Writes the sources with `mutants` (number -> site) in them; does not touch unchanged files."""
        by_file = {}
        for number, site in mutants.items():
            by_file.setdefault(site.file, []).append((site, number))
        for file in self.ranges.keys() | by_file:
            raw, out, at, ranges = (self.repository / file).read_bytes(), b"", 0, []
            for site, number in sorted(by_file.get(file, []), key=lambda pair: pair[0].start):
                out += raw[at : site.start]
                new = site.text(number).encode()
                ranges.append((len(out), len(out) + len(new), number))
                out, at = out + new, site.end
            self.ranges[file] = ranges
            self.put(file, out + raw[at:])
        for crate in {site.crate for site in mutants.values()}:
            for name in ["lib.rs", "main.rs"]:
                file = f"crates/{crate}/src/{name}"
                if (self.root / file).exists():
                    self.put(file, (self.root / file).read_bytes())

    def put(self, file, data):
        """Writes a file if it is another one then; a crate's root gets the switch."""
        path = self.root / file
        whole_root = path.name in ("lib.rs", "main.rs") and path.parent.name == "src"
        if whole_root and b"fn mutant_is" not in data:
            data += SWITCH.encode()
        if path.read_bytes() != data:
            path.write_bytes(data)

    def cargo(self, *args):
        """The numbers of the mutants that do not compile, from cargo's messages."""
        environment = {**os.environ, "CARGO_TARGET_DIR": str(self.target)}
        command = ["cargo", *args, "--release", "--workspace", "--message-format=json"]
        command += [] if args[0] == "test" else ["--keep-going"]
        run = subprocess.run(command, cwd=self.root, env=environment, stdout=subprocess.PIPE, text=True)
        messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        if run.returncode == 0:
            return messages, set()
        errors = [m["message"] for m in messages if m["reason"] == "compiler-message"]
        errors = [e for e in errors if e["level"].startswith("error")]
        broken = set().union(*[self.of_error(error) for error in errors]) if errors else set()
        if not broken:
            shown = "\n".join(e["rendered"] for e in errors[:ERRORS_SHOWN])
            raise BuildFailed(f"cargo {args[0]} failed, and not at a mutant:\n{shown}")
        return messages, broken

    def of_error(self, error):
        """The mutants that an error points at; if it points at none, all in its file."""
        spans, files = list(error["spans"]), set()
        for child in error["children"]:
            spans += child["spans"]
        found = set()
        while spans:
            span = spans.pop()
            if span.get("expansion"):
                spans.append(span["expansion"]["span"])
            files.add(span["file_name"])
            for start, end, number in self.ranges.get(span["file_name"], []):
                if span["byte_start"] < end and start < span["byte_end"]:
                    found.add(number)
        return found or {number for file in files for *_, number in self.ranges.get(file, [])}
