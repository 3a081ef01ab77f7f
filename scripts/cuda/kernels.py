#!/usr/bin/env python3
"""What our CUDA kernels cost on each GPU, from a real nvcc's machine code; fails if one gets worse. Needs no GPU.

    scripts/cuda/toolkit.sh && scripts/cuda/kernels.py          for capabilities 8.0 and 9.0
    scripts/cuda/kernels.py 75 80 90 --write-limits             accept today's numbers
    scripts/cuda/kernels.py --self-test                         its own tests, without a toolkit

The table has a kernel's registers, spilled bytes, instructions, tensor-core instructions (HMMA), accesses to local
memory, bytes of shared memory, and computed occupancy: how many blocks a multiprocessor holds at once, and the share in
percent of the warps that it can hold. A kernel with 0 blocks is too large for that GPU. The script fails if a kernel
spills, accesses local memory, multiplies halves without tensor cores, or passes a limit in limits.json: the most
registers and instructions, and the fewest blocks. nvcc and nvdisasm come from CUDA_HOME.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SOURCES = REPOSITORY / "crates/kernels/cuda"
LIMITS = Path(__file__).with_name("limits.json")
HALVES = re.compile(r"(attention|gradient)_(\w+_)?b?f16_")
Limits = dict[str, dict[str, list[int]]]  # by kernel and capability
# What a multiprocessor holds, and the bytes of shared memory that a block takes on top and in steps of.
Gpu = NamedTuple("Gpu", warps=int, blocks=int, shared=int, reserved=int, step=int)
# From cuda_occupancy.h in the toolkit's include folder, which is NVIDIA's occupancy calculator as code (CUDA 13.0), and
# from the sections "Occupancy" and "Unified Shared Memory" of NVIDIA's Turing, Ampere and Hopper tuning guides.
GPUS = {
    75: Gpu(warps=32, blocks=16, shared=64 << 10, reserved=0, step=256),
    80: Gpu(warps=64, blocks=32, shared=164 << 10, reserved=1 << 10, step=128),
    90: Gpu(warps=64, blocks=32, shared=228 << 10, reserved=1 << 10, step=128),
}
PARTITIONS, REGISTERS, REGISTER_STEP = 4, 65536 // 4, 256  # each partition gives its warps registers in such steps


def up(number: int, step: int) -> int:
    return -(-number // step) * step


def blocks_at_once(gpu: Gpu, threads: int, registers: int, shared: int) -> int:
    """How many blocks a multiprocessor holds at once."""
    warps, bytes_each = up(threads, 32) // 32, up(shared + gpu.reserved, gpu.step)
    by_registers = REGISTERS // up(registers * 32, REGISTER_STEP) * PARTITIONS // warps
    by_shared = gpu.shared // bytes_each if bytes_each else gpu.blocks
    return min(by_registers, by_shared, gpu.warps // warps, gpu.blocks)


def planned_shared(kernel: str, sm: int) -> int:
    """The bytes of shared memory that our Rust code asks for at launch: the same formulas as in Plan and BackwardPlan
    (crates/kernels/src/attention/cuda/plan.rs) and in the launches in crates/kernels/src/gpu. Change both together."""
    if re.match("delta_|embed_|layer_norm_|finish_|cross_entropy_", kernel):
        return 256 // 32 * 4 if kernel.startswith("cross_entropy_") else 0
    if kernel.startswith("candidates_"):
        return 12816
    if kernel.startswith("product_"):
        return (8192 // 4 * 5 + (2 + 8 * 8) * 8) * 4
    names = re.fullmatch(r"(attention|attention_masked|gradient_of_\w+|decode)_(b?f16|f32)_d(\d+)(?:_q(\d+))?", kernel)
    if names is None:
        raise SystemExit(f"error: planned_shared() in {__file__} does not know `{kernel}`; add its launch's formula")
    task, f32, d = names[1], names[2] == "f32", int(names[3])
    narrow = d > 64 or (sm < 80 and task.startswith("gradient"))
    size, others = (4, 32) if f32 else (2, 32 if narrow else 64)
    if task == "decode":
        return 128 // (1 << (d * size // 16 - 1).bit_length()) * (2 + d) * 4
    own = int(names[4] or 64)
    bits = 2 * own * others // 8
    if task.startswith("attention"):
        rows = ((own + 2 * others) * (d + 4) + own * 36) * 4 if f32 else (own + 4 * others) * (d + 8) * 2
        return rows + (bits if task == "attention_masked" else 0)
    queries = own if task == "gradient_of_queries" else others
    if f32:
        return ((2 * own + 2 * others) * (d + 4) + 2 * own * 36) * 4 + 2 * queries * 4 + bits
    return (2 * own + 4 * others) * (d + 8) * 2 + 4 * queries * 4 + bits


@dataclass
class Kernel:
    file: str
    kernel: str
    sm: int
    registers: int = 0
    spilled: int = 0
    instructions: int = 0
    HMMA: int = 0
    local: int = 0
    shared: int = 0
    blocks: int = 0
    occupancy: float = 0


def run(name: str, *words: str) -> subprocess.CompletedProcess:
    path = Path(os.environ.get("CUDA_HOME") or REPOSITORY / "target/cuda/toolkit") / "bin" / name
    if not path.exists():
        raise SystemExit(f"error: there is no {path}; run scripts/cuda/toolkit.sh, or set CUDA_HOME to a whole toolkit")
    done = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {name} {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done


def measure(source: Path, sm: int, folder: str) -> list[Kernel]:
    """All kernels of a source file."""
    cubin, flags = f"{folder}/{source.stem}.{sm}", "-std=c++17 -O3 --cubin -Werror all-warnings -Xptxas -v".split()
    found: dict[str, Kernel] = {}
    for line in run("nvcc", *flags, f"-arch=sm_{sm}", str(source), "-o", cubin).stderr.splitlines():
        if begun := re.search(r"Compiling entry function '(\w+)'", line):
            now = found[begun[1]] = Kernel(source.name, begun[1], sm, shared=planned_shared(begun[1], sm))
        elif spills := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            now.spilled += int(spills[1]) + int(spills[2])
        elif used := re.search(r"Used (\d+) registers", line):
            now.registers, fixed = int(used[1]), re.search(r"(\d+) bytes smem", line)
            now.shared += int(fixed[1]) if fixed else 0
    threads, kind, of, attribute = {}, "", "", ""
    for line in run("nvdisasm", cubin).stdout.splitlines():
        if begun := re.match(r"\s*\.section\s+(\.text|\.nv\.info)?\.?([\w.]+)", line):
            kind, of = begun[1], begun[2]
        elif begun := re.search(r"nvinfo : (\w+)", line):
            attribute = begun[1]
        elif kind == ".nv.info" and attribute == "EIATTR_MAX_THREADS":
            if number := re.search(r"\.word\s+0x(\w+)", line):
                threads.setdefault(of, int(number[1], 16))  # of three dimensions, the first
        elif kind == ".text" and (instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*)", line)):
            found[of].instructions += 1
            found[of].HMMA += bool(re.search(r"\bHMMA\.", instruction[1]))
            found[of].local += bool(re.search(r"\b(LDL|STL)\b", instruction[1]))
    for name, one in found.items():
        one.blocks = blocks_at_once(GPUS[sm], threads[name], one.registers, one.shared)
        one.occupancy = round(100 * one.blocks * threads[name] / 32 / GPUS[sm].warps, 1)
    return list(found.values())


def problems(kernels: list[Kernel], limits: Limits) -> list[str]:
    """What is wrong, each with the kernel and the number."""
    wrong = []
    for one in kernels:
        limit = limits.get(one.kernel, {}).get(str(one.sm))
        registers, instructions, blocks = limit or (10**9, 10**9, 0)
        found = {
            f"is not in {LIMITS.name}": limit is None,
            f"spills {one.spilled} bytes of registers": one.spilled > 0,
            f"accesses local memory {one.local} times": one.local > 0,
            f"has {one.HMMA} tensor-core instructions": HALVES.match(one.kernel) and one.HMMA == 0,
            f"uses {one.registers} registers, more than {registers}": one.registers > registers,
            f"has {one.instructions} instructions, more than {instructions}": one.instructions > instructions,
            f"has room for {one.blocks} blocks at once, fewer than {blocks}": one.blocks < blocks,
        }
        wrong += [f"{one.file}: {one.kernel} on sm_{one.sm} {what}" for what, holds in found.items() if holds]
    there, measured = {(one.kernel, str(one.sm)) for one in kernels}, {str(one.sm) for one in kernels}
    listed = {(kernel, sm) for kernel, of in limits.items() for sm in measured.intersection(of)}
    return wrong + [f"{LIMITS.name}: no source file has {kernel} on sm_{sm}" for kernel, sm in sorted(listed - there)]


def write_limits(kernels: list[Kernel], limits: Limits) -> Limits:
    """Replaces the limits of the capabilities that were measured: today's numbers, and 3 % more instructions."""
    measured = {str(one.sm) for one in kernels}
    new = {kernel: {sm: limit for sm, limit in of.items() if sm not in measured} for kernel, of in limits.items()}
    for one in kernels:
        instructions = up(one.instructions * 103, 100) // 100
        new.setdefault(one.kernel, {})[str(one.sm)] = [one.registers, instructions, one.blocks]
    lines = [f'  "{kernel}": {json.dumps(new[kernel], sort_keys=True)}' for kernel in sorted(new) if new[kernel]]
    LIMITS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return new


