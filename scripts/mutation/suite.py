"""Runs the built tests with one mutant at a time, starting with the tests most likely to notice it."""

import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

MEMORY = 10 << 30
LARGEST_FILE = 4 << 30
# The crates whose integration tests run a crate's code, besides its own; the others follow, fastest first.
RELATED = {
    "kernels": ["model"], "files": ["loader", "cli"], "train": ["cli"], "loader": ["cli"], "view": ["cli"], "circuits": ["cli"],
    "parallel": ["train", "cli"],
}  # fmt: skip
SLOW = 5.0
# Slow tests, and the files that they can test.
NEEDED = {
    "hub": r"crates/(files|loader|cli)/",
    "hub::faults": r"hub|cache|progress|atomic|error|main\.rs",
    "numbers": r"crates/(view|cli)/",
    "page": r"crates/(view|cli)/",
}
# These compile and run one program in one place, so two at a time would disturb each other.
ALONE = "cuda"
DONE = re.compile(r"test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)")
LOCK = threading.Lock()
RUNNING = set()
STARTED = re.compile(r"test (\S+)(?: - should panic)? \.\.\. $")


@dataclass
class Slice:
    """The tests of one module of one binary."""

    crate: str
    binary: str
    folder: str
    integration: bool
    module: str
    tests: list = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self):
        return f"{self.crate} {'integration' if self.integration else 'unit'} {self.module}"


@dataclass
class Outcome:
    failed: str = ""  # the test, or what became of the process
    exact: str = ""  # the test that can be run again on its own
    seconds: float = 0.0


def slices(messages, skipped):
    """The tests of every binary, by module: `a::test` and `a::b::test` are two modules, deeper ones are not."""
    found = {}
    for message in messages:
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        if not message["profile"]["test"]:
            continue
        folder, binary = str(Path(message["manifest_path"]).parent), message["executable"]
        integration = message["target"]["kind"] == ["test"]
        listing = subprocess.run([binary, "--list", "--format", "terse"], cwd=folder, capture_output=True, text=True)
        for line in listing.stdout.splitlines():
            test = line.removesuffix(": test")
            if test == line or any(name in test for name in skipped):
                continue
            module = "::".join([part for part in test.split("::")[:-1] if part != "tests"][:2])
            new = Slice(Path(folder).name, binary, folder, integration, module)
            found.setdefault((binary, module), new).tests.append(test)
    return list(found.values())


def ordered(all_slices, crate, file):
    """The slices that run `file` of `crate`, starting with those most likely to notice a mutant.

    The quick ones first. Among them its own unit tests, the related integration tests, the rest; inside each, those
    that share words with the file's path, then the quickest.
    """
    words = set(re.split(r"\W+|_", file.split("/src/")[1])) - {"rs", "mod", "tests", "lib", "main", ""}

    def rank(one):
        if one.integration:
            tier = 1 if one.crate in [crate, *RELATED.get(crate, [])] else 3
        else:
            tier = 0 if one.crate == crate else 2
        return one.seconds > SLOW, tier, -len(words & set(re.split(r"\W+|_", one.module))), one.seconds

    def needed(one):
        patterns = [p for name, p in NEEDED.items() if f"{one.module}::".startswith(f"{name}::")]
        return not one.integration or all(re.search(pattern, file) for pattern in patterns)

    return sorted(filter(needed, all_slices), key=rank)


class Runner:
    """Runs slices; `place` is a folder for temporary files, emptied afterwards."""

    def __init__(self, place, threads):
        self.place, self.threads = place, threads

    def run(self, one, mutant, limit, tests=None):
        """Runs a slice, or some of its tests, until the first failure."""
        with LOCK if ALONE in one.module.split("::") else nullcontext():
            return self.run_now(one, mutant, limit, tests or one.tests)

    def run_now(self, one, mutant, limit, tests):
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        environment = {**os.environ, "GPT2_MUTANT": str(mutant), "TMPDIR": str(self.place), "RUST_BACKTRACE": "0"}
        command = [one.binary, "--exact", f"--test-threads={self.threads}", *tests]
        start = time.monotonic()
        process = subprocess.Popen(
            command, cwd=one.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limits,
        )  # fmt: skip
        RUNNING.add(process.pid)
        try:
            outcome = self.watch(process, start + limit)
        finally:
            RUNNING.discard(process.pid)
            kill(process.pid)
            process.wait()
            process.stdout.close()
            shutil.rmtree(self.place, ignore_errors=True)
        outcome.seconds = time.monotonic() - start
        return outcome

    def watch(self, process, deadline):
        outcome, text = Outcome(), ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(timeout=max(0.0, deadline - time.monotonic())):
                    running = STARTED.search(text)
                    outcome.failed = f"no end in time{f' in {running[1]}' if running else ''}"
                    return outcome
                data = os.read(process.stdout.fileno(), 1 << 16)
                text += data.decode(errors="replace")
                *lines, text = text.split("\n")
                for line in lines:
                    if done := DONE.search(line):
                        if done[2] == "FAILED":
                            outcome.failed = outcome.exact = done[1]
                            return outcome
                if not data:
                    break
        code = process.wait()
        if code != 0:
            outcome.failed = f"ended with status {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        return outcome

    def baseline(self, all_slices, limit):
        """Runs everything without a mutant; returns the failures by slice."""
        failures = []
        for one in all_slices:
            for _ in range(3):  # some tests fail now and then on a busy machine
                outcome = self.run(one, 0, limit)
                if not outcome.failed:
                    break
            one.seconds = outcome.seconds
            print(f"  {one.name:40} {len(one.tests):4} tests {one.seconds:7.1f} s  {outcome.failed or 'ok'}", flush=True)
            if outcome.failed:
                failures.append(outcome.failed)
        return failures

    def hunt(self, all_slices, mutant, site, spare):
        """(where, which test noticed): empty strings for a mutant that survives everything."""
        for one in ordered(all_slices, site.crate, site.file):
            limit, tests = spare + 5 * one.seconds, one.tests
            while tests:
                outcome = self.run(one, mutant, limit, tests)
                if not outcome.failed:
                    break
                # A flaky failure does not count: the test has to fail again, and to pass without the mutant.
                only = [outcome.exact]
                if not outcome.exact or (
                    self.run(one, mutant, limit, only).failed and not self.run(one, 0, limit, only).failed
                ):
                    return one.name, outcome.failed
                print(f"  mutant {mutant}: {outcome.exact} fails now and then", flush=True)
                tests = [test for test in tests if test != outcome.exact]
        return "", ""


def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_all(number, _frame):
    """Makes a signal that ends this script end its tests, too."""
    for group in list(RUNNING):
        kill(group)
    os._exit(128 + number)


def limits():
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
