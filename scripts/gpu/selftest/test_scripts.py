"""check-gpu.sh as a whole, with stand-ins for all programs, on a machine without a GPU and without PyTorch."""

import json
import tempfile
import unittest
from pathlib import Path

from .stand_ins import Machine, wait_for


class Scripts(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.machine = Machine(Path(held.name))
        self.addCleanup(self.machine.close)
        self.addCleanup(lambda: self.assertEqual(self.machine.left_behind(), []))

    def report(self, name: str = "gpu.json") -> dict:
        return json.loads((self.machine.out / name).read_text())

    def titles(self, key: str) -> list[str]:
        return [one["title"].split(",")[0] + one["title"].split(",")[1] for one in self.report()[key]]

    def test_both_parts(self) -> None:
        status, output, errors = self.machine.run("--quick")
        report = self.report()
        groups = ["core bf16", "decode bf16", "generate bf16", "block bf16", "forward bf16", "train bf16"]
        f16 = [group.replace("bf16", "f16") for group in groups[:-1]]
        self.assertEqual(self.titles("rows"), groups + f16, errors)
        self.assertEqual(report["not_reached"], [])
        self.assertTrue(output.endswith((self.machine.out / "gpu.md").read_text()))
        self.assertIn("Made-up GPU", output)
        self.assertIn("1 of 1 paths within their tolerance", output)
        self.assertIn("no such backend here", output)
        core, decode, generate = report["rows"][:3]
        self.assertEqual((core["against"], core["ratio"]), ("sdpa flash", 0.9))
        self.assertEqual(decode["cells"]["transformers"]["not_run"], "the PyTorch process ended with status 7")
        self.assertEqual((decode["against"], decode["ratio"]), ("PyTorch eager", 900 / 6400))
        self.assertIn("has no `gpt2 bench generate`", generate["cells"]["ours fused"]["not_run"])
        self.assertEqual(generate["cells"]["ours graph"]["median"], 900)
        as_graph = [call for call in self.machine.calls() if "--cuda-graph" in call]
        self.assertTrue(as_graph and all("bench generate" in call and "--impl fused" in call for call in as_graph), as_graph)
        self.assertEqual({one["result"] for one in self.report("sanitizers.json")["tools"]}, {"found nothing"})
        self.assertEqual(status, 1, "generate did not run")

    def test_ended_in_the_middle_of_our_run(self) -> None:
        child = self.machine.start("--quick", "--part", "times", SLOW="bench decode")
        self.ended(*self.machine.stop(child))

    def test_ended_in_the_middle_of_pytorchs_run(self) -> None:
        child = self.machine.start("--quick", "--part", "times", HANG="decode,PyTorch graph")
        self.ended(*self.machine.stop(child))

    def ended(self, status: int, _: str, errors: str) -> None:
        self.assertEqual(status, 143, errors)
        report = self.report()
        self.assertTrue(report["rows"][0]["complete"])
        self.assertEqual(self.titles("rows"), ["core bf16", "decode bf16"])
        self.assertEqual(self.titles("not_reached")[:2], ["decode bf16", "generate bf16"])
        self.assertIn("Not reached: ended by SIGTERM", (self.machine.out / "gpu.md").read_text())

    def test_budget_used_up_by_a_hanging_cell(self) -> None:
        for environment in ({"SLOW": "bench decode"}, {"HANG": "decode,PyTorch graph"}):
            status, output, errors = self.machine.run("--quick", "--part", "times", "--budget", "2", **environment)
            self.assertEqual(status, 0, errors)
            self.assertEqual(self.titles("rows"), ["core bf16", "decode bf16"])
            self.assertIn("Not reached: the budget of 2 s was used up", output)

    def test_killed(self) -> None:
        child = self.machine.start("--quick", "--part", "times", HANG="decode,PyTorch graph")
        wait_for(lambda: (self.machine.folder / "slow").exists())
        child.kill()
        child.communicate(timeout=20)  # until the last process has closed its end: nothing is left behind
        self.assertEqual(self.titles("rows"), ["core bf16"])
        self.assertIn("Not reached: the run ended before it", (self.machine.out / "gpu.md").read_text())

    def test_resume(self) -> None:
        self.machine.run("--quick", "--part", "times", "--budget", "2", SLOW="bench decode")
        (self.machine.folder / "calls").unlink()
        _, _, errors = self.machine.run("--quick", "--part", "times", "--resume")
        self.assertIn("1 of 11 rows are kept", errors)
        self.assertEqual([call for call in self.machine.calls() if "verify" in call or "core --json --batch 1" in call
                          and "bf16" in call], [], "what is kept is not run again")
        (self.machine.folder / "gpt2").open("a").write("# another binary\n")
        self.assertIn("has another binary_sha256", self.machine.run("--quick", "--part", "times", "--resume")[2])

    def test_a_sanitizer_that_is_not_finished(self) -> None:
        status, _, _ = self.machine.run("--part", "sanitizers", "--budget", "4", SLOW="racecheck")
        results = {one["tool"]: one["result"] for one in self.report("sanitizers.json")["tools"]}
        clean = "found nothing"
        expected = {"memcheck": clean, "racecheck": "not finished", "initcheck": clean, "synccheck": clean}
        self.assertEqual((status, results), (1, expected))

    def test_a_sanitizer_that_is_ended(self) -> None:
        child = self.machine.start("--part", "sanitizers", SLOW="racecheck")
        self.assertEqual(self.machine.stop(child)[0], 143)
        results = [one["result"] for one in self.report("sanitizers.json")["tools"]]
        self.assertEqual(results, ["found nothing", "not finished", "not reached", "not reached"])

    def test_the_tests(self) -> None:
        status, _, errors = self.machine.run("--part", "tests")
        self.assertEqual((status, "scripts/cuda/build.sh --tests" in errors), (3, True), errors)
        self.machine.add_tests()
        status, _, errors = self.machine.run("--part", "tests")
        results = {one["package"]: (one["result"], one.get("passed")) for one in self.report("tests.json")["packages"]}
        expected = {"kernels": ("passed", 3), "model": ("passed", 3), "train": ("failed", 3)}
        self.assertEqual((status, results), (1, expected), errors)

    def test_what_is_not_installed(self) -> None:
        for missing, words in (("torch", "pip install torch"), ("gpu", "PyTorch 2 finds no GPU")):
            status, _, errors = self.machine.run("--quick", "--part", "times", MISSING=missing)
            self.assertEqual((status, words in errors), (3, True), errors)
            self.assertIn("1 of 1 paths", errors, "verify needs no PyTorch")
        (self.machine.folder / "nvidia-smi").write_text("#!/bin/sh\necho no devices were found\nexit 6\n")
        status, _, errors = self.machine.run()
        self.assertEqual((status, "does not answer: no devices were found" in errors), (3, True), errors)

    def test_wrong_arguments(self) -> None:
        for options in (["--budget", "0"], ["--part", "half"], ["--budget", "soon"], ["--odd"], ["--part"]):
            status, _, errors = self.machine.run(*options)
            self.assertEqual((status, "error" in errors), (2, True), (options, errors))
