"""Runs a program for at most so long, and leaves none of its processes behind."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.processes import die_with_parent


class Done(NamedTuple):
    status: int | None  # None: ended because its time was over
    stdout: str
    stderr: str


def start(command: Sequence[object], **options) -> subprocess.Popen:
    """A child in a group of its own, for `end`; it also ends if this process is killed, and so cannot keep the GPU."""
    words = [str(word) for word in command]
    return subprocess.Popen(words, start_new_session=True, preexec_fn=die_with_parent, **options)


def end(child: subprocess.Popen) -> None:
    """Ends a child, with all that it started."""
    if child.returncode is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def run(
    command: Sequence[object], timeout: float, library_path: str = "", log: Path | None = None, variables: dict[str, str] | None = None
) -> Done:
    """Runs a command with these environment variables; with `log`, all its output goes there."""
    environment = os.environ | ({"LD_LIBRARY_PATH": library_path} if library_path else {}) | (variables or {})
    # Files, not pipes: a pipe stays open, and is waited for, while any process below the child lives.
    with tempfile.TemporaryFile("w+") as errors, open(log, "w+") if log else tempfile.TemporaryFile("w+") as output:
        files = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=output if log else errors)
        child = start(command, env=environment, **files)
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(child)
        output.seek(0)
        errors.seek(0)
        return Done(status, output.read(), errors.read())
