"""The options of passes that TransformerLens' users know, and the methods of a cache, against TransformerLens in f64."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, TEXT, safetensors

from gpt2_candle import Model

# Both sides compute in f64, in another order.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
OTHER = "O Juliet, Juliet! wherefore art"


@pytest.fixture(scope="module")
def known() -> dict[str, np.ndarray[Any, Any]]:
    return safetensors(DATA / "circuits/processed.safetensors")


@pytest.fixture(scope="module")
def processed() -> Model:
    return Model.load(DATA / "circuits/model", dtype="f64", processed=True)


def test_a_pass_returns_what_is_asked_for(model: Model) -> None:
    output = model(TEXT, loss=True)
    logits, loss = model(TEXT, return_type="both")
    np.testing.assert_array_equal(logits, output.logits)
    assert loss == output.loss == model(TEXT, return_type="loss")
    np.testing.assert_array_equal(model(TEXT, return_type="logits"), output.logits)
    model(TEXT, return_type=None)
    cached, cache = model.run_with_cache(TEXT, "blocks.0.", return_type="loss")
    assert cached == loss and "blocks.0.attn.hook_z" in cache
    assert model.run_with_hooks(TEXT, return_type="both")[1] == loss


def test_a_pass_in_two_halves_is_the_pass(model: Model) -> None:
    whole = model(TEXT).logits
    for layer in (0, 1, 3, 4, -1):
        stream = model(TEXT, stop_at_layer=layer)
        np.testing.assert_array_equal(stream, model.run_with_cache(TEXT)[1]["resid_pre", layer] if layer != 4 else model.run_with_cache(TEXT)[1]["resid_post", 3])
        np.testing.assert_array_equal(model(stream, start_at_layer=layer).logits, whole)
    middle, below = model.run_with_cache(TEXT, stop_at_layer=2)
    assert "blocks.1.hook_resid_post" in below and "blocks.2.hook_resid_pre" not in below and "ln_final.hook_scale" not in below
    _, above = model.run_with_cache(middle, start_at_layer=2)
    assert "hook_embed" not in above and "blocks.1.hook_mlp_out" not in above
    np.testing.assert_array_equal(above["resid_post", 3], model.run_with_cache(TEXT)[1]["resid_post", 3])
    between, _ = model.run_with_cache(middle, start_at_layer=2, stop_at_layer=3)
    np.testing.assert_array_equal(between, model(TEXT, stop_at_layer=3))
    with pytest.raises(ValueError, match="before start_at_layer"):
        model(middle, start_at_layer=2, stop_at_layer=1)
    with pytest.raises(ValueError, match="expected the residual stream"):
        model(middle[..., :5], start_at_layer=2)
    with pytest.raises(ValueError, match="stop_at_layer is 5"):
        model(TEXT, stop_at_layer=5)


def test_a_cache_keeps_the_positions_that_are_asked_for(model: Model) -> None:
    _, whole = model.run_with_cache(TEXT)
    _, last = model.run_with_cache(TEXT, pos_slice=-1)
    np.testing.assert_array_equal(last["resid_post", 2], whole["resid_post", 2][:, -1])
    np.testing.assert_array_equal(last["z", 2], whole["z", 2][:, -1])
    np.testing.assert_array_equal(last["pattern", 1], whole["pattern", 1][:, :, -1])
    _, some = model.run_with_cache(TEXT, pos_slice=(2, 5), names_filter=lambda name: name.endswith(("hook_q", "hook_pattern")))
    np.testing.assert_array_equal(some["q", 0], whole["q", 0][:, 2:5])
    np.testing.assert_array_equal(some["pattern", 0], whole["pattern", 0][:, :, 2:5])
    _, alone = model.run_with_cache(TEXT, pos_slice=[0, 3], remove_batch_dim=True)
    np.testing.assert_array_equal(alone["pattern", 3], whole["pattern", 3][0][:, [0, 3]])
    np.testing.assert_array_equal(alone["mlp_out", 3], whole["mlp_out", 3][0][[0, 3]])
    np.testing.assert_array_equal(whole.remove_batch_dim()["z", 1], whole["z", 1][0])
    with pytest.raises(ValueError, match="for one text, got 2"):
        model.run_with_cache([TEXT, OTHER], remove_batch_dim=True)
    with pytest.raises(TypeError, match="another word for names"):
        model.run_with_cache(TEXT, "blocks.0.", names_filter="blocks.1.")


def test_hooks_stay_for_a_block_of_code(model: Model, tmp_path: Path) -> None:
    def silence(value: np.ndarray[Any, Any], hook: Any) -> None:
        value[:, :, 3] = 0

    hooks: Any = [("blocks.0.attn.hook_z", silence)]
    another, plain = Model.load(), model(TEXT, return_type="loss")
    expected = model.run_with_hooks(TEXT, hooks)
    with model.hooks(hooks) as hooked:
        np.testing.assert_array_equal(hooked(TEXT).logits, expected)
        np.testing.assert_array_equal(model.run_with_cache(TEXT)[0], expected)
        assert another(TEXT, return_type="loss") == plain, "another model has the hooks, too"
        written = model.generate(TEXT, greedy=True, max_new_tokens=4).ids
        # What does not run hooks says so.
        without: list[Callable[[], Any]] = [
            lambda: model.lens(TEXT),
            lambda: model.direct(TEXT, " thou"),
            lambda: model.effects(TEXT, " thou"),
            lambda: model.patching(TEXT, TEXT, " thou"),
            lambda: model.edge_scores(TEXT, TEXT, " thou"),
            lambda: model.forward(TEXT),
            lambda: model.score([TEXT]),
            lambda: model.attention(TEXT),
            lambda: model.compare(another, TEXT),
            lambda: another.compare(model, TEXT),
            lambda: model.features(TEXT, "demo"),
            lambda: model.record([TEXT], points="hook_embed", out=tmp_path / "store"),
        ]
        for call in without:
            with pytest.raises(ValueError, match="would leave them out"):
                call()
        assert another.lens(TEXT) and model.circuits()["heads"]
    assert written == model.generate(TEXT, greedy=True, max_new_tokens=4, fwd_hooks=hooks).ids
    assert np.abs(model(TEXT).logits - expected).max() > 1e-3
    with pytest.raises(ZeroDivisionError), model.hooks(hooks):
        raise ZeroDivisionError
    np.testing.assert_array_equal(model(TEXT).logits, model.run_with_hooks(TEXT))


def test_lists_of_texts_give_lists_of_results(model: Model) -> None:
    texts = [TEXT, "To be, or not to be"]
    for found, text in zip(model.lens(texts), texts):
        assert found == model.lens(text)
    for method in (model.lens_logits, model.rollout):
        for array, text in zip(method(texts), texts):
            np.testing.assert_array_equal(array, method(text))
    for effects, text in zip(model.effects(texts, " thou"), texts):
        np.testing.assert_array_equal(effects.change, model.effects(text, " thou").change)
    for direct, text in zip(model.direct(texts, " thou"), texts):
        np.testing.assert_array_equal(direct.heads, model.direct(text, " thou").heads)
    for attention, text in zip(model.attention(texts), texts):
        assert attention.text == text
        np.testing.assert_array_equal(attention.weights, model.attention(text).weights)
    name = "blocks.1.hook_resid_pre"
    together = model.grad(texts, name, " thou")
    for row, text in enumerate(texts):
        alone = model.grad(text, name, " thou")
        t = alone[name][0].shape[1]
        # A row of a batch goes through products of another size: rounding in f32.
        np.testing.assert_allclose(together[name][1][row, -t:], alone[name][1][0], rtol=1e-3, atol=1e-5)
        assert np.isclose(together.metric[row], alone.metric[0], rtol=1e-5)
    with pytest.raises(TypeError, match="pairs=.... takes many pairs"):
        model.patching(texts, texts, " thou")  # type: ignore[arg-type]


def test_heads_are_pairs_of_numbers_too(model: Model) -> None:
    for changes, same in (({"ablate": (0, 3)}, {"ablate": "0.3"}), ({"ablate": [(0, 3), "1.*"]}, {"ablate": ["0.3", "1.*"]}), ({"scale": {(1, 2): 0.5}}, {"scale": {"1.2": 0.5}}),):  # fmt: skip
        np.testing.assert_array_equal(model(TEXT, **changes).logits, model(TEXT, **same).logits)  # type: ignore[call-overload]
    np.testing.assert_array_equal(model.circuit((1, 0), "ov", " king"), model.circuit("1.0", "ov", " king"))
    assert model.circuits((3, 0), top=2)["ov"] == model.circuits("3.0", top=2)["ov"]
    with pytest.raises(TypeError, match=r"expected a head such as '0.3' or \(0, 3\)"):
        model(TEXT, ablate=[(0, 3, 1)])  # type: ignore[list-item]


def test_tokens_have_transformerlens_s_names(model: Model) -> None:
    ids = model.tokenizer.encode(TEXT)
    assert model.to_str_tokens(TEXT) == model.tokenizer.tokens(TEXT) == model.to_str_tokens(ids)
    assert model.to_str_tokens([TEXT, "O"]) == [model.tokenizer.tokens(TEXT), ["O"]]
    assert model.to_single_token(" thou") == model.tokenizer.token_to_id(" thou")
    assert model.to_single_str_token(model.to_single_token(" thou")) == " thou"
    assert model.to_string(ids) == TEXT
    assert model.to_tokens([TEXT, TEXT]).shape == (2, len(ids))
    with pytest.raises(ValueError, match="make no array"):
        model.to_tokens([TEXT, "O"])
    cfg = model.cfg
    assert (cfg.n_layers, cfg.n_heads, cfg.d_model, cfg.d_head, cfg.d_mlp, cfg.d_vocab) == (4, 4, 128, 32, 512, 1024)
    assert cfg.normalization_type == "LN" and Model.load(processed=True).cfg.normalization_type == "LNPre"


def test_the_stream_falls_into_transformerlens_s_parts(processed: Model, known: dict[str, Any]) -> None:
    _, cache = processed.run_with_cache(known["ids"])
    found, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "2_pre", "2_mid", "final_post"]
    np.testing.assert_allclose(found, known["accumulated_resid"], **CLOSE)
    np.testing.assert_allclose(cache.accumulated_resid(2, apply_ln=True, pos_slice=-1), known["accumulated_resid normed"], **CLOSE)
    parts, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["embed", "pos_embed", "0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out", "2_attn_out", "2_mlp_out"]
    np.testing.assert_allclose(parts, known["decompose_resid"], **CLOSE)
    np.testing.assert_allclose(cache.decompose_resid(2, mode="attn", apply_ln=True, pos_slice=-1), known["decompose_resid normed"], **CLOSE)
    np.testing.assert_array_equal(cache.stack_activation("z", 2), cache.stack("z")[:2])
    np.testing.assert_allclose(cache.stack_head_results(2, pos_slice=-1), known["stack_head_results"], **CLOSE)
    np.testing.assert_allclose(cache.stack_head_results(incl_remainder=True, pos_slice=-1), known["stack_head_results rest"], **CLOSE)
    stack = cache.decompose_resid(pos_slice=-1)
    np.testing.assert_allclose(cache.logit_attrs(stack, [40, 5], [12, 9], pos_slice=-1), known["logit_attrs"], **CLOSE)
    np.testing.assert_allclose(cache.logit_attrs(stack, np.array([40, 5]), pos_slice=-1), known["logit_attrs alone"], **CLOSE)
    # Without a batch, and in the other view: parts sum to the difference of logits, but for the bias of the last layer norm.
    logits, alone = processed.run_with_cache(known["ids"][0], remove_batch_dim=True)
    sums = alone.logit_attrs(alone.decompose_resid(), 40, 12).sum(0)
    bias = processed.b_U[40] - processed.b_U[12]
    np.testing.assert_allclose(sums + bias, logits[0, :, 40] - logits[0, :, 12], **CLOSE)


def test_parts_sum_to_logits_in_the_raw_view(model: Model) -> None:
    logits, cache = model.run_with_cache(TEXT)
    parts = cache.logit_attrs(cache.decompose_resid(), " thou", " the")
    a, b = model.to_single_token(" thou"), model.to_single_token(" the")
    bias = model.parameter("ln_f.bias") @ (model.W_U[:, a] - model.W_U[:, b])
    # In f32, sums of ten parts.
    np.testing.assert_allclose(parts.sum(0) + bias, logits[..., a] - logits[..., b], rtol=1e-3, atol=1e-4)


def test_head_scores_begin_as_those_of_the_command(model: Model, gpt2: Any) -> None:
    for more, flag in (({}, []), ({"no_bos": True}, ["--no-bos"])):
        found = model.head_scores(length=10, texts=3, **more)
        heads = gpt2("heads", "--length", "10", "--batch", "3", *flag)["heads"]
        expected = [head["induction"]["mean"] if isinstance(head["induction"], dict) else head["induction"] for head in heads]
        np.testing.assert_allclose(found.induction.reshape(-1), expected, rtol=1e-6)


def test_results_pickle(model: Model) -> None:
    def again(one: Any) -> Any:
        return pickle.loads(pickle.dumps(one))

    attention = model.attention(TEXT)
    found = again(attention)
    np.testing.assert_array_equal(found.weights, attention.weights)
    assert found.page() == attention.page() and found._repr_html_()
    with pytest.raises(ValueError, match="a pickled result does not have"):
        found.save("heads.svg")
    _, cache = model.run_with_cache(TEXT)
    np.testing.assert_array_equal(again(cache)["pattern", 1], cache["pattern", 1])
    np.testing.assert_array_equal(again(cache).decompose_resid(), cache.decompose_resid())
    with pytest.raises(ValueError, match="a pickled cache does not have"):
        again(cache).stack_head_results()
    gradients = model.grad(TEXT, "blocks.0.hook_resid_pre", " thou")
    assert again(gradients).metric == gradients.metric
    for one in (model.effects(TEXT, " thou"), model.direct(TEXT, " thou")):
        assert again(one).numbers == one.numbers and again(one).view == one.view
    for one in (model(TEXT, loss=True), model.forward(TEXT), model.cfg, model.edge_scores("Romeo and Juliet", "Henry and Juliet", " the")):
        assert repr(again(one)) == repr(one)


def test_what_transformer_lens_has_elsewhere_is_named(model: Model) -> None:
    for name, says in [("add_hook", "with model.hooks"), ("hook_dict", "model.hook_points"), ("blocks", "model.W_Q"), ("OV", "model.circuit")]:
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{says}"):
            getattr(model, name)
    assert not hasattr(model, "no_such_thing")
