"""What compute-sanitizer's output means, and for how long it may run."""

import json
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench.rows import ROOT
from gpu import sanitizers
from gpu.in_turn import NOT_FINISHED, NOT_REACHED
from gpu.processes import Done
from gpu.sanitizers import CLEAN, ERRORS, KERNELS, NO_RESULT, TOOLS, judge

from .made_up import budget

ASKED = '{"impl": "fused"}\n'
NONE = ASKED + "========= ERROR SUMMARY: 0 errors\n"
RACES = ASKED + "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n"
READ = "========= Uninitialized __global__ memory read of size 4 bytes\n=========     at {}+0x90 in a.cu:20\n"
OURS = ASKED + READ.format("layer_norm_f32") + "========= ERROR SUMMARY: 1 error\n"
OTHERS = ASKED + READ.format("void gemm<float>(float *)") + "========= ERROR SUMMARY: 1 error\n"


class Judge(unittest.TestCase):
    def expect(self, result: str, tool: str, status: int | None, output: str) -> None:
        self.assertEqual(judge(tool, Done(status, output, ""))["result"], result, (tool, status, output))

    def test_clean_needs_a_summary_of_our_kernels(self) -> None:
        self.expect(CLEAN, "memcheck", 0, NONE)
        self.expect(CLEAN, "racecheck", 0, ASKED + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n")
        self.expect(NO_RESULT, "memcheck", 0, ASKED)
        self.expect(NO_RESULT, "memcheck", 0, NONE.replace("fused", "eager"))
        self.expect(NO_RESULT, "memcheck", 1, NONE)
        self.expect(NO_RESULT, "memcheck", -11, NONE)

    def test_what_was_not_finished_is_not_clean(self) -> None:
        self.expect(NOT_FINISHED, "memcheck", None, ASKED)
        self.expect(NOT_FINISHED, "memcheck", None, NONE)
        self.expect(ERRORS, "memcheck", None, OURS)

    def test_errors(self) -> None:
        self.expect(ERRORS, "racecheck", 9, RACES)
        self.expect(ERRORS, "racecheck", 0, RACES)
        self.expect(ERRORS, "memcheck", 9, OTHERS)

    def test_initcheck_watches_all_and_counts_ours(self) -> None:
        self.expect(ERRORS, "initcheck", 9, OURS)
        self.expect(CLEAN, "initcheck", 9, OTHERS)
        self.expect(ERRORS, "initcheck", 9, OTHERS.replace("SUMMARY: 1 ", f"SUMMARY: {sanitizers.LIMIT} "))

    def test_every_kernel_of_ours_is_watched(self) -> None:
        found = set()
        for file in (ROOT / "crates/kernels/cuda").glob("*.cu"):
            found |= set(re.findall(r"KERNEL\((?:[^()]|\([^()]*\))*\)[\s\\]*(\w+)", file.read_text()))
        self.assertGreater(len(found), 5)
        self.assertEqual([name for name in found if not name.startswith(tuple(KERNELS))], [])


class Shares(unittest.TestCase):
    def run_tools(self, seconds: float, takes: float, help_text: str = "--kernel-name") -> tuple[int, list[dict]]:
        """Every tool wants `takes` seconds."""
        time, clock = budget(seconds)
        self.commands, self.limits = [], []

        def run(command: list, timeout: float, library_path: str, log: Path | None = None) -> Done:
            words = [str(word) for word in command]
            if "--help" in words:
                return Done(0, help_text, "")
            self.commands.append(words)
            self.limits.append(timeout)
            clock.now += min(takes, timeout)
            return Done(0 if takes <= timeout else None, NONE, "")

        with tempfile.TemporaryDirectory() as held, mock.patch.object(sanitizers, "run", run):
            folder = Path(held)
            program, quiet = Path("gpt2"), lambda _: None
            status = sanitizers.sanitize(Path("sanitizer"), program, "cuda", "", folder, {}, time, quiet)
            return status, json.loads((folder / "sanitizers.json").read_text())["tools"]

    def test_all_tools_run_on_our_kernels(self) -> None:
        status, tools = self.run_tools(400, 10)
        self.assertEqual((status, [one["result"] for one in tools]), (0, [CLEAN] * 4))
        for tool, words in zip(TOOLS, self.commands, strict=True):
            self.assertEqual(words[words.index("--tool") + 1], tool)
            wanted = [] if tool == "initcheck" else [f"kns={kernel}" for kernel in KERNELS]
            self.assertEqual([word for word in words if word.startswith("kns=")], wanted)
            self.assertEqual(words.count("--kernel-name"), len(wanted))
        self.run_tools(400, 10, help_text="--kernel-regex")
        self.assertIn("--kernel-regex", self.commands[0])

    def test_each_gets_its_share(self) -> None:
        self.assertEqual((self.run_tools(400, 40)[0], self.limits), (0, [100, 120, 160, 280]))
        status, tools = self.run_tools(400, 1000)
        self.assertEqual((status, self.limits), (1, [100, 100, 100, 100]))
        self.assertEqual([one["result"] for one in tools], [NOT_FINISHED] * 4)

    def test_no_time_left(self) -> None:
        status, tools = self.run_tools(0, 1)
        self.assertEqual((status, [one["result"] for one in tools]), (1, [NOT_REACHED] * 4))
