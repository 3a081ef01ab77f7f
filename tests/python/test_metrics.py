"""Metrics by name and of one's own: values, gradients, patching, attribution, edges and discovery. Gradients against TransformerLens'
backward hooks in f64 (tests/data/circuits/processed.safetensors), the rest against its definition."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import DATA, TEXT, safetensors

from gpt2_candle import Model, torch_metric

# Both sides compute in f64, in another order.
CLOSE = {"rtol": 1e-8, "atol": 1e-11}
PAIR = (" lord fair which king come out of lord", " king fair which lord come out of lord")
ANSWERS = (" fair", " come")
ROWS, ANSWER, AGAINST = [0, 1], [40, 5], [12, 9]


@pytest.fixture(scope="module")
def known() -> dict[str, np.ndarray[Any, Any]]:
    return safetensors(DATA / "circuits/processed.safetensors")


@pytest.fixture(scope="module")
def small() -> Model:
    return Model.load(DATA / "circuits/model", dtype="f64")


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.exp(logits - logits.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


def difference(logits: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
    gradient = np.zeros_like(logits)
    gradient[ROWS, -1, ANSWER], gradient[ROWS, -1, AGAINST] = 0.5, -0.5
    return float((logits * gradient).sum()), gradient


def log_prob(logits: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
    p = softmax(logits[:, -1])
    gradient = np.zeros_like(logits)
    gradient[:, -1] = -p / 2
    gradient[ROWS, -1, ANSWER] += 0.5
    return float(np.log(p[ROWS, ANSWER]).mean()), gradient


def probability(logits: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
    p = softmax(logits[:, -1])
    right = p[ROWS, ANSWER]
    gradient = np.zeros_like(logits)
    gradient[:, -1] = -right[:, None] * p / 2
    gradient[ROWS, -1, ANSWER] += right / 2
    return float(right.mean()), gradient


def at_positions(logits: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
    gradient = np.zeros_like(logits)
    for position in (2, 5):
        gradient[ROWS, position, ANSWER], gradient[ROWS, position, AGAINST] = 0.25, -0.25
    return float((logits * gradient).sum()), gradient


@pytest.mark.parametrize("name,function", [("difference", difference), ("log_prob", log_prob), ("probability", probability), ("positions", at_positions)])
def test_gradients_of_a_function_are_transformerlens_s(small: Model, known: dict[str, Any], name: str, function: Any) -> None:
    of_metric = {key.removeprefix(f"gradients/{name}/"): value for key, value in known.items() if key.startswith(f"gradients/{name}/")}
    expected_value = of_metric.pop("value")
    found = small.grad(known["ids"], list(of_metric), metric=function)
    np.testing.assert_allclose(found.metric, [expected_value], **CLOSE)
    for point, expected in of_metric.items():
        np.testing.assert_allclose(found[point].grad, expected, err_msg=point, **CLOSE)


@pytest.mark.parametrize("name", ["difference", "log_prob", "probability", "positions", "loss", "kl"])
def test_gradients_of_a_name_are_transformerlens_s(small: Model, known: dict[str, Any], name: str) -> None:
    """TransformerLens' metrics are means over two texts, of which each has answers of its own."""
    of_metric = {key.removeprefix(f"gradients/{name}/"): value for key, value in known.items() if key.startswith(f"gradients/{name}/")}
    expected_value = of_metric.pop("value")
    options: dict[str, Any] = {
        "difference": lambda row: {"answer": ANSWER[row], "against": AGAINST[row]},
        "log_prob": lambda row: {"answer": ANSWER[row], "metric": "log-prob"},
        "probability": lambda row: {"answer": ANSWER[row], "metric": "probability"},
        "positions": lambda row: {"answer": ANSWER[row], "against": AGAINST[row], "positions": [2, 5]},
        "loss": lambda row: {"metric": "loss"},
        "kl": lambda row: {"metric": "kl", "reference": known["reference"][row : row + 1, -1:]},
    }
    each = [small.grad(known["ids"][row], list(of_metric), **options[name](row)) for row in ROWS]
    np.testing.assert_allclose(np.mean([one.metric[0] for one in each]), expected_value, **CLOSE)
    for point, expected in of_metric.items():
        # After the last block, the last position alone is computed where the metric reads no other.
        found = np.concatenate([one[point][1] for one in each]) / 2
        np.testing.assert_allclose(found, expected[:, -found.shape[1] :], err_msg=point, **CLOSE)
        assert not expected[:, : -found.shape[1]].any() or found.shape[1] == expected.shape[1]
    if name in ("loss", "kl"):
        together = small.grad(known["ids"], list(of_metric), metric=name, reference=known["reference"][:, -1:] if name == "kl" else None)  # type: ignore[arg-type]
        np.testing.assert_allclose(together.metric, [one.metric[0] for one in each], **CLOSE)


