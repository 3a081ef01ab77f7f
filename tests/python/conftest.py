"""What the tests of the Python package share: the demo model, and the command as it stands beside the package."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2_candle import Model

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("GPT2_COMMAND", str(ROOT / "target/release/gpt2"))
DATA = ROOT / "tests/data"
TEXT = "O Romeo, Romeo! wherefore art"
CLEAN, CORRUPT = "Romeo and Juliet", "Henry and Juliet"


@pytest.fixture(scope="session")
def model() -> Model:
    return Model.load()


@pytest.fixture(scope="session")
def gpt2() -> Callable[..., Any]:
    """The JSON that the command prints."""

    def run(*arguments: str) -> Any:
        found = subprocess.run([COMMAND, *arguments, "--json", "--quiet"], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    return run


def safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    dtypes = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "U32": "<u4", "I64": "<i8"}
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            values = np.frombuffer(data[8 + length + start : 8 + length + end], dtypes[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def heads(report: list[dict[str, Any]], value: Callable[[dict[str, Any]], float], shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """A number of each head in the command's JSON, (L, H)."""
    found = np.full(shape, np.nan)
    for head in report:
        found[head["layer"], head["head"]] = value(head)
    return found
