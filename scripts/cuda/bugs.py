#!/usr/bin/env python3
"""Do the emulated tests notice bugs in the CUDA kernels? Plants one at a time in a copy and runs a test. Needs no GPU.

    scripts/cuda/bugs.py                  all bugs: half a minute each, two at a time
    scripts/cuda/bugs.py --verify         does `gpt2 verify --device cuda` notice them, with the host's code (on-cpu.sh)?
    scripts/cuda/bugs.py --list           what they are, if each can be planted
    scripts/cuda/bugs.py --only 3,17      these alone

The tests of crates/kernels run the kernels' own source in an emulator, from the folder that GPT2_CUDA_SOURCES names.
They must pass on an unchanged copy, and the bug's test must fail on the changed one. If it passes, the bug survives: a
test is missing, and this script fails, unless the table below excuses the bug with a reason.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SOURCES = REPOSITORY / "crates/kernels/cuda"
BUILD = "test --release --locked -p candle-fused --lib --no-run --message-format json"

Bug = namedtuple("Bug", "file old new what test excuse", defaults=[""])
F16, F16_BACK, NORM = "::f16_attention_emulated", "::f16_gradients_emulated", "layer_norm_emulated"
F32, F32_BACK, FINISH = "::f32_attention_emulated", "::f32_gradients_emulated", "bias_gelu_and_residual_emulated"
LOSS = "cross_entropy_emulated"
# fmt: off
PLANTED = {  # file: text that occurs once, its replacement, what that does, the test, and why it may pass
    "attention.cu": [
        ("column > past + top + row", "column >= past + top + row", "a query does not see its own key", F16),
        ("+ Keys > past + top + 1)", "+ Keys > past + top + ROWS)", "some tiles are not tested for causality", F16),
        ("start >= past + top + ROWS", "start >= past + top", "a warp skips the tile with its own keys", F16),
        ("sync_block(); // also", "// also", "no barrier between the copies of a tile and its use", F16),
        ("copies_arrived();\n        if", "if", "a tile is used before its copies have arrived", F16),
        ("v_rows + step % 2 * Keys * ROW;", "v_rows + (step + 1) % 2 * Keys * ROW;", "the wrong one of two buffers of v", F16),
        ("if (visible) clear_padding", "if (false) clear_padding", "weights of 0 meet the v of padding", F16),
        ("sum[g][half] *= fade;", "", "the sum does not fade when a larger score comes", F16),
        ("now = fmaxf(now, shuffle_xor(now, 2));", "", "the maximum of half a row", F16),
        ("now == -INFINITE ? 0 : now", "now", "inf - inf in a row that has seen no key", F16),
        (", log2_fast(all))", ", LN_2 * log2_fast(all))", "the logarithm of a sum in the wrong base", F16_BACK),
        ("row < shape.queries)", "true)", "logarithms of rows past the end land in the next head", F16_BACK),
        ("(Masked ? masks.kept : 1) / all", "1 / all", "kept weights are not scaled", F16_BACK),
    ],
    "attention_f32.cu": [
        ("key > past + top + i", "key >= past + top + i", "a query does not see its own key", F32),
        ("sync_block(); // no thread", "// no thread", "a tile is overwritten while others read it", F32),
        ("if (visible) clear_padding", "if (false) clear_padding", "weights of 0 meet the v of padding", F32),
        ("sync_warp(); // the 8", "// the 8", "weights are read before their thread writes them", F32),
        ("dropped ? 0 : weight", "weight", "dropped weights stay", F32_BACK),
    ],
    "attention_backward.cu": [
        ("key_at > past + query_at", "key_at >= past + query_at", "a query does not see its own key", F16_BACK),
        ("OfKeys ? step % 2 * 2 * QUERIES", "OfKeys ? 0", "the sums and deltas of other queries", F16_BACK),
        ("(row < own_count && padding[row])", "row < own_count", "padding gets a dk and a dv", F16_BACK),
        ("if (!OfKeys) hidden |=", "if (false) hidden |=", "dq ignores padding", F16_BACK, "the keys of padding are zeros"),
        ("if (!OfKeys && padding)\n", "if (false)\n", "dq meets the k and v of padding", F16_BACK),
        ("if (OfKeys && padding)", "if (false)", "dk meets the v of padding", F16_BACK),
        ("grads[0][j][e] * masks.kept", "grads[0][j][e]", "dp is not scaled by kept", F16_BACK),
        ("(grad - of_queries[QUERIES + query])", "grad", "ds without delta", F16_BACK),
        ("/ Others * Others :", "/ Others * Others + Others :", "dk and dv without the first queries", F16_BACK),
    ],
    "attention_backward_f32.cu": [
        ("sync_block(); // no thread", "// no thread", "a tile is overwritten while others read it", F32_BACK),
        ("dropped || (OfKeys && hidden)", "dropped", "dk meets the v of padding", F32_BACK),
        ("if (!OfKeys && padding)", "if (false)", "dq meets the k and v of padding", F32_BACK),
        (" || (padding && (key_at >= shape.keys || !padding[key_at]))", "", "padding is ignored", F32_BACK),
        ("if (top + i >= own_count) continue;", "", "rows past the end are written", F32_BACK),
        ("there = query + i < shape.queries", "there = true", "sums and deltas past the end are read", F32_BACK),
    ],
    "f32.cuh": [
        ("own + (down + i) * ROW + d", "own + (down + i) * D + d", "the wrong row stride", F32),
        ("WEIGHT_ROW = OTHERS + 4", "WEIGHT_ROW = OTHERS + 2", "16-byte reads that are not aligned", F32),
    ],
    "tiles.cuh": [
        ("* tiles) * shape.section,", "* tiles),", "every section begins at the first heads", F16_BACK),
        ("heads - first : shape.section;", "shape.section : shape.section;", "a short last section is full", F16_BACK),
        ("bool there = first + row < end;", "bool there = true;", "rows past the end are copied", F16),
        ("weights[g][2 * j + e / 2]", "weights[g][2 * j + e % 2]", "swapped fragments of the weights", F16),
        ("d : 0], b[2], b[3]);", "d : 0], b[3], b[2]);", "swapped fragments of the other rows", F16),
        ("sync_warp();\n    for (int i = lane;", "for (int i = lane;", "rows go out before all lanes wrote", F16),
        ("if (first + row >= end) break;", "", "rows past the end are written", F16),
    ],
    "masks.cuh": [
        ("multiply_high(0xcd9e8d57,", "multiply_high(0xcd9e8d75,", "a wrong constant in Philox", F16_BACK),
        (" + masks.first_head + place.h", " + place.h", "the dropout of other heads of the layer", F32_BACK),
        ("place.h * shape.queries + query", "query", "the hidden keys of the first head in all heads", F16_BACK),
        ("< end && padding[key + 1]", "< end && padding[key]", "the padding of a neighbor", F16),
    ],
    "decode.cu": [
        ("key >= end || (visible", "(visible", "keys of the next block count twice", F16),
        ("if (scores[i] == -INFINITE) continue;", "", "weights of 0 meet the v of padding", F16),
        ("(shape.splits) - 1", "(shape.splits) - 2", "the last block but one merges what there is", F16),
        ("if (threadIdx.x == 0) finished[head] = 0;", "", "the counter of finished blocks is not reset", F16),
        ("memory_fence(); // whoever", "// whoever", "a block counts as finished before others see its result", F16,
         "the emulator runs one block after another, so it has nothing to put in order"),
    ],
    "delta.cu": [
        ("other < LANES; other", "other < LANES / 2; other", "delta of half a row", F16_BACK),
        ("(b * heads + h) * queries + t", "(b * queries + t) * heads + h", "deltas in another order", F16_BACK),
    ],
    "layers.cu": [
        ("/ width + eps)", "/ width)", "no epsilon", NORM),
        ("% (width / COUNT)", "% width", "the bias of other columns", FINISH),
        ("0.044715f", "0.04475f", "a wrong digit in GELU", FINISH),
    ],
    "cross_entropy.cu": [
        ("sync_block(); // no thread", "// no thread", "the maximum is overwritten while others read it", LOSS),
        ("sync_block(); // the logit", "// the logit", "the target's logit is overwritten before it is read", LOSS),
    ],
}
# fmt: on
BUGS = [Bug(file, *bug) for file, bugs in PLANTED.items() for bug in bugs]


def plant(bug: Bug, folder: Path) -> None:
    """Puts the bug into the copy in `folder`."""
    text = (folder / bug.file).read_text()
    if (found := text.count(bug.old)) != 1:
        raise SystemExit(f"error: `{bug.old}` ({bug.what}) is {found} times in {bug.file}; adapt it in {__file__}")
    (folder / bug.file).write_text(text.replace(bug.old, bug.new))


def built() -> str:
    """The program with the unit tests of crates/kernels."""
    command = [os.environ.get("CARGO", "cargo"), *BUILD.split()]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    programs = re.findall(r'"executable":"([^"]+)"', done.stdout)
    if done.returncode != 0 or not programs:
        raise SystemExit(f"error: `{' '.join(command)}` built no tests; mend that first")
    return programs[-1]


def run(tests: Path, test: str, folder: Path, limit: float) -> tuple[str, str]:
    """Runs a test on the kernels in `folder`: (passed, failed or an error, and how)."""
    command, begun = [tests, test, "--test-threads", "1"], time.monotonic()
    process = subprocess.Popen(
        command, env={**os.environ, "GPT2_CUDA_SOURCES": str(folder)}, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the emulator, too
        process.communicate()
        return "error", f"no end after {limit:.0f} s; raise --limit, or drop this bug"
    seconds = f"{time.monotonic() - begun:.0f} s"
    for program in folder.glob("emulate-cuda*"):
        program.unlink()
    if "could not compile the kernels" in said:
        return "error", "does not compile: " + "; ".join(re.findall(r"error: .*", said)[:2])
    if not (count := re.search(r"running (\d+) test", said)) or count[1] == "0":
        return "error", f"no test is called `{test}`"
    if process.returncode == 0:
        return "passed", seconds
    causes = [r"emulate: (.*)", r"(signal: \d+ .*)", r"panicked at [^\n]*\n(.*)"]
    cause = next((found[1] for found in (re.search(one, said) for one in causes) if found), "it failed")
    return "failed", f"{seconds}; {re.sub(r' of Case {.*}', '', cause)[:100]}"


def verify(file: str, folder: Path, limit: float) -> tuple[str, str]:
    """Runs `gpt2 verify --device cuda` with the kernels of `file` in `folder` in place of the program's own."""
    kernels, begun = folder / "kernels", time.monotonic()
    driver = REPOSITORY / "scripts/cuda/driver"
    made = subprocess.run([sys.executable, driver / "kernels.py", kernels, folder / file], capture_output=True, text=True, check=False)
    if made.returncode:
        return "error", "does not compile: " + made.stderr[-200:]
    name = Path(file).stem
    (kernels / f"{name}.so").rename(kernels / f"candle-fused-{name}.so")
    home = REPOSITORY / "target/cuda-on-cpu"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(home / "lib64"), "CUDA_ON_CPU_KERNELS": str(kernels)}
    command = [home / "gpt2", "verify", "--device", "cuda"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        return "failed", f"no end after {limit:.0f} s"
    seconds = f"{time.monotonic() - begun:.0f} s"
    if done.returncode == 0:
        return "passed", seconds
    said = re.search(r"cuda-on-cpu: (.*)", done.stderr) or re.search(r"(\d+ of \d+ paths.*)", done.stdout + done.stderr)
    return "failed", f"{seconds}; {said[1][:90] if said else done.stderr.strip()[-90:]}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--list", action="store_true", help="plant each bug in a copy, print what it is, and stop")
    add("--verify", action="store_true", help="run `gpt2 verify --device cuda`, as scripts/cuda/on-cpu.sh built it")
    add("--only", metavar="N,..", help="the numbers of the bugs to plant")
    add("--jobs", type=int, choices=(1, 2), default=2, help="how many run at a time (default 2)")
    add("--tests", type=Path, metavar="PROGRAM", help="the built unit tests of crates/kernels; cargo is not run")
    add("--limit", type=float, default=300, metavar="SECONDS", help="for one run (default 300)")
    given = parser.parse_args()
    numbers = [str(n) for n in range(1, len(BUGS) + 1)]
    given.only = given.only.split(",") if given.only else numbers
    if unknown := set(given.only) - set(numbers):
        parser.error(f"--only: {unknown.pop()} is no number from 1 to {len(BUGS)}; such as 3,17")
    given.bugs = {int(n): BUGS[int(n) - 1] for n in given.only}
    return given


