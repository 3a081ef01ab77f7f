#!/usr/bin/env python3
"""Runs the tests of the kernels, the model and training on the GPU of the driver that runs launches on the processor.

    scripts/cuda/on_device.py [PACKAGE..]      kernels, model and train, or these; builds them with scripts/cuda/on-cpu.sh
    scripts/cuda/on_device.py --quick          a few cases of each property, and no test that takes half a minute
    scripts/cuda/on_device.py --filter WORD    the tests whose names contain it; asks for no kernel
    scripts/cuda/on_device.py --built          runs what the last call built
    scripts/cuda/on_device.py --self-test      does it count launches, and notice a name that is no test's? runs no test

They are the tests of the CPU with GPT2_TEST_DEVICE=cuda. What has no meaning on a GPU stands in cpu_only.txt with its reason.
`on_device` in tests/kernels runs our kernels on three GPUs: a large one, one of two multiprocessors without a cache, and one of
compute capability 7.5. It exits with 1 if a test fails, if no test ran, if a name in cpu_only.txt is no test's, or if one of our
kernels was never launched or cuBLASLt never called.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from gpu.device_tests import PACKAGES, QUICK_CASES, cpu_only  # noqa: E402, behind its folder

HOME = REPOSITORY / "target/cuda-on-cpu"
# Left out by --quick: each took half a minute or more by itself.
SLOW = {
    "kernels": ["features::any_features_together_follow_the_definition"],
    "model": [
        "analysis::effects_are_those_of_a_pass_a_head",
        "dropout::the_expectation_of_attention_is_attention",
        "search::the_search_finds_what_a_search_through_every_token_finds",
    ],
    "train": ["training::the_loss_falls_to_what_cannot_be_known"],
}
# The GPUs of `on_device` besides the large one, and which of its tests.
GPUS = {
    "two multiprocessors": ("on_device", {"CUDA_ON_CPU_MULTIPROCESSORS": "2", "CUDA_ON_CPU_L2": "0"}),
    "7.5": ("of_an_older_gpu", {"CUDA_ON_CPU_CAPABILITY": "75", "CUDA_ON_CPU_KERNELS": str(HOME / "kernels-75")}),
}


def build(packages):
    """Builds the tests of these packages."""
    command = [HERE / "on-cpu.sh", "--build", "test", "-p", "gpt2-cli"]
    command += [word for one in packages for word in ("-p", PACKAGES[one], "--test", one)]
    done = subprocess.run([*command, "--no-run", "--message-format", "json"], stdout=subprocess.PIPE, text=True, check=False)
    programs = {}
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["target"]["kind"] == ["test"]:
            programs[message["target"]["name"]] = message["executable"]
    if done.returncode or set(programs) != set(packages):
        sys.exit(f"error: {' '.join(map(str, command))} built {sorted(programs)} of {sorted(packages)}")
    (HOME / "tests.json").write_text(json.dumps(programs))


def build_old_kernels():
    """Our kernels and Candle's for 7.5, beside those for 9.0, which such a GPU does not run."""
    folder = HOME / "kernels-75"
    folder.mkdir(parents=True, exist_ok=True)
    for noted in (HOME / "kernels").glob("candle-*.json"):
        made_of = json.dumps({**json.loads(noted.read_text()), "capability": "75"}) + "\n"
        to = folder / noted.name
        if not to.exists() or to.read_text() != made_of:
            to.write_text(made_of)
    environment = {**os.environ, "CUDA_ON_CPU_CAPABILITY": "75"}
    subprocess.run([sys.executable, HERE / "driver/kernels.py", folder], env=environment, check=True)


def run(program, words, settings, report):
    """Runs tests on the driver: (passed, failed, ignored or filtered), seconds, and what they said."""
    environment = {**os.environ, **settings, "GPT2_TEST_DEVICE": "cuda", "CUDA_ON_CPU": "1", "CUDA_ON_CPU_REPORT": str(report)}
    environment["LD_LIBRARY_PATH"] = f"{HOME / 'lib64'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    start = time.monotonic()
    # The tests read files by their paths in the package.
    done = subprocess.run([program, *words], capture_output=True, text=True, errors="replace", check=False, env=environment, cwd=REPOSITORY)
    said = done.stdout + done.stderr
    counts = re.search(r"(\d+) passed; (\d+) failed; (\d+) ignored", said)
    passed, failed = (int(counts[1]), int(counts[2])) if counts else (0, 1)
    if done.returncode and not failed:
        failed = 1
    return passed, failed, time.monotonic() - start, said


def launched(reports):
    """The kernels that these reports count, with their launches."""
    found = {}
    for report in reports:
        for line in report.read_text().splitlines() if report.exists() else []:
            words = line.split()
            if len(words) >= 3 and words[0] == "launch":
                found[words[1]] = found.get(words[1], 0) + int(words[2])
    return found


def has_cublaslt(reports):
    """Whether one of these reports counts a product by cuBLASLt."""
    lines = (line.split() for report in reports if report.exists() for line in report.read_text().splitlines())
    return any(words[0] == "product" and words[1].startswith("cublaslt") for words in lines if len(words) > 1)


def of_gpu(filtered, word, names, left_out):
    """The tests of one of the other GPUs: of those that it has, the ones that are asked for."""
    return sorted(name for name in names if filtered in name and (word or "") in name and name not in left_out)