def self_test() -> None:
    # By hand: (128 + 4·64) rows of 64 + 8 halves; (2·64 + 2·32) rows of 80 + 4 floats, 2·64 of 36, 2·32 floats and
    # 2·32·64 bits; 8 groups of 16 lanes, which is 10 rounded up, with 82 floats each.
    kernels = ["attention_f16_d64_q128", "gradient_of_keys_f32_d80", "decode_bf16_d80"]
    assert [planned_shared(kernel, 90) for kernel in kernels] == [55_296, 83_712, 2_624]
    # The CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers, on a GPU with 8.0's warps and registers,
    # give 12 blocks of 128 threads or 4 of 320. The tuning guides: a block can have 64 KB on 7.5, 163 KB on 8.0, 227 KB
    # on 9.0. The last two are what a program found that calls cuda_occupancy.h.
    for sm, threads, registers, shared, blocks in [
        (80, 128, 37, 0, 12), (80, 320, 37, 0, 4), (75, 128, 32, 64 << 10, 1), (75, 128, 32, (64 << 10) + 1, 0),
        (80, 128, 32, 163 << 10, 1), (80, 128, 32, (163 << 10) + 1, 0), (90, 128, 32, 227 << 10, 1),
        (90, 128, 32, (227 << 10) + 1, 0), (80, 128, 96, 24_258, 5), (90, 128, 48, 70_286, 3),
    ]:  # fmt: skip
        assert blocks_at_once(GPUS[sm], threads, registers, shared) == blocks, (sm, threads, registers, shared)
    one = Kernel("a.cu", "attention_f16_d64_q64", 80, registers=9, spilled=4, instructions=10, local=1, blocks=2)
    assert len(problems([one], {one.kernel: {"80": [8, 9, 3]}, "gone": {"80": [8, 9, 3]}})) == 7
    assert len(problems([one], {})) == 4
    assert not problems([Kernel("a.cu", "a", 80, 8, 0, 9, blocks=3)], {"a": {"80": [8, 9, 3], "90": [7, 8, 4]}})
    print("kernels: shared memory, blocks at once and limits: all as expected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capabilities", nargs="*", type=int, metavar="CAPABILITY", help="75, 80 or 90 (default: 80 90)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write-limits", action="store_true", help="write limits.json from today's numbers")
    parser.add_argument("--self-test", action="store_true", help="test this script")
    given = parser.parse_args()
    if given.self_test:
        return self_test()
    if unknown := set(given.capabilities) - set(GPUS):
        parser.error(f"capability {unknown.pop()}: only {', '.join(map(str, GPUS))} are in this script's table GPUS")
    chosen = set(given.capabilities or [80, 90])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(measure, source, sm, folder) for source in SOURCES.glob("*.cu") for sm in chosen]
        kernels = [kernel for job in jobs for kernel in job.result()]
    kernels.sort(key=lambda one: (one.file, one.kernel, one.sm))
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    if given.write_limits:
        limits = write_limits(kernels, limits)
    if given.json:
        print(json.dumps([asdict(one) for one in kernels], indent=1))
    else:
        rows = [[str(x) for x in row] for row in [asdict(kernels[0]), *(asdict(one).values() for one in kernels)]]
        widths = [max(map(len, column)) for column in zip(*rows)]
        for a, b, *numbers in rows:
            print(a.ljust(widths[0]), b.ljust(widths[1]), *map(str.rjust, numbers, widths[2:]), sep="  ")
    if wrong := problems(kernels, limits):
        wrong.append("mend the kernel, or accept it with --write-limits; another nvcc than toolkit.sh's also differs")
        sys.exit("\n".join(f"error: {one}" for one in wrong))


if __name__ == "__main__":
    main()
