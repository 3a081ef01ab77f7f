"""Values, hooks, interventions and analyses against what TransformerLens computed in f64 (tests/data/circuits), and passes against
transformers (tests/data/odd)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import DATA, safetensors

from gpt2_candle import Model

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
# What TransformerLens 2 calls normalized is after the layer norm's weight and bias.
OUTPUTS = {"ln1.hook_normalized": "ln1.hook_out", "ln2.hook_normalized": "ln2.hook_out", "ln_final.hook_normalized": "ln_final.hook_out"}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(DATA / "circuits/model", dtype="f64")


def reference(name: str) -> dict[str, np.ndarray[Any, Any]]:
    return safetensors(DATA / f"circuits/{name}.safetensors")


def ids(values: np.ndarray[Any, Any]) -> list[int]:
    return [int(one) for one in values.reshape(-1)]


def ours(name: str) -> str:
    for theirs, own in OUTPUTS.items():
        if name.endswith(theirs):
            return name.removesuffix(theirs) + own
    return name


def test_every_value_is_transformerlens_s(model: Model) -> None:
    hooks = reference("hooks")
    clean = ids(hooks["ids/clean"])
    logits, cache = model.run_with_cache(clean, lambda name: True)
    np.testing.assert_allclose(logits, hooks["logits"], **CLOSE)
    seen = 0
    for key, expected in hooks.items():
        version, _, name = key.partition("/")
        if version not in ("2x", "4x"):
            continue
        name = ours(name) if version == "2x" else name
        if name not in cache:
            continue
        seen += 1
        found = cache[name]
        if "attn_scores" in name:  # masked scores are -inf there, and have other stand-ins in the file
            visible = np.tril(np.ones(found.shape[-2:], bool))
            found, expected = found[..., visible], expected[..., visible]
        if expected.ndim == found.ndim + 1:
            expected = expected[:, :, 0]  # the same for each head
        np.testing.assert_allclose(found, expected.reshape(found.shape), err_msg=name, **CLOSE)
    assert seen > 120, seen


def test_a_hook_that_writes_has_transformerlens_s_effect(model: Model) -> None:
    hooks = reference("hooks")
    clean = ids(hooks["ids/clean"])

    def ramp(value: np.ndarray[Any, Any], hook: Any) -> np.ndarray[Any, Any]:
        n = value.shape[-1]
        return value * (0.5 + np.arange(n) / max(n - 1, 1))

    def in_place(value: np.ndarray[Any, Any], hook: Any) -> None:
        value[...] = ramp(value, hook)

    seen = 0
    for key, expected in hooks.items():
        if not key.startswith("ramp/"):
            continue
        name = ours(key.removeprefix("ramp/"))
        for function in (ramp, in_place):
            found = model.run_with_hooks(clean, [(name, function)])
            np.testing.assert_allclose(found[0, -1], expected, err_msg=name, **CLOSE)
        seen += 1
    assert seen >= 20, seen


def test_interventions_are_transformerlens_s(model: Model) -> None:
    known = reference("interventions")
    clean, corrupt, vector = ids(known["ids/clean"]), ids(known["ids/corrupt"]), known["vector"]
    others = [ids(known[f"ids/others.{i}"]) for i in range(5)]
    by_position = [ids(row) for row in known["ids/others by position"]]
    sites = {"resid_pre": "", "attn_out": ".attn", "mlp_out": ".mlp", "z": ""}
    seen: set[str] = set()
    for key, expected in known.items():
        words = key.split()
        changes: dict[str, Any]
        match words:
            case ["plain"]:
                changes = {}
            case ["patch", site, place]:
                place, at, position = place.partition("@")
                changes = {"patch": place + sites[site] + at + position, "from_prompt": corrupt}
            case ["zero", "z", head] if "@" not in head:
                changes = {"ablate": head}
            case ["mean", "z", head] if "@" not in head:
                changes = {"mean_ablate": [head], "mean_of": others}
            case ["mean", "by", "position", "z", head] if "@" not in head:
                changes = {"mean_ablate": [head], "mean_of": by_position}
            case ["steer", "resid_pre", place, factor]:
                changes = {"add": {place: float(factor) * vector}}
            case ["temperature", "scores", head, number] if "@" not in head:
                changes = {"attention_temperature": {head: float(number)}}
            case _:
                continue
        seen.add(words[0])
        # A vector is added in f32, as the command reads it from a file.
        close = {"rtol": 1e-5, "atol": 1e-5} if words[0] == "steer" else CLOSE
        np.testing.assert_allclose(model(clean, **changes).logits, expected, err_msg=key, **close)
    assert seen == {"plain", "patch", "zero", "mean", "steer", "temperature"}, seen


def test_patching_and_attribution_are_transformerlens_s(model: Model) -> None:
    known = reference("patching")
    clean, corrupt = ids(known["ids/clean"]), ids(known["ids/corrupt"])
    answer, against = int(known["ids/answer"][0]), int(known["ids/against"][0])
    calls: list[tuple[int, int]] = []
    parts = ["heads", "heads_by_position", "streams", "attention_by_position", "mlps_by_position"]
    found = model.patching(clean, corrupt, answer, against, parts=parts, progress=lambda *n: calls.append(n))  # type: ignore[arg-type]
    assert calls[-1][0] == calls[-1][1] == 3 * 3 + 3 * 3 * 12 + 3 * 36
    np.testing.assert_allclose([found.clean, found.corrupt], [known["metric/clean"], known["metric/corrupt"]], **CLOSE)
    names = ["patch/z", "patch/z by position", "patch/resid_pre", "patch/attn_out", "patch/mlp_out"]
    for part, name in zip(parts, names):
        np.testing.assert_allclose(found[part].values, known[name], err_msg=name, **CLOSE)
    estimate = model.attribution(clean, corrupt, answer, against)
    for part, name in zip(["heads", "streams", "attention", "mlps"], ["z", "resid_pre", "attn_out", "mlp_out"]):
        np.testing.assert_allclose(estimate[part].values, known[f"attribution/{name}"], err_msg=name, **CLOSE)
    np.testing.assert_allclose(model.edges(clean, corrupt, answer, against, gradients="corrupted"), known["eap"], **CLOSE)
    # The same change with the other sign: what the metric gains when the edge carries the corrupted run's value.
    np.testing.assert_allclose(model.edges(clean, corrupt, answer, against, gradients="clean"), -known["eap noising"], **CLOSE)
    np.testing.assert_allclose(model.edges(clean, corrupt, answer, against), known["eap-ig"], **CLOSE)
    # The gradient by itself: attribution patching is the change times it.
    name = "blocks.1.hook_resid_pre"
    value, gradient = model.grad(corrupt, name, answer, against)[name]
    _, cache = model.run_with_cache(clean, name)
    np.testing.assert_allclose(((cache[name] - value) * gradient).sum(-1)[0], known["attribution/resid_pre"][1], **CLOSE)


def test_direct_attribution_is_transformerlens_s(model: Model) -> None:
    known = reference("direct")
    clean, answer, against = ids(known["ids/clean"]), int(known["ids/answer"][0]), int(known["ids/against"][0])
    for target, pair in (("answer", (answer,)), ("difference", (answer, against))):
        for family, raw in (("centred", False), ("raw", True)):
            found = model.direct(clean, *pair, raw=raw)
            for name in ("heads", "attention_biases", "mlps", "embed", "pos_embed", "final_bias", "total"):
                np.testing.assert_allclose(getattr(found, name), known[f"{family}/{target}/{name}"], err_msg=name, **CLOSE)


def test_circuits_are_transformerlens_s(model: Model) -> None:
    known = reference("circuits")
    for kind in ("q", "k", "v"):
        np.testing.assert_allclose(model.composition(kind), known[f"composition/{kind.upper()}"], **CLOSE)  # type: ignore[arg-type]
    every = list(range(53))
    for head in ("0.1", "2.0"):
        np.testing.assert_allclose(model.circuit(head, "ov", every), known[f"ov/{head}"], **CLOSE)
        np.testing.assert_allclose(model.circuit(head, "qk", every), known[f"qk/{head}"], **CLOSE)


def test_passes_are_those_of_transformers() -> None:
    known = safetensors(DATA / "odd/reference.safetensors")
    model = Model.load(DATA / "odd")
    for t in (1, 2, 33, 77):
        output = model(known[f"T{t}.input_ids"], output_hidden_states=True, output_attentions=True)
        np.testing.assert_allclose(output.logits, known[f"T{t}.logits"], rtol=1e-4, atol=1e-5)
        for i, state in enumerate(output.hidden_states):
            np.testing.assert_allclose(state, known[f"T{t}.hidden_states.{i}"], rtol=1e-4, atol=1e-5)
        for i, weights in enumerate(output.attentions):
            if f"T{t}.attentions.{i}" in known:
                np.testing.assert_allclose(weights, known[f"T{t}.attentions.{i}"], rtol=1e-4, atol=1e-6)