def main() -> int:
    given = arguments()
    if given.list:
        for bug in given.bugs.values():
            with tempfile.TemporaryDirectory(prefix="gpt2-bugs-") as scratch:
                plant(bug, shutil.copytree(SOURCES, Path(scratch) / "planted"))
        print(*(f"{n:3} {bug.file}: {bug.what} ({bug.test.strip(':')})" for n, bug in given.bugs.items()), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))  # and leave no folder behind
    with tempfile.TemporaryDirectory(prefix="gpt2-bugs-") as scratch:
        folder = Path(scratch)
        shutil.copytree(SOURCES, folder / "original")  # an edit during the run changes nothing
        for n, bug in given.bugs.items():
            plant(bug, shutil.copytree(folder / "original", folder / str(n)))
        tests = folder / "tests"
        if given.verify:
            subprocess.run([REPOSITORY / "scripts/cuda/on-cpu.sh", "--build"], check=True)  # only what is old
        else:
            shutil.copy(given.tests or built(), tests)  # a later build may replace the original
        pool = ThreadPoolExecutor(given.jobs)
        try:
            return hunt(given, folder, tests, pool)
        finally:
            pool.shutdown(cancel_futures=True)  # without it, an interrupt would wait for all of them


def hunt(given: argparse.Namespace, folder: Path, tests: Path, pool: ThreadPoolExecutor) -> int:
    controls = {}
    for i, test in enumerate(sorted({bug.file if given.verify else bug.test for bug in given.bugs.values()})):
        copy = shutil.copytree(folder / "original", folder / f"unchanged{i}")
        runs = (verify, test, copy, given.limit) if given.verify else (run, tests, test, copy, given.limit)
        controls[pool.submit(*runs)] = test
    for job in as_completed(controls):
        outcome, how = job.result()
        print(f"without a bug  {outcome:8}  {controls[job].strip(':')} ({how})", flush=True)
        if outcome != "passed":
            raise SystemExit(f"error: {controls[job]} must pass on the kernels as they are; mend them or it first")
    jobs = {}
    for n, bug in given.bugs.items():
        own = folder / str(n)
        runs = (verify, bug.file, own, given.limit) if given.verify else (run, tests, bug.test, own, given.limit)
        jobs[pool.submit(*runs)] = n
    counts, bad = {}, []
    for job in as_completed(jobs):
        (outcome, how), bug = job.result(), given.bugs[jobs[job]]
        name = {"failed": "noticed", "passed": "excused" if bug.excuse else "SURVIVED"}.get(outcome, outcome)
        line = f"{jobs[job]:3}  {name:8}  {bug.file}: {bug.what} ({bug.excuse if name == 'excused' else how})"
        print(line, flush=True)
        counts[name] = counts.get(name, 0) + 1
        bad += [line] if name in ("SURVIVED", "error") else []
    print(f"{len(jobs)} bugs:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    print(*sorted(bad), sep="\n", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
