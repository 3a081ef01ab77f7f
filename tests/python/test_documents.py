"""The examples of the docs and the notebooks run, in an empty folder."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def test_there_are_three_notebooks() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["finetune_lora", "first_look", "transformerlens_demo"]


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
