"""Interventions, analyses and generation: against the command's JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import CLEAN, CORRUPT, TEXT, heads

from gpt2_candle import Model

SHAPE = (4, 4)


@pytest.mark.parametrize(
    "changes,options",
    [
        ({"ablate": "0.3"}, ["--ablate", "0.3"]),
        ({"ablate": ["1.*", "0.2"]}, ["--ablate", "1.*,0.2"]),
        ({"mean_ablate": ["2.0"]}, ["--mean-ablate", "2.0"]),
        ({"scale": {"0.2": 0.5, "3.*": -1}}, ["--scale", "0.2=0.5,3.*=-1"]),
        ({"attention_temperature": {"1.0": 0.5}}, ["--attention-temperature", "1.0=0.5"]),
        ({"block": ["7:4", "3.2/5:1"]}, ["--block", "7:4,3.2/5:1"]),
        ({"patch": ["1.2@3", "2.mlp@1"], "from_prompt": CORRUPT}, ["--patch", "1.2@3,2.mlp@1", "--from-prompt", CORRUPT]),
        ({"ablate": "0.0", "block": "4:0"}, ["--ablate", "0.0", "--block", "4:0"]),
    ],
)
def test_interventions_are_those_of_the_command(model: Model, gpt2: Any, changes: Any, options: list[str]) -> None:
    report = gpt2("forward", TEXT, *options)
    assert np.isclose(np.exp(model(TEXT, loss=True, **changes).loss), report["perplexity"], rtol=1e-6)
    assert model(TEXT, **changes).logits[0, -1].argmax() == report["next"][0]["id"]
    assert np.abs(model(TEXT, **changes).logits - model(TEXT).logits).max() > 1e-3, "nothing was changed"


def test_means_over_texts_and_vectors_are_those_of_the_command(model: Model, gpt2: Any, tmp_path: Any) -> None:
    texts = ["O Juliet", "the king", "Speak, speak"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    report = gpt2("forward", TEXT, "--mean-ablate", "0.2", "--mean-of", str(tmp_path / "texts.txt"))
    assert np.isclose(np.exp(model(TEXT, loss=True, mean_ablate="0.2", mean_of=texts).loss), report["perplexity"], rtol=1e-6)
    vector = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    np.save(tmp_path / "v.npy", vector)
    report = gpt2("forward", TEXT, "--add", f"1@3={tmp_path / 'v.npy'}*2")
    assert np.isclose(np.exp(model(TEXT, loss=True, add={"1@3": 2 * vector}).loss), report["perplexity"], rtol=1e-6)


def test_the_lens_and_effects_are_those_of_the_command(model: Model, gpt2: Any) -> None:
    report = gpt2("lens", TEXT)
    for mine, theirs in zip(model.lens(TEXT, top_k=1), report["layers"]):
        assert mine[0][0] == theirs[0]["token"]
        assert np.isclose(mine[0][1], theirs[0]["probability"], rtol=1e-5)
    report = gpt2("attention", TEXT, "--effect", "--target", " thou")
    effects = model.effects(TEXT, " thou")
    np.testing.assert_allclose(effects.change, heads(report["heads"], lambda head: head["change"], SHAPE), rtol=1e-6, atol=1e-9)
    assert np.isclose(effects.plain, report["value"])
    direct = model.direct(TEXT, " thou")
    np.testing.assert_allclose(direct.heads, heads(report["heads"], lambda head: head["direct"], SHAPE), rtol=1e-6, atol=1e-9)


def test_each_of_several_texts_has_its_own_answers(model: Model) -> None:
    texts, answers, wrong = [TEXT, CLEAN], [[" thou"], [" fair", " king"]], [[" the"], [" come"]]
    for method, name in ((model.direct, "heads"), (model.effects, "change")):
        each = method(texts, answers, wrong)
        for found, text, right, other in zip(each, texts, answers, wrong):
            np.testing.assert_array_equal(found[name].values, method(text, right, other)[name].values)
        # One list has the answers of every text; of as many answers as texts, nobody could tell.
        many = [" fair", " king", " lord"]
        both = method(texts, many, [" come"])
        np.testing.assert_array_equal(both[0][name].values, method(TEXT, many, [" come"])[name].values)
        with pytest.raises(ValueError, match="one answer for each of the 2 texts"):
            method(texts, [" thou", " fair"], [" the", " come", " lord"])
        with pytest.raises(ValueError, match="a list for each of 3 texts, and there are 2"):
            method(texts, [*answers, [" a"]], wrong)


def test_means_are_those_of_the_text_in_every_run(model: Model, gpt2: Any) -> None:
    # The runs that patch or ablate are many at a time: a mean over all of them would be another number.
    report = gpt2("attention", TEXT, "--effect", "--target", " thou", "--mean-ablate", "2.0")
    expected = heads(report["heads"], lambda head: head["change"], SHAPE)
    np.testing.assert_allclose(model.effects(TEXT, " thou", mean_ablate="2.0").change, expected, rtol=1e-5, atol=1e-7)
    plain = model.patching(CLEAN, CORRUPT, " thou", " the", parts="streams")
    under = model.patching(CLEAN, CORRUPT, " thou", " the", parts="streams", mean_ablate="2.0")
    assert under.clean == pytest.approx(difference(model, CLEAN, mean_ablate="2.0"), rel=1e-4)
    assert under.clean != plain.clean
    # A generated text grows, and its new tokens are ablated too.
    others = [[1, 2, 4], [5, 6, 7]]
    seen: list[Any] = []
    options: Any = {"max_new_tokens": 3, "temperature": 0, "mean_ablate": "0.0", "mean_of": others}
    model.generate([1, 2, 3], fwd_hooks=[("blocks.0.attn.hook_z", lambda value, hook: seen.append(value[:, :, 0].copy()))], **options)
    for value in seen[1:]:
        np.testing.assert_array_equal(value[0, 0], seen[0][0, 0])
    assert model.head_scores(texts=2, mean_ablate="0.0", mean_of=others).induction.shape == SHAPE
    one, same = model(TEXT, mean_ablate="0.2", mean_of="the king").logits, model(TEXT, mean_ablate="0.2", mean_of=["the king"]).logits
    np.testing.assert_array_equal(one, same)


def difference(model: Model, text: str, **changes: Any) -> float:
    """The logit of " thou" less that of " the" after a text."""
    logits = model(text, **changes).logits[0, -1]
    thou, the = (model.tokenizer.token_to_id(word) for word in (" thou", " the"))
    return float(logits[thou] - logits[the])


def test_maps_have_their_axes(model: Model) -> None:
    found = model.attribution(CLEAN, CORRUPT, " thou", " the")
    assert found["heads"].axes == ("layer", "head", "position") and found["streams"].axes == ("layer", "position")
    place, number = found["heads"].top(1)[0]
    layer, head, position = map(int, place.split("."))
    assert number == found["heads"].values[layer, head, position] and abs(number) == np.abs(found["heads"].values).max()
    assert "layer by head by position" in repr(found) and "<svg" in found._repr_html_()
    with pytest.raises(ValueError, match="draw a part"):
        found["heads"].save("heads.svg")
    mlps = model.direct(TEXT, " thou")["mlps"]
    assert mlps.axes == ("layer",) and len(mlps.top(9)) == 4 and "<svg" in mlps._repr_html_()


def test_heads_and_circuits_are_those_of_the_command(model: Model, gpt2: Any) -> None:
    report, scores = gpt2("heads"), model.head_scores()
    for name in ("previous_token", "duplicate_token", "induction"):
        expected = heads(report["heads"], lambda head, name=name: head[name]["mean"], SHAPE)  # type: ignore[misc]
        np.testing.assert_allclose(scores[name].values, expected, rtol=1e-6)
    report = gpt2("circuits")
    expected = heads(report["heads"], lambda head: head["copying"], SHAPE)
    np.testing.assert_allclose(model.copying_scores().values, expected, rtol=1e-6)


def test_patching_is_that_of_the_command(model: Model, gpt2: Any) -> None:
    report = gpt2("patch", CLEAN, CORRUPT, "--answer", " Rome", "--against", " the", "--by-position")
    found = model.patching(CLEAN, CORRUPT, " Rome", " the")
    assert np.isclose(found.clean, report["clean_difference"]) and np.isclose(found.corrupt, report["corrupt_difference"])
    whole = report["clean_difference"] - report["corrupt_difference"]
    shares = (np.asarray(found.heads) - report["corrupt_difference"]) / whole
    np.testing.assert_allclose(shares, heads(report["heads"], lambda head: head["exact"], SHAPE), rtol=1e-4, atol=1e-6)
    estimate = np.asarray(model.attribution(CLEAN, CORRUPT, " Rome", " the").heads) / whole  # (L, H, T)
    np.testing.assert_allclose(estimate, report["heads_by_position_estimated"], rtol=1e-4, atol=1e-6)


def test_a_continuation_is_that_of_the_command(model: Model, gpt2: Any) -> None:
    report = gpt2("generate", "ROMEO:", "--seed", "7", "--max-new-tokens", "24", "--top-p", "0.9")
    options: Any = {"seed": 7, "max_new_tokens": 24, "top_p": 0.9}
    found = model.generate("ROMEO:", **options)
    assert (found.ids, found.text) == (report["ids"], report["text"])
    assert "".join(model.stream("ROMEO:", **options)) == found.text
    both = model.generate(["JULIET:", "ROMEO:"], **options)
    assert both[1].text == found.text
    stop = found.text[5:8]
    stopped = model.generate("ROMEO:", stop=stop, **options)
    report = gpt2("generate", "ROMEO:", "--seed", "7", "--max-new-tokens", "24", "--top-p", "0.9", "--stop", stop)
    assert (stopped.text, stopped.stopped_at, stopped.ids) == (report["text"], stop, report["ids"])
    assert "".join(model.stream("ROMEO:", stop=stop, **options)) == stopped.text
    greedy = model.generate("ROMEO:", temperature=0, max_new_tokens=8)
    assert greedy.ids == gpt2("generate", "ROMEO:", "--greedy", "--max-new-tokens", "8")["ids"]


def test_hooks_act_on_generated_tokens(model: Model) -> None:
    shapes: list[tuple[int, ...]] = []

    def ablate(value: Any, hook: Any) -> Any:
        shapes.append(value.shape)
        value[:, :, 3] = 0
        return value

    found = model.generate("ROMEO:", temperature=0, max_new_tokens=6, fwd_hooks=[("blocks.0.attn.hook_z", ablate)])
    assert found.ids == model.generate("ROMEO:", temperature=0, max_new_tokens=6, ablate="0.3").ids
    assert [shape[1] for shape in shapes][1:] == [1] * (len(shapes) - 1)


def test_surprises_are_those_of_a_pass(model: Model) -> None:
    [nats] = model.score(TEXT)
    logits = model(TEXT).logits[0].astype(np.float64)
    log_sums = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    ids = model.tokenizer.encode(TEXT)
    expected = [log_sums[i] - logits[i, ids[i + 1]] for i in range(len(ids) - 1)]
    np.testing.assert_allclose(nats, expected, rtol=1e-5, atol=1e-6)


def test_rollout_goes_from_layer_to_layer(model: Model) -> None:
    rollout = model.rollout(TEXT)
    weights = model.attention(TEXT).weights.astype(np.float64).mean(1)
    expected = np.eye(weights.shape[-1])
    for layer in range(4):
        mixed = 0.5 * weights[layer] + 0.5 * np.eye(weights.shape[-1])
        expected = mixed @ expected
        np.testing.assert_allclose(rollout[layer], expected, rtol=1e-4, atol=1e-6)