def test_a_metric_in_torch_is_differentiated_by_torch(small: Model, known: dict[str, Any]) -> None:
    torch: Any = pytest.importorskip("torch")
    point = "blocks.1.hook_resid_mid"

    def log_prob_of_torch(logits: Any) -> Any:
        return logits[:, -1].log_softmax(-1)[torch.tensor(ROWS), torch.tensor(ANSWER)].mean()

    found = small.grad(known["ids"], point, metric=torch_metric(log_prob_of_torch))
    np.testing.assert_allclose(found[point][1], known[f"gradients/log_prob/{point}"], **CLOSE)
    with pytest.raises(ValueError, match="does not depend on the logits"):
        small.grad(known["ids"], point, metric=torch_metric(lambda logits: logits.detach().sum()))


def test_backward_hooks_read_and_change_gradients(small: Model, known: dict[str, Any]) -> None:
    seen: dict[str, Any] = {}
    order: list[str] = []

    def read(gradient: np.ndarray[Any, Any], hook: Any) -> None:
        seen[hook.name] = gradient.copy()
        order.append(hook.name)

    points = ["blocks.0.attn.hook_z", "blocks.1.hook_resid_mid", "blocks.2.mlp.hook_post"]
    logits = small.run_with_hooks(known["ids"], bwd_hooks=[(name, read) for name in points], metric=difference)
    np.testing.assert_array_equal(logits, small(known["ids"]).logits)
    assert order == points[::-1]
    for name in points:
        np.testing.assert_allclose(seen[name], known[f"gradients/difference/{name}"], err_msg=name, **CLOSE)

    def halve(gradient: np.ndarray[Any, Any], hook: Any) -> tuple[np.ndarray[Any, Any]]:
        return (gradient / 2,)  # a tuple, as in TransformerLens

    # The gradient below is linear in the one at a point that all of it flows through.
    name = "blocks.0.attn.hook_z"
    changed = small.grad(known["ids"], name, metric=difference, bwd_hooks=[("blocks.1.hook_resid_mid", halve)])
    stream = small.grad(known["ids"], ["blocks.1.hook_resid_pre"], metric=difference, bwd_hooks=[("blocks.1.hook_resid_mid", halve)])
    np.testing.assert_allclose(changed[name][1], known[f"gradients/difference/{name}"] / 2, **CLOSE)
    assert np.abs(stream["blocks.1.hook_resid_pre"][1]).max() > 0
    with small.hooks(bwd_hooks=[("blocks.1.hook_resid_mid", halve)]):
        np.testing.assert_array_equal(small.grad(known["ids"], name, metric=difference)[name][1], changed[name][1])
    with pytest.raises(ValueError, match="expected an array of shape"):
        small.run_with_hooks(known["ids"], bwd_hooks=[(name, lambda gradient, hook: gradient[:, :1])], metric=difference)


