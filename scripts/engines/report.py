"""The plan, the tables and the picture."""

from pathlib import Path
from textwrap import fill

from bench.report import amount, processor, table

from .measure import beside
from .processes import PYTHON, Binary
from .rows import COLUMNS, INSTALL, OURS, Column, Row, installed


def plan(binary: Binary, columns: list[Column], rows: list[Row], rounds: int) -> str:
    """What a run would do, without doing it."""

    def count(number: int, what: str) -> str:
        return f"{number} {what}{'' if number == 1 else 's'}"

    def named(column: Column) -> str:
        return f"{column.title} (not installed)" if column.missing() else column.title

    lines = [f"{count(rounds, 'round')}, {count(binary.threads, 'thread')}, in turn:"]
    for row in rows:
        theirs = [column for column in columns if column.runs(row)]
        lines.append(f"  {row.name}: {row.label}, {count(row.runs, 'timed run')} a round")
        for ours in dict.fromkeys(beside(row, column.ours) for column in theirs):
            others = ", ".join(named(column) for column in theirs if beside(row, column.ours) == ours)
            command = binary.command(row, ours)
            lines += [f"    {' '.join(map(str, command))}", f"      beside {others}"]
    lines.append("engines:")
    for column in COLUMNS:
        lacking = column.missing()
        found = ", ".join(f"{package} {installed(package)}" for package in column.packages if package not in lacking)
        state = f"not installed: pip install {' '.join(lacking)}" if lacking else found
        lines.append(f"  {column.title}: {state}" + ("" if column in columns else "; not asked for"))
    python = " ".join(PYTHON)
    lines.append(f"each in a process of its own: {python} --serve ENGINE FORM {binary.folder} {binary.threads}")
    lines.append(f"all engines at once: {INSTALL}")
    return "\n".join(lines)


def figures(cell: dict, which: str) -> str:
    return f"{amount(cell['ours'][which])} / {amount(cell['theirs'][which])}"


def disturbed(cell: dict) -> bool:
    return cell["ours"]["disturbed"] or cell["theirs"]["disturbed"]


def shown_ratio(cell: dict, report: dict) -> str:
    note = "†" if cell["column"] in report["beyond"] else ""
    return amount(cell["ratio"]) + note + ("*" if disturbed(cell) else "")


def label(row: dict) -> str:
    return f"{row['label']}, {row['unit']}"


def by_engine(report: dict) -> str:
    """One table for each form of ours: a line for each row, a column for each engine."""
    parts = []
    for form in OURS:
        cells = [cell for cell in report["cells"] if cell["form"] == form]
        columns = list(dict.fromkeys(cell["column"] for cell in cells))
        lines = {label(cell["row"]): {} for cell in cells}
        for cell in cells:
            text = f"{figures(cell, 'fastest')} = {shown_ratio(cell, report)} ({figures(cell, 'median')})"
            lines[label(cell["row"])][cell["column"]] = text
        if cells:
            filled = [[row, *(found.get(column, "") for column in columns)] for row, found in lines.items()]
            parts.append(table(True, [f"ours in {form}", *columns], filled))
    return "\n\n".join(parts)


def by_cell(report: dict) -> str:
    head = ["", "engine", "ours in", "ours", "median", "theirs", "median", "ratio"]
    lines = []
    for cell in report["cells"]:
        times = [amount(cell[side][which]) for side in ("ours", "theirs") for which in ("fastest", "median")]
        lines.append([label(cell["row"]), cell["column"], cell["beside"], *times, shown_ratio(cell, report)])
    return table(False, head, lines)


def render(report: dict, markdown: bool) -> str:
    machine = report["machine"]
    versions = ", ".join(f"{package} {found}" for package, found in report["versions"].items())
    parts = [
        f"{processor(report)}, {report['threads']} threads, {machine['date']}, revision "
        f"{machine['revision']}, {versions}; rounds: {report['rounds']}" + ("; QUICK" if report["quick"] else ""),
        "ours / theirs = ratio of the fastest runs (medians)." if markdown else "ratio: of the fastest runs.",
        by_engine(report) if markdown else by_cell(report),
    ]
    lines = [
        [title, f"{found['logits']:.1e}", f"{found['equal_ids']} of {found['ids']}"] for title, found in report["agreement"].items()
    ]
    parts.append(table(markdown, ["beside our f32", "largest difference of logits", "greedy ids equal"], lines))
    parts += [f"left out: {why}" for why in report["refused"]]
    parts += [f"† not held to {report['isa']}: {why}" for why in dict.fromkeys(report["beyond"].values())]
    parts += [NOTES]
    if any(disturbed(cell) for cell in report["cells"]):
        parts.append("* disturbed by another program in every round: not a measurement. Run it on an idle machine.")
    return "\n\n".join(parts)


NOTES = (
    "Less is better; a median is that of the rounds' medians. CTranslate2 has no call for the last logits alone: there it generates "
    "one token. ONNX Runtime, OpenVINO and llama.cpp fill a cache in a forward pass. A start of llama.cpp is without Python's and its "
    "package's. Memory is of the whole process, with Python and the packages on their side; a CUDA build of PyTorch takes more than "
    "a CPU build. torch.compile's time to compile is not counted."
)


def draw(report: dict, file: Path) -> None:
    """Bars of our time divided by theirs: a panel for each row."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    rows = list(dict.fromkeys(label(cell["row"]) for cell in report["cells"]))
    across = min(3, len(rows))
    down = -(-len(rows) // across)
    size = (5.5 * across, 3.6 * down)
    figure, axes = pyplot.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
    for row, axis in zip(rows, axes.flat):
        cells = [cell for cell in report["cells"] if label(cell["row"]) == row][::-1]
        ratios = [cell["ratio"] for cell in cells]
        names = [f"{cell['column']} (ours: {cell['beside']})" for cell in cells]
        bars = axis.barh(names, ratios, color=["tab:blue" if ratio <= 1 else "tab:orange" for ratio in ratios])
        axis.bar_label(bars, [shown_ratio(cell, report) for cell in cells], padding=2, fontsize=8)
        axis.axvline(1, color="gray", linewidth=1)
        axis.set_xlim(0, 1.2 * max(1.0, *ratios))
        axis.set_title(fill(row, 36), fontsize=10)
        axis.tick_params(labelsize=8)
    machine = report["machine"]
    about = f"ours / theirs, fastest runs, less is better; {machine['cpu']}, {report['threads']} threads, {machine['date']}"
    figure.suptitle(about + ("; * disturbed by another program" if any(map(disturbed, report["cells"])) else ""), fontsize=10)
    figure.savefig(file, dpi=130)