def our_kernels():
    """The names of all our kernels."""
    libraries = sorted((HOME / "kernels").glob("candle-fused-*.so"))
    listing = subprocess.run(["nm", "-D", "--defined-only", *libraries], capture_output=True, text=True, check=True).stdout
    names = {line.split()[2] for line in listing.splitlines() if len(line.split()) == 3 and line.split()[1] == "T"}
    return {name for name in names if not name.startswith(("_", "cuda_on_cpu"))}


def unknown_names(listed, names):
    """Names of cpu_only.txt that no test has."""
    return sorted(name for name in listed if name not in names)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="kernels, model or train")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CASES} cases of each property, and no slow test")
    parser.add_argument("--filter", metavar="WORD", help="only the tests whose names contain it")
    parser.add_argument("--built", action="store_true", help="build nothing")
    parser.add_argument("--self-test", action="store_true", help="test this script")
    given = parser.parse_args()
    if unknown := set(given.packages) - set(PACKAGES):
        parser.error(f"{unknown.pop()}: expected {', '.join(PACKAGES)}")
    return given


def main():
    given = arguments()
    if given.quick:
        os.environ["PROPTEST_CASES"] = str(QUICK_CASES)
    listed = cpu_only((HERE / "cpu_only.txt").read_text())
    if given.self_test:
        return self_test()
    if given.built and not (HOME / "tests.json").exists():
        sys.exit("error: nothing is built; run this without --built first")
    if not given.built:
        build(given.packages or list(PACKAGES))
        build_old_kernels()
    programs = json.loads((HOME / "tests.json").read_text())
    given.packages = given.packages or list(programs)
    if missing := set(given.packages) - set(programs):
        sys.exit(f"error: the last call did not build {', '.join(sorted(missing))}; run this without --built")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(HOME / "lib64")}
    bad, rows, reports = [], [], []
    with tempfile.TemporaryDirectory(prefix="gpt2-on-device-") as folder:
        jobs = []
        for package in given.packages:
            listing = subprocess.run([programs[package], "--list"], capture_output=True, text=True, check=True, env=environment).stdout
            names = {line[:-6] for line in listing.splitlines() if line.endswith(": test")}
            bad += [f"cpu_only.txt: {package} has no test {name}" for name in unknown_names(listed[package], names)]
            bad += [f"SLOW: {package} has no test {name}" for name in unknown_names(SLOW[package], names)]
            left_out = listed[package] + (SLOW[package] if given.quick else [])
            skip = [word for name in left_out for word in ("--skip", name)]
            jobs.append((package, [*([given.filter] if given.filter else []), "--quiet", *skip], {}))
            for gpu, (filtered, settings) in GPUS.items() if package == "kernels" else ():
                if chosen := of_gpu(filtered, given.filter, names, left_out):
                    jobs.append((package, ["--exact", *chosen, "--quiet"], settings, gpu))
                elif not given.filter:
                    bad.append(f"no test of kernels is called {filtered}, which are those of a GPU of {gpu}")
        for i, (package, words, settings, *gpu) in enumerate(jobs):
            report = Path(folder) / f"{i}.report"
            reports.append(report)
            passed, failed, seconds, said = run(programs[package], words, settings, report)
            kinds = sum(1 for name in launched([report]) if name in our_kernels())
            only = 0 if gpu else len(listed[package])
            rows.append((f"{package}{', a GPU of ' + gpu[0] if gpu else ''}", passed, failed, only, kinds, seconds))
            if failed:
                bad.append(f"{rows[-1][0]}: {failed} failed\n{said[-12000:]}")
            print("{}: {} passed, {} failed, {} for the CPU alone; {} of our kernels; {:.0f} s".format(*rows[-1]), flush=True)
        counts = launched(reports)
        if not given.filter and "kernels" in given.packages and not has_cublaslt(reports):
            bad.append("no product by cuBLASLt")
    if not any(passed + failed for _, passed, failed, *_ in rows):
        bad.append("no test ran")
    if not given.filter and "kernels" in given.packages:
        never = sorted(our_kernels() - set(counts))
        bad += [f"never launched: {' '.join(never)}"] if never else []
        ours = {name: count for name, count in counts.items() if name in our_kernels()}
        if ours:
            least = min(ours, key=ours.get)
            print(f"{len(ours)} of our {len(our_kernels())} kernels were launched; the least, {least}, {ours[least]} times")
    print(*bad, sep="\n", file=sys.stderr)
    return 1 if bad else 0


def self_test():
    listed = cpu_only("# why\nkernels:\n  a::b    # reason\nmodel:\n")
    assert listed["kernels"] == ["a::b"] and listed["model"] == [], listed
    assert unknown_names(["a::b", "a::c"], {"a::b"}) == ["a::c"]
    names = {"on_device::a", "on_device::b", "paged::a"}
    assert of_gpu("on_device", None, names, ["on_device::b"]) == ["on_device::a"]
    assert of_gpu("on_device", "paged", names, []) == [] and of_gpu("on_device", "::b", names, []) == ["on_device::b"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "r"
        report.write_text("what name times bytes\nlaunch decode_f32_d64 3 0\nproduct decode 4 0\n")
        assert launched([report, report, Path(folder) / "none"]) == {"decode_f32_d64": 6}
        assert not has_cublaslt([report, Path(folder) / "none"])
        report.write_text("product    cublaslt, epilogue 36    3 0\n")
        assert has_cublaslt([report])
    print("on_device.py: its own checks pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