def test_a_cache_has_gradients_if_it_is_asked_for_them(small: Model, known: dict[str, Any]) -> None:
    logits, cache = small.run_with_cache(known["ids"], incl_bwd=True, metric=difference)
    np.testing.assert_array_equal(logits, small(known["ids"]).logits)
    for key in ("hook_embed", "blocks.0.attn.hook_z", "blocks.2.hook_resid_post", "ln_final.hook_scale"):
        np.testing.assert_allclose(cache[f"{key}_grad"], known[f"gradients/difference/{key}"], err_msg=key, **CLOSE)
    np.testing.assert_array_equal(cache["z_grad", 0], cache["blocks.0.attn.hook_z_grad"])
    # In f64; attention that keeps its gradient adds up in another order.
    np.testing.assert_allclose(cache["resid_post", 2], small.run_with_cache(known["ids"])[1]["resid_post", 2], rtol=1e-10, atol=1e-12)
    loss, cache = small.run_with_cache(known["ids"][0], "blocks.1.hook_resid_mid", incl_bwd=True, return_type="loss", remove_batch_dim=True)
    assert isinstance(loss, float)
    expected = small.grad(known["ids"][0], "blocks.1.hook_resid_mid", metric="loss")["blocks.1.hook_resid_mid"][1]
    np.testing.assert_array_equal(cache["blocks.1.hook_resid_mid_grad"], expected[0])
    with pytest.raises(TypeError, match="incl_bwd"):
        small.run_with_cache(known["ids"], metric="loss")


