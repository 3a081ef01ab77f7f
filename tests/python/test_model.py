"""Loading, and passes: against the command's numbers."""

from __future__ import annotations

import json
import pickle
import sys
import typing
import warnings

import numpy as np
import pytest
from conftest import DATA, ROOT, TEXT, safetensors

from gpt2_candle import Model, __version__


def test_a_model_says_what_it_is(model: Model, gpt2) -> None:
    assert model.config["n_layer"] == 4 and model.config["model_type"] == "gpt2"
    assert model.facts["dtype"] == "f32" and model.facts["device"] == "cpu"
    assert "4 layers of 4 heads" in repr(model)
    report = gpt2("inspect")
    assert __version__ == gpt2("forward", "O")["provenance"]["gpt2"]
    assert sum(int(np.prod(shape)) for shape in model.parameters.values()) == report["parameters"]
    wte = model.parameter("wte.weight")
    assert wte.shape == model.parameters["wte.weight"] == (1024, 128)
    wte[:] = 0
    assert model.parameter("wte.weight").any(), "a copy was written to, not the model"


def test_logits_loss_and_states_are_those_of_the_command(model: Model, gpt2, tmp_path) -> None:
    path = tmp_path / "run.safetensors"
    report = gpt2("forward", TEXT, "--export", str(path))
    exported = safetensors(path)
    output = model(TEXT, loss=True, output_hidden_states=True, output_attentions=True)
    assert output.ids == [report["provenance"]["ids"]]
    np.testing.assert_array_equal(output.logits[0], exported["logits"].reshape(output.logits[0].shape))
    assert np.isclose(np.exp(output.loss), report["perplexity"], rtol=1e-6)
    assert len(output.hidden_states) == 5
    for i, state in enumerate(output.hidden_states):
        np.testing.assert_array_equal(state, exported["hidden_states"][i].reshape(state.shape))
    t = len(output.ids[0])
    assert [a.shape for a in output.attentions] == [(1, 4, t, t)] * 4
    for weights in output.attentions:
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    last = model(TEXT, last_logits_only=True).logits
    assert last.shape == (1, 1, 1024)
    np.testing.assert_allclose(last[0, 0], output.logits[0, -1], rtol=1e-5, atol=1e-5)


def test_a_batch_gives_each_text_what_it_gets_alone(model: Model) -> None:
    texts = ["O Romeo", TEXT, "the"]
    batch = model(texts)
    for i, text in enumerate(texts):
        alone = model(text)
        t = len(alone.ids[0])
        np.testing.assert_allclose(batch.logits[i, -t:], alone.logits[0], rtol=1e-4, atol=1e-4)
    nats = np.concatenate(model.score(texts[:2]))
    assert np.isclose(model(texts[:2], loss=True).loss, nats.mean(), rtol=1e-6)


def test_texts_and_ids_are_the_same(model: Model) -> None:
    ids = model.tokenizer.encode(TEXT)
    expected = model(TEXT).logits
    for form in (ids, np.array(ids), [ids], [TEXT], np.array([ids])):
        np.testing.assert_array_equal(model(form).logits, expected)


def test_the_tokenizer_knows_where_its_tokens_lie(model: Model) -> None:
    text = "O Romeo, wherefore\nart thou"
    tokens, offsets = model.tokenizer.tokens(text), model.tokenizer.offsets(text)
    assert [text[start:end] for start, end in offsets] == tokens
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert model.tokenizer.token_to_id(" thou") == model.tokenizer.encode(" thou")[0]
    with pytest.raises(ValueError, match="expected one"):
        model.tokenizer.token_to_id("wherefore")


@pytest.mark.parametrize("dtype,numpy", [("f32", "float32"), ("f64", "float64"), ("f16", "float16"), ("bf16", "float32")])
def test_each_dtype_has_its_array(dtype, numpy: str, model: Model) -> None:
    found = Model.load(dtype=dtype)(TEXT).logits
    assert found.dtype == numpy
    np.testing.assert_allclose(found, model(TEXT).logits, rtol=0.05, atol=0.15)


def test_quantized_weights_are_those_of_the_command(gpt2) -> None:
    model = Model.load(quantize="q8_0")
    assert model.facts["quantized"] == ["q8_0"] or model.facts["quantized"] == ["Q8_0"]
    report = gpt2("forward", TEXT, "--quantize", "q8_0")
    assert np.isclose(np.exp(model(TEXT, loss=True).loss), report["perplexity"], rtol=1e-6)


def test_an_adapter_is_put_on() -> None:
    reference = safetensors(DATA / "lora/reference.safetensors")
    ids = reference["input_ids"].tolist()
    base, adapter = DATA / "lora/base", DATA / "lora/default"
    plain = Model.load(base)(ids).logits
    adapted = Model.load(base, adapter=adapter)
    assert adapted.facts["adapters"] == [str(adapter)]
    np.testing.assert_allclose(adapted(ids).logits, reference["default.logits"], rtol=1e-4, atol=1e-5)
    half = Model.load(base, adapter={str(adapter): 0.5})(ids).logits
    whole, part = np.abs(adapted(ids).logits - plain).max(), np.abs(half - plain).max()
    assert whole > part > 0


def test_a_character_that_the_vocabulary_lacks_is_named(model: Model) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model("O Romeo \u4e2d")
    assert all("cannot spell" in str(one.message) for one in caught)


def test_a_model_is_not_pickled(model: Model) -> None:
    with pytest.raises(TypeError, match="load it by name"):
        pickle.dumps(model)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing has no Unpack")
def test_types_can_be_asked_for() -> None:
    for method in (Model.__call__, Model.generate, Model.effects, Model.load):
        assert "return" in typing.get_type_hints(method)


def test_settings_of_tokens_and_ends_are_the_commands(gpt2, tmp_path) -> None:
    """The end tokens of generation_config.json, and a tokenizer's settings; what is not used is a warning."""
    demo = ROOT / "models/tiny-shakespeare"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((demo / name).read_bytes())
    endless = Model.load(tmp_path).generate("ROMEO:", temperature=0, max_new_tokens=8).ids
    settings = {"eos_token_id": [endless[2], 0], "max_new_tokens": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true, "auto_map": {"AutoTokenizer": ["a.B", null]}}')
    with pytest.warns(UserWarning, match="auto_map is not used"):
        model = Model.load(tmp_path)
    ids = gpt2("forward", "--model", str(tmp_path), "Romeo")["provenance"]["ids"]
    assert model.tokenizer.encode("Romeo") == ids == model.tokenizer.encode(" Romeo")
    prompt = Model.load().tokenizer.encode("ROMEO:")
    with pytest.warns(UserWarning, match="only its end tokens are used, not max_new_tokens 1"):
        found = model.generate(prompt, temperature=0, max_new_tokens=8)
    assert found.ids == endless[:3]
    with pytest.warns(UserWarning):
        assert [one.ids for one in model.generate([prompt, prompt], temperature=0, max_new_tokens=8)] == [endless[:3]] * 2
    saved = tmp_path / "saved"
    model.save(saved)
    assert Model.load(saved).tokenizer.encode("Romeo") == ids
