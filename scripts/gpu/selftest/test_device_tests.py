"""What the test programs' output means, for how long they may run, and which tests are left out."""

import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench.rows import ROOT
from gpu import device_tests
from gpu.device_tests import NO_RESULT, PACKAGES, cpu_only, judge
from gpu.in_turn import NOT_FINISHED, NOT_REACHED
from gpu.processes import Done

from .made_up import budget

PASSED = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.5s\n"
SAID = "failures:\n\n---- a::b stdout ----\n    no::name\n\nfailures:\n    a::b\n    c::d - should panic\n\n"
FAILED = SAID + PASSED.replace("0 failed", "2 failed")


class Judge(unittest.TestCase):
    def test_results(self) -> None:
        self.assertEqual(judge(Done(0, PASSED, "")), {"result": "passed", "passed": 12, "failed": []})
        self.assertEqual(judge(Done(101, FAILED, "")), {"result": "failed", "passed": 12, "failed": ["a::b", "c::d"]})
        words = "failures:\n    of::what is said\n1 passed; 7 failed; a line of a test\n"
        self.assertEqual(judge(Done(0, words + PASSED, ""))["result"], "passed")
        self.assertEqual(judge(Done(None, PASSED, ""))["result"], NOT_FINISHED)

    def test_what_ran_nothing_or_broke_off_has_no_result(self) -> None:
        for status, output in ((0, ""), (0, PASSED.replace("12 passed", "0 passed")), (101, PASSED), (0, FAILED), (-11, PASSED)):
            self.assertEqual(judge(Done(status, output, ""))["result"], NO_RESULT, (status, output))


class Programs(unittest.TestCase):
    def run_tests(self, seconds: float, takes: float, output: str = PASSED) -> tuple[int, list[dict]]:
        time, clock = budget(seconds)
        self.calls = []

        def run(command: list, timeout: float, library_path: str, log: Path, variables: dict[str, str]) -> Done:
            self.calls.append(([str(word) for word in command], library_path, log.name, variables))
            clock.now += min(takes, timeout)
            return Done((0 if output == PASSED else 101) if takes <= timeout else None, output, "")

        with tempfile.TemporaryDirectory() as held, mock.patch.object(device_tests, "run", run):
            status = device_tests.run_tests(Path("programs"), "cuda", "libraries", Path(held), {}, time, lambda _: None)
            return status, json.loads((Path(held) / "tests.json").read_text())["packages"]

    def test_each_program_runs_on_the_gpu_without_the_tests_of_the_cpu(self) -> None:
        status, packages = self.run_tests(300, 10)
        self.assertEqual((status, [one["result"] for one in packages]), (0, ["passed"] * 3))
        left_out = cpu_only((ROOT / "scripts/cuda/cpu_only.txt").read_text())
        for package, (words, library_path, log, variables) in zip(PACKAGES, self.calls, strict=True):
            self.assertEqual(words[:2], [f"programs/{package}", "--quiet"])
            self.assertEqual(words[3::2], left_out[package])
            self.assertEqual((library_path, log, variables["GPT2_TEST_DEVICE"]), ("libraries", f"{package}.log", "cuda"))
            self.assertTrue((Path(variables["CARGO_MANIFEST_DIR"]) / "Cargo.toml").exists())

    def test_failures_and_time(self) -> None:
        self.assertEqual(self.run_tests(300, 10, FAILED)[0], 1)
        status, packages = self.run_tests(300, 1000)
        self.assertEqual((status, [one["result"] for one in packages]), (1, [NOT_FINISHED] * 3))
        status, packages = self.run_tests(0, 1)
        self.assertEqual((status, [one["result"] for one in packages]), (1, [NOT_REACHED] * 3))
