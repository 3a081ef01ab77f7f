"""The examples of the docs and the notebooks run, in an empty folder."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
PAGES = [ROOT / "docs/python.md", ROOT / "crates/python/README.md", ROOT / "README.md"]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def cells(notebook: Path) -> list[str]:
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for cell in found:
        assert not cell.get("outputs"), f"{notebook.name}: clear its outputs"
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def shown(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; what a notebook would show of it."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]
    for form in ("_repr_html_", "_repr_svg_", "__repr__"):
        if hasattr(value, form):
            getattr(value, form)()
    return value


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield
    os.chdir(before)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, capsys: Any) -> None:
    found = blocks(page)
    assert found, f"{page}: no example"
    names: dict[str, Any] = {}
    for block in found:
        shown(block, names)


def test_each_notebook_has_a_test_below() -> None:
    tested = ["feature_circuit", "finetune_lora", "first_look", "greater_than", "induction", "ioi", "transformerlens_demo"]
    assert [notebook.stem for notebook in NOTEBOOKS] == tested


def test_the_first_look() -> None:
    names: dict[str, Any] = {}
    values = [shown(cell, names) for cell in cells(ROOT / "docs/notebooks/first_look.ipynb")]
    assert any("<iframe" in value._repr_html_() for value in values if hasattr(value, "_repr_html_"))
    assert dict(names["scores"]["previous_token"].top(1))["0.3"] > 0.9, "the text says that head 0.3 is one"
    assert names["model"].effects(names["prompt"], names["answer"])["change"].top(1)[0][0] == "0.2", "the text switches it off"


def test_the_introduction_of_transformerlens() -> None:
    names: dict[str, Any] = {}
    for cell in cells(ROOT / "docs/notebooks/transformerlens_demo.ipynb"):
        shown(cell, names)
    assert names["ablated"] != names["original"]
    assert names["induction"].max() > 0.8, "the demo model has induction heads"


def test_fine_tuning() -> None:
    names: dict[str, Any] = {}
    values = [shown(cell, names) for cell in cells(ROOT / "docs/notebooks/finetune_lora.ipynb")]
    assert "I am not here" in names["after"] and "I am not here" not in names["before"]
    assert values[-1] is True


def run(name: str) -> tuple[list[Any], dict[str, Any]]:
    """What the cells of a notebook show, and their names."""
    names: dict[str, Any] = {}
    return [shown(cell, names) for cell in cells(ROOT / f"docs/notebooks/{name}.ipynb")], names


def test_indirect_object_identification() -> None:
    _, names = run("ioi")
    assert names["difference"].mean() < -1 and (names["difference"] > 0).mean() == 0.2, "the text says that the model fails"
    for found in (names["direct"], names["patched"]):
        assert {place for place, _ in found.top(3)} == {"1.2", "3.0", "3.1"}, "the text names them"
    in_text = names["weights"][[1, 3, 3], [2, 0, 1]][:, names["at"]]
    assert (in_text[:, [0, 2]].sum(axis=1) > in_text[:, 1]).all(), "the name that comes twice gets more"
    largest = sorted((one["lost"]["mean"], one["path"]) for one in names["lost"])[-4:]
    assert [path for _, path in largest] == [f"{sender}->3.0.v,3.1.v" for sender in ("2.mlp", "1.mlp", "embed", "0.mlp")]
    streams = names["streams"][:, -1]
    assert 0.4 < streams[2] < 0.5 and abs(names["by_head"][:, :, names["at"][-1]]).max() < 0.06


def test_greater_than() -> None:
    values, names = run("greater_than")
    assert names["heads"].top(1)[0][0] == "3.0" and names["scores"].top(1)[0][0] == ("3.0", "logits")
    assert len(names["circuit"]) / names["found"]["all_edges"] < 1 / 6 and names["circuit"].faithfulness >= 0.9
    assert abs(names["found"]["circuit"]["random"]["mean"]) < 0.05 and abs(names["found"]["circuit"]["rest"]) < 0.05
    assert 0.85 < values[-2]["faithfulness"] < 0.95, "nine tenths in another sentence"
    logits = names["model"](names["thy"]).logits.astype(np.float64)
    step = np.random.default_rng(0).normal(size=logits.shape) * 1e-4
    ahead, behind = (names["right_less_wrong"](logits + sign * step)[0] for sign in (1, -1))
    assert np.isclose((names["right_less_wrong"](logits)[1] * step).sum(), (ahead - behind) / 2, rtol=1e-4), "the gradient is the metric's"


def test_induction() -> None:
    values, names = run("induction")
    assert names["is_induction"].sum() == 9 and names["scores"]["previous_token"].top(1)[0][0] == "0.3"
    assert names["total"][0, 3] == names["total"].min() and (names["stripe"][names["is_induction"]] > 0).sum() == 7
    change = names["effects"].change
    assert change[0, 3] < -13 and change[names["is_induction"]].min() > -0.6, "0.3 alone, no other alone"
    assert any(isinstance(value, float) and abs(value) < 0.2 for value in values), "all nine together"
    scores = next(value for value in values if isinstance(value, dict) and "k" in value)
    assert scores["k"]["0.3"] > 1.3 * scores["k"]["others"] and scores["q"]["0.3"] < 1.1 * scores["q"]["others"]
    copying = next(value for value in values if isinstance(value, dict) and "3.3" in value)
    assert sorted(head for head, score in copying.items() if score > 0.2) == ["3.0", "3.3"]


def test_a_circuit_of_features() -> None:
    values, names = run("feature_circuit")
    assert names["places"][0] == "288@5" and len(names["places"]) == 96
    assert np.corrcoef(names["estimated"], names["measured"])[0, 1] > 0.95, "the text calls the estimate good"
    kept = names["faithfulness"]
    assert kept[1] > 0.75 and kept[2] < kept[1] and kept[8] > 0.95 and abs(names["nothing"]) < 0.1
    assert names["inputs"](names["output"])[0][0].startswith("error") and names["inputs"](names["walk"][-1])[0][1] == " thou"
    assert 0.4 < values[-1] < 0.9, "the graph and the ablations agree in part"
    assert Path("thou.html").exists()