def logit_difference(model: Model) -> Callable[[np.ndarray[Any, Any]], tuple[float, np.ndarray[Any, Any]]]:
    right, wrong = (model.to_single_token(one) for one in ANSWERS)

    def metric(logits: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        assert logits.ndim == 3
        gradient = np.zeros_like(logits)
        gradient[:, -1, right], gradient[:, -1, wrong] = 1, -1
        return float(logits[0, -1, right] - logits[0, -1, wrong]), gradient

    return metric


def test_studies_take_a_function_that_is_a_named_metric(model: Model) -> None:
    """The difference of two logits as a function gives what it gives by its tokens."""
    mine = logit_difference(model)
    close = {"rtol": 1e-5, "atol": 1e-5}  # f32, by products of another shape
    parts: Any = ["heads", "streams", "mlps_by_position"]
    expected, found = model.patching(*PAIR, *ANSWERS, parts=parts), model.patching(*PAIR, metric=mine, parts=parts)
    assert np.isclose(found.clean, expected.clean, rtol=1e-6)
    for part in parts:
        np.testing.assert_allclose(found[part].values, expected[part].values, err_msg=part, **close)
    for part, one in model.attribution(*PAIR, *ANSWERS).items():
        np.testing.assert_allclose(model.attribution(*PAIR, metric=mine)[part].values, one.values, err_msg=part, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(model.effects(PAIR[0], metric=mine).change, model.effects(PAIR[0], *ANSWERS).change, **close)
    np.testing.assert_allclose(model.edge_scores(*PAIR, metric=mine).array, model.edge_scores(*PAIR, *ANSWERS).array, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(model.edges(*PAIR, metric=mine, steps=2), model.edges(*PAIR, *ANSWERS, steps=2), rtol=1e-3, atol=1e-4)
    discovered, by_name = model.discover(*PAIR, metric=mine, edges=12, random=0), model.discover(*PAIR, *ANSWERS, edges=12, random=0)
    ends = [{(edge["from"], edge["to"]) for edge in one["circuit"]["edges"]} for one in (discovered, by_name)]
    assert ends[0] == ends[1]
    assert np.isclose(discovered["circuit"]["faithfulness"], by_name["circuit"]["faithfulness"], rtol=1e-4)
    assert discovered["metric"] == "a function of logits" and "metric" not in by_name
    shares = [[head["exact"] for head in report["heads"]] for report in (model.patch(*PAIR, metric=mine), model.patch(*PAIR, *ANSWERS))]
    np.testing.assert_allclose(*shares, **close)
    paths = [model.path_patching(*PAIR, *answers, path="0.3->0.mlp", **more)["paths"][0]["lost"]["mean"] for answers, more in (((), {"metric": mine}), (ANSWERS, {}))]  # type: ignore[misc]
    assert np.isclose(*paths, rtol=1e-4)


@pytest.mark.parametrize("name", ["probability", "probability-difference", "kl", "loss", "log-prob"])
def test_named_metrics_of_pairs_are_their_definitions(model: Model, name: Any) -> None:
    clean, corrupt = (model(text, return_type="logits").astype(np.float64)[0] for text in PAIR)
    p, q = softmax(clean), softmax(corrupt)
    right, wrong = (model.to_single_token(one) for one in ANSWERS)
    ids = model.tokenizer.encode(PAIR[0])

    def loss(x: np.ndarray[Any, Any]) -> float:
        return float(-np.log(x[range(len(ids) - 1), ids[1:]]).mean())

    expected = {
        "probability": (p[-1, right], q[-1, right]),
        "probability-difference": (p[-1, right] - p[-1, wrong], q[-1, right] - q[-1, wrong]),
        "log-prob": (np.log(p[-1, right]), np.log(q[-1, right])),
        "kl": (0.0, float((p[-1] * np.log(p[-1] / q[-1])).sum())),
        "loss": (loss(p), loss(q)),
    }[name]
    answers = {"probability": ANSWERS[:1], "log-prob": ANSWERS[:1], "probability-difference": ANSWERS}.get(name, ())
    found = model.patching(*PAIR, *answers, metric=name)
    np.testing.assert_allclose([found.clean, found.corrupt], expected, rtol=1e-5, atol=1e-6)
    report = model.patch(*PAIR, *answers, metric=name)
    np.testing.assert_allclose([report["clean_difference"], report["corrupt_difference"]], expected, rtol=1e-5, atol=1e-6)
    assert report["metric"] == name
    exact = [head["exact"] for head in report["heads"]]
    np.testing.assert_allclose(exact, ((found.heads - found.corrupt) / (found.clean - found.corrupt)).reshape(-1), rtol=1e-4, atol=1e-5)
    scores = model.edge_scores(*PAIR, *answers, metric=name, steps=2)
    np.testing.assert_allclose(scores.report["corrupt_difference"]["mean"], expected[1], rtol=1e-5, atol=1e-6)
    assert np.abs(scores.array).max() > 0
    # With all edges, the model is the model.
    every = model.discover(*PAIR, *answers, metric=name, edges=len(scores), random=0, steps=1)
    assert np.isclose(every["circuit"]["faithfulness"], 1, atol=1e-5)


def test_a_metric_is_averaged_over_positions(model: Model) -> None:
    """The first-order estimates are gradients of what is measured."""
    right, wrong = (model.to_single_token(one) for one in ANSWERS)
    clean = model(PAIR[0], return_type="logits")[0]
    found = model.patching(*PAIR, *ANSWERS, positions=[3, 7])
    assert np.isclose(found.clean, (clean[[3, 7], right] - clean[[3, 7], wrong]).mean(), rtol=1e-5)
    report = model.discover(*PAIR, *ANSWERS, positions=[3, 7], edges=40, random=0, steps=1)
    assert np.isclose(report["clean_difference"]["mean"], found.clean, rtol=1e-5)
    assert report["metric"] == "the metric of the answers at positions [3, 7]"
    last = model.patching(*PAIR, *ANSWERS, positions=7)
    np.testing.assert_allclose(last.heads, model.patching(*PAIR, *ANSWERS).heads, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="positions=.8.: pair 0 has 8 tokens"):
        model.discover(*PAIR, *ANSWERS, positions=[8])


def test_pairs_need_no_answers_for_a_metric_that_reads_none(model: Model, gpt2: Any) -> None:
    pairs = [{"clean": PAIR[0], "corrupted": PAIR[1]}, {"clean": PAIR[1], "corrupted": PAIR[0]}]
    many = model.patch(pairs=pairs, metric="kl")
    both = [model.patch(*PAIR, metric="kl"), model.patch(*PAIR[::-1], metric="kl")]
    assert np.isclose(many["corrupt_difference"]["mean"], np.mean([one["corrupt_difference"] for one in both]), rtol=1e-6)
    report = gpt2("patch", *PAIR, "--metric", "kl")
    np.testing.assert_allclose([head["exact"] for head in report["heads"]], [head["exact"] for head in both[0]["heads"]], rtol=1e-9)
    report = gpt2("discover", *PAIR, "--metric", "probability", "--answer", ANSWERS[0], "--edges", "5", "--random", "0")
    mine = model.discover(*PAIR, ANSWERS[0], metric="probability", edges=5, random=0)
    assert report["circuit"]["edges"] == mine["circuit"]["edges"]
    with pytest.raises(ValueError, match="no 'correct'"):
        model.patch(pairs=pairs)


def test_a_probability_of_several_answers_is_that_of_any(model: Model) -> None:
    p = softmax(model(TEXT, return_type="logits").astype(np.float64)[0])[-1]
    right, wrong = [3, 8, 21], [5, 13]
    name = "blocks.1.hook_resid_mid"
    whole = model.grad(TEXT, name, right, metric="probability")
    np.testing.assert_allclose(whole.metric, [p[right].sum()], rtol=1e-5)
    np.testing.assert_allclose(whole[name].grad, sum(model.grad(TEXT, name, one, metric="probability")[name].grad for one in right), rtol=1e-4, atol=1e-9)
    less = model.grad(TEXT, name, right, wrong, metric="probability-difference")
    np.testing.assert_allclose(less.metric, [p[right].sum() - p[wrong].sum()], rtol=1e-5)
    pairs = model.pairs("induction", 2)
    for pair in pairs:
        pair["correct"], pair["incorrect"] = [*pair["correct"], " thou"], [*pair["incorrect"], " the"]
    shares = model.patch(pairs=pairs, metric="probability-difference")["clean_difference"]["mean"]
    of_any = []
    for pair in pairs:
        p = softmax(model(pair["clean"], return_type="logits").astype(np.float64)[0])[-1]
        right, wrong = ([one if isinstance(one, int) else model.to_single_token(one) for one in pair[side]] for side in ("correct", "incorrect"))
        of_any.append(p[right].sum() - p[wrong].sum())
    assert np.isclose(shares, np.mean(of_any), rtol=1e-4)


def test_a_function_of_two_gets_its_pair(model: Model) -> None:
    pairs = model.pairs("induction", 3)

    def mine(logits: np.ndarray[Any, Any], pair: Any) -> tuple[float, np.ndarray[Any, Any]]:
        gradient = np.zeros_like(logits)
        gradient[0, -1, pair["correct"]], gradient[0, -1, pair["incorrect"]] = 1, -1
        return float((logits * gradient).sum()), gradient

    expected, found = model.patch(pairs=pairs), model.patch(pairs=pairs, metric=mine)
    for report in expected, found:
        assert len(report["heads"]) == 16
    close: Any = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose([head["exact"]["mean"] for head in found["heads"]], [head["exact"]["mean"] for head in expected["heads"]], **close)
    np.testing.assert_allclose(model.edge_scores(pairs=pairs, metric=mine).array, model.edge_scores(pairs=pairs).array, rtol=1e-3, atol=1e-4)
    with pytest.raises(TypeError, match="a second parameter is for the pair"):
        model.patch(*PAIR, metric=mine)
    with pytest.raises(TypeError, match="no pairs here"):
        model.grad(TEXT, "hook_embed", metric=mine)


def test_the_pair_comes_by_its_name_too(model: Model) -> None:
    pairs = model.pairs("induction", 2)
    expected = model.patch(pairs=pairs)["clean_difference"]["mean"]

    def mine(logits: np.ndarray[Any, Any], pair: Any = None) -> tuple[float, np.ndarray[Any, Any]]:
        gradient = np.zeros_like(logits)
        gradient[0, -1, pair["correct"]], gradient[0, -1, pair["incorrect"]] = 1, -1
        return float((logits * gradient).sum()), gradient

    class Held:
        def measure(self, logits: np.ndarray[Any, Any], pair: Any) -> Any:
            return mine(logits, pair)

    @functools.wraps(mine)
    def of_first(logits: np.ndarray[Any, Any]) -> Any:
        return mine(logits, pairs[0])

    def third(logits: np.ndarray[Any, Any], scale: float = 1.0, pair: Any = None) -> Any:
        assert scale == 1.0
        return mine(logits, pair)

    @functools.wraps(mine)
    def decorated(*args: Any, **named: Any) -> Any:
        return mine(*args, **named)

    def keyword(logits: np.ndarray[Any, Any], *, pair: Any) -> Any:
        return mine(logits, pair)

    partial = functools.partial(third, scale=1.0)
    for metric in (mine, Held().measure, functools.partial(Held().measure), third, partial, decorated, keyword):
        assert np.isclose(model.patch(pairs=(pair for pair in pairs), metric=metric)["clean_difference"]["mean"], expected, rtol=1e-5)  # type: ignore[arg-type]
    of_one = functools.partial(mine, pair=pairs[0])
    assert model.patch(pairs=pairs[:1], metric=of_one)["metric"] == "a function of logits"
    assert model.patch(pairs=pairs[:1], metric=of_first)["metric"] == "a function of logits"


class Tensor:
    """What `torch_metric` asks of a tensor: the gate has no torch."""

    requires_grad = True

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def requires_grad_(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.array

    def detach(self) -> Any:
        return self.array


def test_a_metric_in_torch_is_called_with_what_it_takes(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # All functions here add up the logits, whose gradient is 1 everywhere.
    differentiate = SimpleNamespace(grad=lambda value, given: (Tensor(np.ones_like(given.array)),))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_dlpack=Tensor, autograd=differentiate))
    pairs = model.pairs("induction", 2)
    total = torch_metric(lambda logits: Tensor(logits.array.sum()))
    assert np.isclose(model.grad(TEXT, "hook_embed", metric=total).metric[0], model(TEXT).logits.sum(), rtol=1e-5)
    ones = model.grad(TEXT, "hook_embed", metric=lambda logits: (float(logits.sum()), np.ones_like(logits)))["hook_embed"].grad
    np.testing.assert_array_equal(model.grad(TEXT, "hook_embed", metric=total)["hook_embed"].grad, ones)
    assert np.isclose(model.patching(*PAIR, metric=total).clean, model(PAIR[0]).logits.sum(), rtol=1e-5)
    assert model.effects(TEXT, metric=total).change.shape == (4, 4)
    alone = model.patch(pairs=pairs, metric=total)["clean_difference"]["mean"]
    seen: list[Any] = []

    def of_pair(logits: Any, pair: Any) -> Any:
        seen.append(pair)
        return Tensor(logits.array.sum())

    assert model.patch(pairs=pairs, metric=torch_metric(of_pair))["clean_difference"]["mean"] == alone
    assert {id(pair) for pair in seen} == {id(pair) for pair in pairs}
    with pytest.raises(TypeError, match="no pairs here"):
        model.grad(TEXT, "hook_embed", metric=torch_metric(of_pair))


def test_a_metric_in_torch_gets_its_pair(model: Model) -> None:
    pytest.importorskip("torch")
    pairs = model.pairs("induction", 3)
    of_torch = torch_metric(lambda logits, pair: logits[0, -1, pair["correct"]].mean() - logits[0, -1, pair["incorrect"]].mean())
    expected = model.patch(pairs=pairs)["clean_difference"]["mean"]
    assert np.isclose(model.patch(pairs=pairs, metric=of_torch)["clean_difference"]["mean"], expected, rtol=1e-5)


def test_pairs_need_the_answers_that_their_metric_reads(model: Model) -> None:
    pairs = [{"clean": PAIR[0], "corrupted": PAIR[1], "correct": [ANSWERS[0], " lord"]}]
    of_any = model.patch(*PAIR, pairs[0]["correct"], metric="probability")
    assert np.isclose(of_any["clean_difference"], model.patching(*PAIR, pairs[0]["correct"], metric="probability").clean, rtol=1e-6)  # type: ignore[arg-type]
    assert np.isclose(model.patch(pairs=pairs, metric="probability")["clean_difference"]["mean"], of_any["clean_difference"], rtol=1e-6)
    assert model.patch(pairs=pairs, metric="loss")["metric"] == "loss"
    # Other answers, another fingerprint; and the metric is among the settings.
    of_one = [model.discover(*PAIR, answer, metric="probability", edges=12, random=0)["settings"] for answer in (ANSWERS[0], " lord")]
    assert of_one[0]["fingerprint"] != of_one[1]["fingerprint"] and of_one[0]["metric"] == "probability"
    with pytest.raises(ValueError, match="answer: metric=.loss. does not read it"):
        model.patch(*PAIR, ANSWERS[0], metric="loss")
    for run in (model.patching, model.patch):
        with pytest.raises(ValueError, match="is of one right answer; give one"):
            run(*PAIR, [ANSWERS[0], " lord"], metric="log-prob")


def test_metrics_that_cannot_be_are_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="metric 'accuracy': expected logit-difference"):
        model.grad(TEXT, "hook_embed", " thou", metric="accuracy")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected its value and its gradient"):
        model.grad(TEXT, "hook_embed", metric=lambda logits: logits.sum())
    with pytest.raises(ValueError, match="the metric's gradient: expected an array of shape"):
        model.grad(TEXT, "hook_embed", metric=lambda logits: (1.0, logits[0]))
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"the metric is {number}, expected a finite number"):
            model.grad(TEXT, "hook_embed", metric=lambda logits, number=number: (number, logits))
    for gradient in (np.nan, 1e300):
        with pytest.raises(ValueError, match="the metric's gradient has NaN or infinity"):
            model.grad(TEXT, "hook_embed", metric=lambda logits, gradient=gradient: (1.0, np.full(logits.shape, gradient)))
    assert model.effects(TEXT, metric=lambda logits: (1.0, np.zeros_like(logits))).plain == 1.0
    for answers in ([" thou", " the"], np.array([5, 6])):
        both: Any = {"answer": answers, "against": " king"}
        runs = [
            lambda both=both: model.grad([TEXT, TEXT], "hook_embed", **both),
            lambda both=both: model.run_with_cache([TEXT, TEXT], incl_bwd=True, **both),
            lambda both=both: model.run_with_hooks([TEXT, TEXT], bwd_hooks=[("hook_embed", lambda value, hook: None)], **both),
            lambda both=both: model.direct([TEXT, TEXT], **both),
        ]
        for run in runs:
            with pytest.raises(ValueError, match="one answer for each of the 2 texts"):
                run()
    with pytest.raises(TypeError, match="leave answer, against and positions out"):
        model.grad(TEXT, "hook_embed", " thou", metric=lambda logits: (1.0, logits))
    with pytest.raises(ValueError, match="answer: give the token"):
        model.grad(TEXT, "hook_embed", metric="probability")
    for name in ("probability", "log-prob", "logit"):
        with pytest.raises(TypeError, match=f"metric '{name}': does not read against"):
            model.grad(TEXT, "hook_embed", " thou", " the", metric=name)  # type: ignore[arg-type]
    for name in ("logit-difference", "probability-difference"):
        with pytest.raises(TypeError, match=f"metric '{name}': needs wrong answers, too"):
            model.patching(*PAIR, " thou", metric=name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="metric 'loss': does not read answer"):
        model.effects(TEXT, " thou", metric="loss")
    with pytest.raises(ValueError, match="give reference"):
        model.grad(TEXT, "hook_embed", metric="kl")

    def broken(logits: Any) -> Any:
        raise ZeroDivisionError("mine")

    for run in (lambda: model.grad(TEXT, "hook_embed", metric=broken), lambda: model.patching(*PAIR, metric=broken), lambda: model.discover(*PAIR, metric=broken)):
        with pytest.raises(ZeroDivisionError, match="mine"):
            run()
