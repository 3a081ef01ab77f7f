#!/usr/bin/env python3
"""Holds the head widths that we give to Candle's `sdpa` on Metal to the shaders in Candle's sources, on any machine.

    scripts/check_metal.py                the sources that Cargo.lock names, where cargo has put them
    scripts/check_metal.py --self-test    does it notice a width that no shader has?

A shader is looked up by a name that its width is part of, so that a wrong width fails only on a Mac. The kernel of one query
gives each of 32 lanes an equal part of a head. That of many queries leaves out keys unless it takes 32 of them at once.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
OURS = REPOSITORY / "crates/kernels/src/attention/run/metal.rs"
SHADERS = "src/metal_src/scaled_dot_product_attention.metal"
LANES = 32
DTYPES = {"float", "float16_t", "bfloat16_t"}


def our_widths(source: str) -> dict[str, set[int]]:
    """The two lists of widths in metal.rs."""
    found = {name: set(map(int, re.findall(r"\d+", widths))) for name, widths in re.findall(r"const (WIDTHS_\w+): \[usize; \d+\] = \[(.*?)\];", source)}
    if set(found) != {"WIDTHS_ONE", "WIDTHS_MANY"}:
        raise SystemExit(f"error: {OURS} has the lists {sorted(found)}")
    return found


def faults(ours: dict[str, set[int]], shaders: str, operations: str) -> list[str]:
    """What of our widths does not fit Candle's shaders and the widths that its `sdpa` lets through."""
    allowed = set(map(int, re.findall(r"\bq_head == (\d+)", operations)))
    one = set(map(int, re.findall(r"^\s*instantiate_sdpa_vector\(type, (\d+)\)", shaders, re.M)))
    # instantiate_attn(name, type, queries, keys, width, ..)
    many = {int(width) for keys, width in re.findall(r"instantiate_attn\(iname, itype, +\d+, +(\d+), +(\d+),", shaders) if int(keys) == LANES}
    if not (allowed and one and many):
        raise SystemExit("error: Candle's sources name their shaders in another way; read them again")
    wrong = [f"one query: no shader for {width}" for width in sorted(ours["WIDTHS_ONE"] - one)]
    wrong += [f"one query: {width} is no multiple of {LANES}" for width in sorted(ours["WIDTHS_ONE"]) if width % LANES]
    wrong += [f"many queries: no shader for {width} that takes {LANES} keys" for width in sorted(ours["WIDTHS_MANY"] - many)]
    wrong += [f"many queries: {width} could run, and is not in the list" for width in sorted(many - ours["WIDTHS_MANY"])]
    wrong += [f"sdpa refuses {width}" for width in sorted((ours["WIDTHS_ONE"] | ours["WIDTHS_MANY"]) - allowed)]
    types = set(re.findall(r"^instantiate_sdpa_vector_heads\((\w+)\)", shaders, re.M))
    wrong += [f"one query: no shader for {name}" for name in sorted(DTYPES - types)]
    return wrong


def sources() -> tuple[str, str]:
    """Candle's shaders, and its operations."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", "metal"]
    metadata = subprocess.run(command, cwd=REPOSITORY / "crates/kernels", stdout=subprocess.PIPE, check=True).stdout
    folders = {package["name"]: Path(package["manifest_path"]).parent for package in json.loads(metadata)["packages"]}
    return (folders["candle-metal-kernels"] / SHADERS).read_text(), (folders["candle-nn"] / "src/ops.rs").read_text()


def self_test() -> None:
    shaders, operations = sources()
    ours = our_widths(OURS.read_text())
    assert faults({**ours, "WIDTHS_ONE": {48}}, shaders, operations) == ["one query: no shader for 48", "one query: 48 is no multiple of 32", "sdpa refuses 48"]
    assert faults({**ours, "WIDTHS_ONE": {80}}, shaders, operations) == ["one query: 80 is no multiple of 32"]
    assert faults({**ours, "WIDTHS_MANY": {32, 64, 72, 80, 96, 128}}, shaders, operations) == ["many queries: no shader for 128 that takes 32 keys"]
    assert faults({**ours, "WIDTHS_MANY": {32, 64, 72, 96}}, shaders, operations) == ["many queries: 80 could run, and is not in the list"]
    assert faults(ours, shaders.replace("heads(bfloat16_t)", "heads(other)"), operations) == ["one query: no shader for bfloat16_t"]


def main() -> None:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    wrong = faults(our_widths(OURS.read_text()), *sources())
    if wrong:
        raise SystemExit("\n".join(["error: crates/kernels/src/attention/run/metal.rs does not fit Candle's shaders:", *wrong]))
    print("Metal: the widths of heads are those of Candle's shaders")


if __name__ == "__main__":
    main()
