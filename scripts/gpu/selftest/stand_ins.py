"""Programs that stand for the driver's, ours and NVIDIA's, and a module that stands for PyTorch's side."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.rows import ROOT

NVIDIA_SMI = """#!/bin/sh
case $* in
    *compute_cap*) echo "Made-up GPU, 580.1, 9.0" ;;
    *) echo "Made-up GPU, 580.1" ;;
esac
"""
# Prints JSON as `verify` and `bench` do; SLOW names the command and group that take long. It generates only as a graph.
GPT2 = """#!/bin/sh
echo "$*" >>"$STAND_INS/calls"
case "$1 $2" in
    "$SLOW"*) [ -z "$SLOW" ] || { sleep 1000 & echo $! >>"$STAND_INS/sleepers"; touch "$STAND_INS/slow"; wait; } ;;
esac
case $1 in
    --version) echo "gpt2 0.0.0" ;;
    verify)
        echo '{"passed": true, "checks": [{"what": "attention", "case": "B 1", "impl": "fused", "dtype": "bf16",'
        echo '"error": 0.001, "tolerance": 0.01, "passed": true}]}' ;;
    bench)
        case " $* " in *" --impl eager "*) impl=eager ;; *) impl=fused ;; esac
        case " $* " in *" --cuda-graph "*) graph=yes ;; *) graph= ;; esac
        [ "$2" != generate ] || [ -n "$graph" ] || { echo "error: invalid value 'generate' for '<WHAT>'" >&2; exit 2; }
        echo "{\\"impl\\": \\"$impl\\", \\"median_ms\\": 9.0, \\"tokens_per_s\\": 900.0, \\"timer\\": \\"events\\"}" ;;
esac
"""
SANITIZER = """#!/bin/sh
case " $* " in *" --help "*) echo "  --kernel-name arg"; exit 0 ;; esac
echo "$*" >>"$STAND_INS/calls"
case " $* " in *" --tool $SLOW "*) sleep 1000 & echo $! >>"$STAND_INS/sleepers"; touch "$STAND_INS/slow"; wait ;; esac
echo '{"impl": "fused"}'
echo "========= ERROR SUMMARY: 0 errors"
"""
TESTS = {
    "kernels": 'echo "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured"',
    "model": 'echo "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured"',
    "train": 'echo "failures:"; echo "    runs::a"; echo; echo "test result: FAILED. 3 passed; 1 failed; 0 ignored"; exit 101',
}
PYTORCH = '''"""Stands for PyTorch's side."""
import contextlib, os, sys, time
from .budget import NotRun

def mode(row):
    return contextlib.nullcontext()

def start(where, shape):
    missing = os.environ.get("MISSING")
    if missing == "torch":
        raise ImportError("No module named 'torch'")
    if missing == "gpu":
        raise NotRun("PyTorch 2 finds no GPU")
    return {"torch": "2", "transformers": None, "gpu": "Made-up GPU"}, Side()

class Side:
    def prepare(self, row, column):
        if column == "sdpa cuDNN":
            raise NotRun("no such backend here")
        if column == "transformers":
            os._exit(7)
        if [row.group, column] == os.environ.get("HANG", ",").split(","):
            open(os.environ["STAND_INS"] + "/slow", "w").close()
            time.sleep(1000)
        return lambda: 10.0

    def broken(self):
        return False

    def free(self):
        print("a library says something")
'''


class Machine:
    """A folder with the stand-ins and a copy of the scripts, in which PyTorch's side is replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.children = folder, folder / "out", []
        programs = {"nvidia-smi": NVIDIA_SMI, "gpt2": GPT2, "compute-sanitizer": SANITIZER}
        for name, text in programs.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        scripts = folder / "scripts"
        for name in ("gpu", "bench"):
            shutil.copytree(ROOT / "scripts" / name, scripts / name, ignore=shutil.ignore_patterns("__pycache__"))
        (scripts / "cuda").mkdir()
        for name in ("check-gpu.sh", "check_gpu.py", "cuda/cpu_only.txt"):
            shutil.copy(ROOT / "scripts" / name, scripts / name)
        (scripts / "gpu/pytorch.py").write_text(PYTORCH)

    def add_tests(self) -> None:
        """The programs of build.sh --tests; one of them has a test that fails."""
        (self.folder / "tests").mkdir()
        for name, text in TESTS.items():
            (self.folder / "tests" / name).write_text(f'#!/bin/sh\n[ "$GPT2_TEST_DEVICE" = cuda ] || exit 3\n{text}\n')
            (self.folder / "tests" / name).chmod(0o755)

    def start(self, *options: str, **environment: str) -> subprocess.Popen:
        """check-gpu.sh with the stand-ins first on PATH."""
        command = ["bash", self.folder / "scripts/check-gpu.sh", self.folder / "gpt2", "--out", self.out, *options]
        path = f"{self.folder}:{os.environ['PATH']}"
        mine = {"PATH": path, "PYTHON": sys.executable, "STAND_INS": str(self.folder), "SLOW": ""}
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(subprocess.Popen(command, env=os.environ | mine | environment, **pipes))
        return self.children[-1]

    def run(self, *options: str, **environment: str) -> tuple[int, str, str]:
        child = self.start(*options, **environment)
        output, errors = child.communicate(timeout=60)
        return child.returncode, output, errors

    def stop(self, child: subprocess.Popen) -> tuple[int, str, str]:
        """Ends it with SIGTERM once something slow has begun."""
        wait_for(lambda: (self.folder / "slow").exists())
        child.send_signal(signal.SIGTERM)
        output, errors = child.communicate(timeout=20)
        return child.returncode, output, errors

    def close(self) -> None:
        """Ends what a failed test has left running."""
        for child in self.children:
            child.kill()
        for pid in self.left_behind():
            os.kill(pid, signal.SIGKILL)

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def left_behind(self) -> list[int]:
        """The slow programs that still run."""
        file = self.folder / "sleepers"
        return [int(pid) for pid in (file.read_text().split() if file.exists() else []) if alive(int(pid))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("what the test waits for did not happen")
        time.sleep(0.02)
