"""What a notebook shows, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import TEXT

from gpt2_candle import Model


def test_attention_is_a_page_and_pictures(model: Model, tmp_path: Path) -> None:
    found = model.attention(TEXT)
    t = len(found.tokens)
    assert found.weights.shape == (4, 4, t, t)
    np.testing.assert_array_equal(found.weights[1], model(TEXT, output_attentions=True).attentions[1][0])
    np.testing.assert_array_equal(found.head(2, 1), found.weights[2, 1])
    assert found._repr_html_().startswith("<iframe") and "sandbox" in found._repr_html_()
    found.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>") and "Rome" in page
    starts = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}
    for ending, start in starts.items():
        found.save(tmp_path / f"all.{ending}")
        found.save(tmp_path / f"one.{ending}", layer=1, head=2)
        assert start in (tmp_path / f"all.{ending}").read_bytes()[:200]
        assert start in (tmp_path / f"one.{ending}").read_bytes()[:200]
    with pytest.raises(ValueError, match="png, .svg or .pdf|svg"):
        found.save(tmp_path / "all.jpeg")
    with pytest.raises(ValueError, match="both layer and head"):
        found.save(tmp_path / "one.svg", layer=1)
    assert not (tmp_path / "all.jpeg").exists()


def test_two_runs_stand_beside_each_other(model: Model) -> None:
    found = model.attention(TEXT, compare=True, ablate="0.3")
    assert found.interventions == ["ablate 0.3"]
    assert '"plain"' in found.page() and "ablate 0.3" in found.page()
    with pytest.raises(ValueError, match="nothing to compare"):
        model.attention(TEXT, compare=True)


def test_a_map_is_a_table_and_a_picture(model: Model, tmp_path: Path) -> None:
    effects = model.effects(TEXT, " thou")
    one = effects["change"]
    assert one.top(1)[0] == ("0.2", float(one.values[0, 2]))
    assert one["0.2"] == one[0, 2] == one.values[0, 2] and one[0].shape == one.values[0].shape
    for wrong in ("0", "0.99", "0.1.2", "a.b", "0.-1", ""):
        with pytest.raises(KeyError, match="expected a place"):
            one[wrong]
    one.save(tmp_path / "effects.svg")
    assert (tmp_path / "effects.svg").read_bytes().startswith(b"<svg")
    assert "<svg" in effects._repr_html_()
    model.effects(TEXT, " thou", scale={"1.0": 0.5})["change"].save(tmp_path / "scaled.svg")
    scaled = (tmp_path / "scaled.svg").read_text()
    assert "scale 1.0=0.5" in scaled and str(model.tokenizer.encode(TEXT)[1]) in scaled
    assert "0.2" in repr(one) and "plain" in repr(effects)
    np.testing.assert_array_equal(np.asarray(one), effects.change)
    pandas = pytest.importorskip("pandas")
    table = one.to_pandas()
    assert isinstance(table, pandas.DataFrame) and table.loc[0, 2] == one.values[0, 2]
    assert table.index.name == "layer" and table.columns.name == "head"
    assert len(effects.to_pandas()) == 16


def test_numbers_of_ones_own_are_a_map(model: Model) -> None:
    values = np.arange(8).reshape(2, 4)
    found = model.map(values, "means", ("layer", "position"), unit="nats")
    assert found.top(1) == [("1.3", 7.0)] and found.axes == ("layer", "position")
    assert "means" in found._repr_html_() and "position" in found._repr_html_()
    assert "<svg" in model.map([1.0, 2.0, 3.0], axes=["head"])._repr_html_()
    for wrong in (values[0], [], 1.0):
        with pytest.raises(ValueError, match="expected an axis each for layer, head"):
            model.map(wrong)
