"""The processed view against TransformerLens' HookedTransformer in f64 (tests/data/circuits/processed.safetensors), texts with and
without the model's first token, and what docs say of both."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from conftest import CORRUPT, DATA, ROOT, TEXT, safetensors

from gpt2_candle import Model

# Both sides compute in f64, in another order: the largest error that we have seen is 3e-15 of the largest value.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
FOLDER = DATA / "circuits/model"


@pytest.fixture(scope="module")
def known() -> dict[str, np.ndarray[Any, Any]]:
    return safetensors(DATA / "circuits/processed.safetensors")


@pytest.fixture(scope="module")
def processed() -> Model:
    return Model.load(FOLDER, dtype="f64", processed=True)


def test_every_value_of_the_processed_view_is_hooked_transformer_s(processed: Model, known: dict[str, Any]) -> None:
    logits, cache = processed.run_with_cache(known["ids"])
    np.testing.assert_allclose(logits, known["logits"], **CLOSE)
    seen = 0
    for name, expected in known.items():
        if not name.startswith(("blocks.", "hook_", "ln_final.")) or name not in cache:
            continue
        found = cache[name]
        if "attn_scores" in name:  # masked scores are -inf, and 0 in the file
            visible = np.tril(np.ones(found.shape[-2:], bool))
            found, expected = found[..., visible], expected[..., visible]
        np.testing.assert_allclose(np.broadcast_to(found, expected.shape), expected, err_msg=name, **CLOSE)
        seen += 1
    # All points of TransformerLens' default: 17 in each of 3 layers, and 4 others.
    assert seen == 3 * 17 + 4, seen


def test_weights_of_both_views_are_hooked_transformer_s(processed: Model, known: dict[str, Any]) -> None:
    plain = Model.load(FOLDER, dtype="f64")
    for name in ("W_E", "W_pos", "W_U", "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "W_in", "b_in", "W_out", "b_out"):
        np.testing.assert_allclose(getattr(processed, name), known[name], err_msg=name, **CLOSE)
        np.testing.assert_allclose(getattr(plain, name), known[f"plain/{name}"], err_msg=name, **CLOSE)
    np.testing.assert_allclose(processed.b_U, known["b_U"], **CLOSE)
    assert not plain.b_U.any()
    with pytest.raises(ValueError, match="read-only"):
        processed.W_Q[0] = 0


def test_the_docs_table_of_differences_is_what_both_views_show(processed: Model, known: dict[str, Any]) -> None:
    """Each line of the table: points, and the largest difference relative to the largest number there."""
    plain = Model.load(FOLDER, dtype="f64")
    (_, a), (_, b) = (model.run_with_cache(known["ids"]) for model in (processed, plain))
    text = (ROOT / "docs/python.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \| ([\d.e+-]+) \| ", text, re.MULTILINE)
    assert len(rows) >= 6, rows
    for names, shown in rows:
        found = []
        for name in re.findall(r"`([^`]+)`", names):
            keys = [key for key in known if key == f"differences/{name}" or (key.startswith("differences/blocks.") and key.endswith(f".{name}"))]
            assert keys, name
            for key in keys:
                at = key.removeprefix("differences/")
                expected = float(known[key])
                # In this package, `hook_normalized` has the same meaning in both views.
                if at in a and not at.endswith("hook_normalized") and "scores" not in at:
                    measured = float(np.abs(a[at] - b[at]).max() / np.abs(b[at]).max())
                    assert abs(measured - expected) < 1e-9, at
                found.append(expected)
        if float(shown) == 0:
            assert max(found) < 1e-13, (names, max(found))  # rounding in f64
        else:
            assert f"{max(found):.0e}" == f"{float(shown):.0e}", (names, max(found), shown)


def test_the_processed_demo_predicts_the_same(model: Model) -> None:
    processed = Model.load(processed=True)
    plain, other = model(TEXT, loss=True), processed(TEXT, loss=True)
    assert plain.loss is not None and other.loss is not None
    # One number for each position, in f32: 20 logits lose up to 1e-5 of themselves.
    moved = plain.logits - other.logits
    assert np.abs(moved - moved.mean(-1, keepdims=True)).max() < 1e-4
    assert np.abs(moved).max() > 1e-2, "the views do not differ"
    assert np.isclose(plain.loss, other.loss, rtol=1e-6)
    assert processed.generate(TEXT, greedy=True, max_new_tokens=8).text == model.generate(TEXT, greedy=True, max_new_tokens=8).text
    np.testing.assert_allclose(processed.direct(TEXT, " thou").heads, model.direct(TEXT, " thou").heads, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(processed.direct(TEXT, " thou").total, model.direct(TEXT, " thou").total, rtol=1e-5)


def test_direct_says_which_view_it_shows(model: Model, processed: Model) -> None:
    assert model.direct(TEXT, " thou").view.startswith("processed view")
    assert model.direct(TEXT, " thou", raw=True).view.startswith("raw view")
    assert processed.direct([1, 2, 3], 7, raw=True).view.startswith("processed view")
    assert "processed view" in repr(model.direct(TEXT, " thou"))


def test_the_command_shows_the_processed_view(model: Model, gpt2: Any) -> None:
    report = gpt2("forward", TEXT, "--processed")
    assert report["provenance"]["processed"] is True
    assert np.isclose(report["perplexity"], np.exp(model(TEXT, return_type="loss")), rtol=1e-5)
    assert "processed" not in gpt2("forward", TEXT)["provenance"]


def test_processed_weights_are_neither_saved_nor_trained(processed: Model, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="load it without processed=True"):
        processed.save(tmp_path / "model")
    with pytest.raises(ValueError, match="load it without processed=True"):
        processed.quantize(tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="processed weights are dense"):
        Model.load(processed=True, quantize="q8_0")


def test_the_first_token_stands_before_texts_that_ask_for_it(model: Model, gpt2: Any) -> None:
    bos = model.config["bos_token_id"]
    ids = model.tokenizer.encode(TEXT)
    default = Model.load(prepend_bos=True)
    assert model.to_tokens(TEXT).tolist() == [ids]
    assert model.to_tokens(TEXT, prepend_bos=True).tolist() == [[bos, *ids]] == default.to_tokens(TEXT).tolist()
    assert default.to_tokens(TEXT, prepend_bos=False).tolist() == [ids] == default.to_tokens(ids).tolist()
    assert (model.cfg.default_prepend_bos, default.cfg.default_prepend_bos) == (False, True)
    expected = model([bos, *ids]).logits
    for found in (model(TEXT, prepend_bos=True), default(TEXT), model([TEXT], prepend_bos=True)):
        np.testing.assert_array_equal(found.logits, expected)
    assert gpt2("forward", TEXT, "--prepend-bos")["provenance"]["ids"] == [bos, *ids]
    # The other text of an intervention is read as the text is.
    patched = model(TEXT, prepend_bos=True, patch=(1, 2), from_prompt=TEXT.replace("Romeo,", "Romeo."))
    assert patched.logits.shape[1] == len(ids) + 1


def test_every_method_that_takes_text_can_prepend(model: Model) -> None:
    bos, ids = model.config["bos_token_id"], model.tokenizer.encode(TEXT)
    given = [bos, *ids]
    both: dict[str, Any] = {
        "lens": lambda text, **more: model.lens_logits(text, **more),
        "direct": lambda text, **more: model.direct(text, " thou", **more).heads,
        "effects": lambda text, **more: model.effects(text, " thou", **more).change,
        "rollout": lambda text, **more: model.rollout(text, **more),
        "attention": lambda text, **more: model.attention(text, **more).weights,
        "forward": lambda text, **more: model.forward(text, **more).logits,
        "score": lambda text, **more: model.score(text, **more)[0],
        "grad": lambda text, **more: model.grad(text, "blocks.2.hook_resid_pre", " thou", **more)["blocks.2.hook_resid_pre"][1],
        "cache": lambda text, **more: model.run_with_cache(text, **more)[1]["z", 0],
        "generate": lambda text, **more: model.generate(text, greedy=True, max_new_tokens=4, **more).ids,
    }
    for name, run in both.items():
        np.testing.assert_array_equal(run(TEXT, prepend_bos=True), run(given), err_msg=name)
    pair = ("Romeo and Juliet", CORRUPT)
    ids_of_pair = [[bos, *model.tokenizer.encode(text)] for text in pair]
    for method in (model.patching, model.attribution):
        np.testing.assert_array_equal(method(*pair, " the", prepend_bos=True).heads, method(*ids_of_pair, " the").heads)
    np.testing.assert_array_equal(model.edge_scores(*pair, " the", " thou", prepend_bos=True).array, model.edge_scores(*ids_of_pair, " the", " thou").array)


def test_a_model_without_a_first_token_says_so(tmp_path: Any) -> None:
    import json
    import shutil

    shutil.copytree(FOLDER, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["bos_token_id"] = None
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="bos_token_id"):
        Model.load(tmp_path / "model", prepend_bos=True)
