"""Tables and pictures of the measurements."""

import sys
from collections.abc import Iterable
from pathlib import Path

from .processes import is_quiet
from .rows import SIDES


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def amount(value: float, unit: str = "") -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f} {unit}".rstrip()


def both(one: dict, unit: str) -> list[str]:
    return [amount(one[side], unit) for side in SIDES]


def ratio(one: dict, disturbed: bool) -> str:
    return amount(one["ratio"]) + ("*" if disturbed else "")


def table(markdown: bool, head: list[str], lines: Iterable[list[str]]) -> str:
    cells = [head, *lines]
    if markdown:
        cells.insert(1, ["---"] * len(head))
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    padded = ([c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths))] for line in cells)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def row_cells(row: dict) -> list[str]:
    aim = f"{'>=' if row['group'] == 'decode' else '<='} {row['aim']:.2f}"
    each = " ".join(ratio(one, not is_quiet(one)) for one in row["rounds"])
    met = {True: "yes", False: "NO", None: "disturbed"}[row["met"]]
    return [row["title"], *both(row, row["unit"]), ratio(row, row["disturbed"]), each, aim, met]


def peak_line(row: dict) -> str:
    """Speeds as parts of the machine's best; if its rounds differ much, so do these parts."""
    of, unit = {"fma_gflops": ("multiply-adds", "GFLOP/s"), "read_gb_s": ("memory reads", "GB/s")}[row["peak"]]
    if row["peak_range"] is None:
        return f"{row['title']}: part of the machine's {of} not measured"
    low, high = (amount(peak) for peak in row["peak_range"])
    ours, theirs = row["ours_of_peak"], row["pytorch_of_peak"]
    return (
        f"{row['title']}: {ours:.0%} of the machine's {of} (aim {row['peak_aim']:.0%}), PyTorch {theirs:.0%}; "
        f"rounds measured {low} to {high} {unit}"
    )


def sweep_cells(one: dict) -> list[str]:
    times = [*both(one, "ms"), ratio(one, one["disturbed"])] if "ratio" in one else ["-"] * 3
    above = one.get("above_t1")
    memory = [[amount(one["peak_bytes"][s] / 1e6, "MB"), amount(above[s] / 1e6, "MB") if above else "-"] for s in SIDES]
    return [str(one["tokens"]), *times, *memory[0], *memory[1]]


def thread_cells(one: dict) -> list[str]:
    ours, theirs = both(one, one["unit"])
    speeds = [f"{one[f'{side}_speed']:.2f} x" for side in SIDES]
    return [one["title"], str(one["threads"]), ours, speeds[0], theirs, speeds[1], ratio(one, one["disturbed"])]


def processor(report: dict) -> str:
    machine = report["machine"]
    best = next((name for name in ("avx512f", "avx2", "asimd") if name in machine["flags"]), "no vector flags")
    return f"{machine['cores']} cores of {machine['cpu']} ({'held to ' + report['isa'] if report['isa'] else best})"


def render(report: dict, markdown: bool) -> str:
    machine = report["machine"]
    parts = [
        f"{processor(report)}, {report['dtype']}, {report['threads']} threads, "
        f"torch {machine['torch']}, transformers {machine['transformers']}, {machine['date']}, "
        f"revision {machine['revision']}; rounds: {report['rounds']}" + ("; QUICK" if report["quick"] else "")
    ]
    if "+cu" in machine["torch"] and ("rows" in report or "sweep" in report):
        parts.append("PyTorch is a CUDA build: as a process it starts later and holds more than a CPU build would.")
    if "rows" in report:
        head = ["", "ours", "PyTorch", "ratio", "each round", "aim", "met"]
        parts.append(table(markdown, head, map(row_cells, report["rows"])))
        parts += [peak_line(row) for row in report["rows"] if row["peak_aim"]]
    if "sweep" in report:
        head = ["core, T", "ours", "PyTorch", "ratio", "our peak", "above T = 1", "PyTorch's peak", "above T = 1"]
        parts.append(table(markdown, head, map(sweep_cells, report["sweep"])))
    if "threads_sweep" in report:
        head = ["", "threads", "ours", "speed", "PyTorch", "speed", "ratio"]
        parts.append(table(markdown, head, map(thread_cells, report["threads_sweep"])))
    text = "\n\n".join(parts)
    return text + ("\n\n* disturbed by another program; counted only where no round was quiet" if "*" in text else "")


def draw(report: dict, file: Path) -> None:
    """Two panels, both logarithmic: time beside T², memory beside T."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [one for one in report["sweep"] if "ratio" in one]
    ts = [one["tokens"] for one in points]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.4), layout="constrained")
    for side, label, color in (("ours", "gpt2", "tab:red"), ("pytorch", "PyTorch sdpa", "tab:blue")):
        left.plot(ts, [one[side] for one in points], "o-", color=color, label=label)
        above = [max(one["above_t1"][side] / 1e6, 0.1) for one in points]
        right.plot(ts, above, "o-", color=color, label=f"{label}, above T = 1")
        whole = [one["peak_bytes"][side] / 1e6 for one in points]
        right.plot(ts, whole, ":", color=color, label=f"{label}, whole process")
    last = points[-1]
    for axis, power, end in ((left, 2, last["ours"]), (right, 1, last["above_t1"]["ours"] / 1e6)):
        label = "proportional to T" + ("²" if power == 2 else "")
        axis.plot(ts, [0.6 * end * (t / ts[-1]) ** power for t in ts], "--", color="gray", label=label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(ts, [str(t) for t in ts])
        axis.set_xlabel("T (tokens)")
        axis.grid(alpha=0.3)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=9, frameon=False)
    left.set(title="causal attention, B 1, H 12, D 64, f32", ylabel="milliseconds")
    right.set(title="peak resident memory of a fresh process", ylabel="MB")
    machine = report["machine"]
    about = f"{machine['cpu']}, {report['threads']} threads, torch {machine['torch']}, {machine['date']}"
    about += "; DISTURBED by another program" if any(one["disturbed"] for one in points) else ""
    figure.suptitle(about, fontsize=10)
    figure.savefig(file, dpi=130)
