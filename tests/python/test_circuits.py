"""Circuits: pairs, scores of edges, discovery, patching and weights, against the command's JSON."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2_candle import Circuit, Model

CLEAN, CORRUPT = " lord fair which king come out of lord", " king fair which lord come out of lord"
ANSWER, AGAINST = " fair", " come"
PAIR = (CLEAN, CORRUPT, ANSWER, AGAINST)
OPTIONS = (CLEAN, CORRUPT, "--answer", ANSWER, "--against", AGAINST)


def figures(report: dict[str, Any]) -> Any:
    """A report or a circuit without its provenance, in which a face may say what it is."""
    return {name: value for name, value in report.items() if name != "provenance"}


@pytest.fixture(scope="module")
def found(model: Model) -> dict[str, Any]:
    return model.discover(*PAIR)


def test_discover_is_that_of_the_command(found: dict[str, Any], gpt2: Any) -> None:
    assert figures(found) == figures(gpt2("discover", *OPTIONS))


def test_edge_scores_are_those_that_discover_chooses_by(model: Model, found: dict[str, Any], gpt2: Any) -> None:
    scores = model.edge_scores(*PAIR)
    assert len(scores) == found["all_edges"] == len(list(scores))
    for edge in found["circuit"]["edges"]:
        assert scores[edge["from"], edge["to"]] == edge["score"]
    assert [of[0] for of in scores.top(2)] == [("embed", "0.3.v"), ("0.3", "0.mlp")]
    between = model.edges(*PAIR)
    assert between.shape == (3, 4, 4, 4, 4)
    for part, name in enumerate("qkv"):
        assert between[part, 0, 3, 1, 2] == scores["0.3", f"1.2.{name}"]
    later = np.arange(4)[:, None] < np.arange(4)
    assert not between.sum(axis=0)[~later[:, None, :, None].repeat(4, 1).repeat(4, 3)].any(), "an edge leads to a later layer"
    with pytest.raises(KeyError, match="does not come before"):
        scores["1.0", "0.mlp"]
    with pytest.raises(KeyError, match="there is no edge"):
        scores["9.9", "logits"]
    # With the gradients of the clean run, they are those of discover without steps.
    clean = model.edge_scores(*PAIR, gradients="clean")
    for edge in gpt2("discover", *OPTIONS, "--steps", "0", "--edges", "60", "--random", "0")["circuit"]["edges"]:
        assert clean[edge["from"], edge["to"]] == edge["score"]


def test_a_circuit_is_saved_loaded_and_run(model: Model, found: dict[str, Any], gpt2: Any, tmp_path: Path) -> None:
    circuit = Circuit.of(found)
    assert len(circuit) == len(found["circuit"]["edges"]) and circuit.faithfulness == found["circuit"]["faithfulness"]
    path = tmp_path / "circuit.json"
    circuit.save(path)
    with pytest.raises(FileExistsError):
        circuit.save(path)
    theirs = tmp_path / "theirs.json"
    gpt2("discover", *OPTIONS, "--out", str(theirs))
    saved, written = (json.loads(one.read_text()) for one in (path, theirs))
    assert figures(saved) == figures(written)
    again = Circuit.load(theirs)
    assert again.edges == circuit.edges == Circuit.load(path).edges and pickle.loads(pickle.dumps(circuit)) == circuit
    logits = [model(CLEAN, circuit=one, from_prompt=CORRUPT).logits[0, -1] for one in (circuit, path, circuit.edges)]
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])
    right, wrong = (model.tokenizer.token_to_id(token) for token in (ANSWER, AGAINST))
    assert math.isclose(logits[0][right] - logits[0][wrong], found["circuit"]["each"][0]["circuit"], rel_tol=1e-3)
    with pytest.raises(TypeError, match=r"Circuit\.of"):
        model(CLEAN, circuit=found)  # type: ignore[arg-type]
    (tmp_path / "none.json").write_text("[1]")
    with pytest.raises(ValueError, match="is not a circuit"):
        Circuit.load(tmp_path / "none.json")


def test_a_circuit_draws_as_that_of_the_command(model: Model, found: dict[str, Any], gpt2: Any, tmp_path: Path) -> None:
    circuit = Circuit.of(found)
    for ending in ("svg", "png", "pdf"):
        theirs, mine = tmp_path / f"theirs.{ending}", tmp_path / f"mine.{ending}"
        gpt2("discover", *OPTIONS, "--picture", str(theirs), "--title", "one")
        model.draw(circuit, title="one").save(mine)
        assert mine.stat().st_size > 1000
    drawn = [(tmp_path / f"{name}.svg").read_text() for name in ("theirs", "mine")]
    ours, of_python = (re.findall(r"<(?:path|polyline|line|rect)[^>]*>", text) for text in drawn)
    assert len(ours) > len(circuit) and ours == of_python
    shown = model.draw(circuit)._repr_html_()
    assert "<svg" in shown and "f32 on cpu, fused attention" in shown
    one = model.draw(Circuit([("embed", "0.mlp"), ("0.mlp", "logits")]))
    assert one.title.endswith("a circuit of 2 edges") and "thick" not in one._repr_html_()
    with pytest.raises(ValueError, match="layers 0 to 3"):
        model.draw(Circuit([("7.1", "logits")]))
    with pytest.raises(ValueError, match="circuit"):
        model.draw(Circuit([("embed", "nowhere")]))
    with pytest.raises(ValueError, match="2 edges has 1 score"):
        model.draw(Circuit([("embed", "0.mlp"), ("0.mlp", "logits")], scores=[1.0]))
    assert model.draw(Circuit([("L0H3", "logits")]))._repr_html_() == model.draw(Circuit([("0.3", "logits")]))._repr_html_()
    with pytest.raises(ValueError, match="faithfulness is nan"):
        model.draw(Circuit([("embed", "logits")], float("nan")))
    with pytest.raises(ValueError, match="not a finite number"):
        model.draw(Circuit([("embed", "logits")], scores=[float("nan")]))
    with pytest.raises(TypeError, match=r"Circuit\.of"):
        model.draw(found)  # type: ignore[arg-type]


def test_pairs_and_patching_are_those_of_the_command(model: Model, gpt2: Any, tmp_path: Path) -> None:
    pairs = model.pairs("induction", 3, seed=1)
    assert pairs == model.pairs("induction", 3, seed=1) != model.pairs("induction", 3)
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    theirs = gpt2("patch", "--pairs", str(path), "--path", "embed->0.mlp")
    from_file = model.patch(pairs=path, path="embed->0.mlp")
    assert figures(from_file) == figures(theirs)
    mine = model.patch(pairs=pairs, path=["embed->0.mlp"])
    assert mine["heads"] == theirs["heads"] and mine["paths"] == theirs["paths"]
    assert mine["settings"]["fingerprint"] == theirs["settings"]["fingerprint"]
    one = model.patch(*PAIR, by_position=True)
    assert figures(one) == figures(gpt2("patch", *OPTIONS, "--by-position"))
    lost = model.path_patching(*PAIR, path="0.3->1.0.k,1.1.k,1.2.k", freeze="heads")["paths"]
    assert lost == gpt2("patch", *OPTIONS, "--path", "0.3->1.0.k,1.1.k,1.2.k", "--freeze", "heads")["paths"]
    for pair in (("0.3", "1.0.k,1.1.k,1.2.k"), ((0, 3), "1.0.k,1.1.k,1.2.k"), [("L0H3", "1.0.k,1.1.k,1.2.k")]):
        assert model.path_patching(*PAIR, path=pair, freeze="heads")["paths"] == lost


def test_heads_and_circuits_are_those_of_the_command(model: Model, gpt2: Any) -> None:
    assert figures(model.heads(length=10, batch=3, seed=2)) == figures(gpt2("heads", "--length", "10", "--batch", "3", "--seed", "2"))
    assert figures(model.circuits()) == figures(gpt2("circuits"))
    assert figures(model.circuits("3.0", token=[" king"], top=3)) == figures(gpt2("circuits", "3.0", "--token", " king", "-k", "3"))


def test_several_right_answers_count_by_their_mean_logit(model: Model) -> None:
    right, wrong = [" fair", " king"], [" come"]
    logits = model(CLEAN).logits[0, -1].astype(np.float64)
    ids = [[model.tokenizer.token_to_id(token) for token in tokens] for tokens in (right, wrong)]
    expected = logits[ids[0]].mean() - logits[ids[1]].mean()
    assert math.isclose(model.patch(CLEAN, CORRUPT, right, wrong)["clean_difference"], expected, rel_tol=1e-5)
    assert math.isclose(model.patching(CLEAN, CORRUPT, right, wrong).clean, expected, rel_tol=1e-5)
    assert math.isclose(model.patch(CLEAN, CORRUPT, ids[0], ids[1])["clean_difference"], expected, rel_tol=1e-5)
    with pytest.raises(ValueError, match="several right answers"):
        model.effects(CLEAN, right)
    with pytest.raises(ValueError, match="is empty"):
        model.effects(CLEAN, [])


def test_misuse_says_what_to_give(model: Model) -> None:
    with pytest.raises(TypeError, match="give clean, corrupt and answer, or pairs"):
        model.discover(CLEAN)
    with pytest.raises(TypeError, match="not both"):
        model.discover(*PAIR, pairs=[])
    with pytest.raises(ValueError, match="pair 0, there is no 'correct'"):
        model.discover(pairs=[{"clean": CLEAN, "corrupted": CORRUPT}])
    with pytest.raises(ValueError, match='pair 0.*no "incorrect"'):
        model.discover(pairs=[{"clean": CLEAN, "corrupted": CORRUPT, "correct": ANSWER}])
    with pytest.raises(ValueError, match="the clean prompt has 8 tokens"):
        model.discover(CLEAN, " king", ANSWER, AGAINST)
    with pytest.raises(ValueError, match="integrate"):
        model.edge_scores(*PAIR, gradients="clean", integrate="activations")
    with pytest.raises(ValueError, match="circuit: is not for discover"):
        model.discover(*PAIR, circuit=[("embed", "logits")])
    with pytest.raises(ValueError, match="unknown variant"):
        model.patch(*PAIR, freeze="some")  # type: ignore[arg-type]
