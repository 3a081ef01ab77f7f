#!/usr/bin/env python3
"""How many small faults do the tests notice? Draws a random sample of mutants and runs the tests against each.

    scripts/mutants.py --scratch /tmp/gpt2-mutants --dependencies-from target
    scripts/mutants.py --plan --count 120 --seed 7      what would be changed
    scripts/mutants.py --self-test

A mutant is one change to one expression or statement: a comparison, an operator, a number, an inverted condition, an
omitted call. The script draws a seeded sample, from each crate in proportion to its lines, and compiles all of it into
one copy of the repository, behind a switch: the variable GPT2_MUTANT selects the active mutant, so that one build serves
all. Other mutants replace those that do not compile.

The script then runs each mutant with the unit tests of its crate, the integration tests closest to it, and the rest. The
tests notice the mutant if a test fails (twice, and passes without the mutant), the process dies, or the time is up. The
others survive: each is either equivalent to the original or shows that a test is missing.

cargo-mutants does the same, but builds for each mutant anew: here, a crate and every test program that links it.

The scratch folder holds everything that this script writes:
  plan.json       the sample
  mutants.jsonl   a line for each finished mutant; an interrupted run continues after them
  tree, target    the copy and its build
The table at the end has one line per crate, followed by the survivors. `--again` runs the survivors once more, with the
present integration tests.

Needs Linux, Python 3.11 and: pip install tree-sitter tree-sitter-rust
"""

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from mutation import selftest, sites, suite, tree

REPOSITORY = Path(__file__).resolve().parent.parent
ROUNDS = 12


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="seed of the sample (default 1)")
    add("--count", type=int, default=160, help="number of mutants (default 160)")
    crates = sites.crates(REPOSITORY)
    add("--crates", default=",".join(crates), help="folders of crates/, separated by commas (default: all)")
    add("--scratch", type=Path, default=Path("/tmp/gpt2-mutants"), help="a folder outside the repository")
    add("--dependencies-from", type=Path, help="copy built dependencies from this target folder, which saves minutes")
    add("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    add("--skip", action="append", default=[], metavar="TEST", help="a test that fails here anyway (repeatable)")
    add("--without", action="append", default=[], metavar="CRATE", help="leave out the integration tests of a crate, such as"
        " cli, which take minutes (repeatable); --again then runs the survivors with all tests")
    add("--limit", type=float, default=60.0, help="seconds on top of five times what a test takes (default 60)")
    add("--only", type=lambda s: [int(n) for n in s.split(",")], help="numbers of mutants, separated by commas")
    add("--again", action="store_true", help="run the survivors again, with the present integration tests")
    add("--plan", action="store_true", help="print the sample and stop")
    add("--self-test", action="store_true", help="test this script on a small program, which takes seconds")
    given = parser.parse_args()
    given.scratch = given.scratch.resolve()
    if given.scratch.is_relative_to(REPOSITORY):
        parser.error("--scratch lies inside the repository; name a folder outside")
    return given


def share(total, weights):
    """`total` in proportion to `weights`, by largest remainders."""
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()}
    parts = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda n: parts[n] - exact[n])[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


class Sample:
    """The mutants by number, and the pools that replacements come from."""

    def __init__(self, root, given):
        crates = given.crates.split(",")
        self.counts = share(given.count, {crate: sites.lines_of_code(root, crate) for crate in crates})
        self.pools = {crate: sites.Pool(root, crate, given.seed) for crate in crates}
        self.mutants, self.next = {}, 1
        self.fill()

    def fill(self):
        for crate, count in self.counts.items():
            while sum(1 for m in self.mutants.values() if m.crate == crate) < count:
                site = self.pools[crate].draw(self.mutants.values())
                if site is None:
                    raise SystemExit(f"error: crates/{crate} has no {count} places to change; lower --count")
                self.mutants[self.next] = site
                self.next += 1


def build(given, target):
    """The plan in the scratch folder; makes and builds it if there is none yet: (mutants, slices)."""
    plan, root = given.scratch / "plan.json", given.scratch / "tree"
    wanted = {"seed": given.seed, "count": given.count, "crates": given.crates}
    if plan.exists():
        saved = json.loads(plan.read_text())
        if saved["wanted"] != wanted:
            raise SystemExit(f"error: {given.scratch} holds another sample, {saved['wanted']}; name another --scratch")
        mutants = {int(n): sites.Site(**site) for n, site in saved["mutants"].items()}
        if given.again:
            tree.refresh_tests(REPOSITORY, root)
        copy = tree.Tree(root, given.scratch / "original", target)
    else:
        shutil.rmtree(root, ignore_errors=True)
        original = given.scratch / "original"
        shutil.rmtree(original, ignore_errors=True)
        for folder in (root, original):
            tree.copy(REPOSITORY, folder)
        if given.dependencies_from:
            tree.seed_target(REPOSITORY, given.dependencies_from, target)
        copy, sample = tree.Tree(root, original, target), Sample(original, given)
        for number in range(ROUNDS):
            copy.write(sample.mutants)
            _, broken = copy.cargo("check")
            if not broken:
                _, broken = copy.cargo("test", "--no-run")
            print(f"round {number + 1}: {len(broken)} of {len(sample.mutants)} mutants do not compile", flush=True)
            if not broken:
                break
            for one in broken:
                del sample.mutants[one]
            sample.fill()
        else:
            raise SystemExit(f"error: after {ROUNDS} rounds there are still mutants that do not compile")
        mutants = sample.mutants
        saved = {"wanted": wanted, "mutants": {n: asdict(site) for n, site in mutants.items()}}
        plan.write_text(json.dumps(saved, indent=1))
    messages, _ = copy.cargo("test", "--no-run")
    return mutants, suite.slices(messages, given.skip)


def runner(given, place):
    return suite.Runner(given.scratch / place, max(1, (os.cpu_count() or 1) // given.jobs))


def baseline(given, slices):
    """How long each slice takes without a mutant, from an earlier complete run if there is one; all must pass."""
    path = given.scratch / "seconds.json"
    known = json.loads(path.read_text()) if path.exists() and not given.again else {}
    if any(one.name not in known for one in slices):
        print("without a mutant:", flush=True)
        failures = runner(given, "tmp").baseline(slices, 3600)
        if failures:
            failed = ", ".join(failures)
            raise SystemExit(f"error: tests fail without a mutant: {failed}; mend them, or name each with --skip")
        path.write_text(json.dumps({one.name: one.seconds for one in slices}, indent=1))
    else:
        for one in slices:
            one.seconds = known[one.name]


def results(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["mutant"]: record for record in map(json.loads, lines)}


def hunt_all(given, mutants, slices, done, log):
    """Runs the remaining mutants, some at a time, and writes each result as it arrives."""
    todo = [n for n in sorted(mutants) if n not in done and (not given.only or n in given.only)]
    lock, idle = threading.Lock(), list(range(given.jobs))
    started = time.monotonic()

    def one(number):
        with lock:
            place = idle.pop()
        site, begun = mutants[number], time.monotonic()
        where, by = runner(given, f"tmp{place}").hunt(slices, number, site, given.limit)
        record = {
            "mutant": number, "crate": site.crate, "place": f"{site.file}:{site.line}", "operator": site.operator,
            "original": site.original, "mutated": site.mutated, "noticed": bool(by), "where": where, "by": by,
            "seconds": round(time.monotonic() - begun, 1),
        }  # fmt: skip
        with lock:
            idle.append(place)
            done[number] = record
            with log.open("a") as file:
                file.write(json.dumps(record) + "\n")
            left = sum(1 for n in todo if n not in done)
            minutes = (time.monotonic() - started) / 60
            print(f"{record['place']:50} {site.operator:10} {'noticed by ' + by if by else 'SURVIVED'}"
                  f" ({record['seconds']:.0f} s; {left} left, {minutes:.0f} min so far)", flush=True)  # fmt: skip

    with ThreadPoolExecutor(given.jobs) as pool:
        for future in [pool.submit(one, number) for number in todo]:
            future.result()


def report(given, mutants, done):
    print(f"\n{'crate':10} {'mutants':>8} {'noticed':>8} {'survived':>9} {'share':>6}")
    rows = [(crate, [done[n] for n in mutants if n in done and mutants[n].crate == crate]) for crate in given.crates.split(",")]
    for crate, records in [*rows, ("all", [r for _, records in rows for r in records])]:
        noticed = sum(r["noticed"] for r in records)
        proportion = f"{noticed / len(records):6.2f}" if records else "     -"
        print(f"{crate:10} {len(records):8} {noticed:8} {len(records) - noticed:9} {proportion}")
    survivors = [done[n] for n in sorted(done) if n in mutants and not done[n]["noticed"]]
    for r in survivors:
        shown = r["mutated"] or "left out"
        print(f"\n{r['mutant']}  {r['place']}\n  {r['original']}\n  -> {shown}")


def main():
    given = arguments()
    if given.self_test:
        return selftest.run(REPOSITORY)
    if given.plan:
        for number, site in Sample(REPOSITORY, given).mutants.items():
            print(f"{number:4} {site.file}:{site.line}  {site.operator}: {site.original!r} -> {site.mutated!r}")
        return
    given.scratch.mkdir(parents=True, exist_ok=True)
    given.scratch.chmod(0o755)  # some tests run as another user
    log = given.scratch / "mutants.jsonl"
    try:
        mutants, slices = build(given, given.scratch / "target")
    except tree.BuildFailed as e:
        raise SystemExit(f"error: {e}") from None
    done = results(log)
    if given.again:
        done = {n: r for n, r in done.items() if r["noticed"]}

    slices = [one for one in slices if not one.integration or one.crate not in given.without]
    baseline(given, slices)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, suite.end_all)
    hunt_all(given, mutants, slices, done, log)
    report(given, mutants, done)


if __name__ == "__main__":
    sys.exit(main())
