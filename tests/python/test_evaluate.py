"""Evaluations: the command's numbers, and the harness itself with our model where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import DATA, ROOT

from gpt2_candle import Model

EVAL = DATA / "eval"
TASKS = [
    f"lambada_openai={EVAL}/lambada.jsonl",
    f"hellaswag={EVAL}/hellaswag.parquet",
    f"wikitext={EVAL}/wikitext.jsonl",
    f"blimp={EVAL}/blimp",
    str(EVAL / "quiz.jsonl"),
    str(EVAL / "cloze.jsonl"),
]


def test_the_report_is_the_commands(model: Model, gpt2: Callable[..., Any]) -> None:
    found, printed = model.evaluate(TASKS, samples=True), gpt2("eval", *TASKS, "--samples")
    assert found.keys() == printed.keys()
    assert {name: value for name, value in found.items() if name != "provenance"} == {
        name: value for name, value in printed.items() if name != "provenance"
    }
    limited = model.evaluate(EVAL / "quiz.jsonl", limit=2, ablate="0.1")
    assert limited == gpt2("eval", str(EVAL / "quiz.jsonl"), "--limit", "2", "--ablate", "0.1") | {"provenance": limited["provenance"]}
    assert limited["n-samples"]["quiz"] == {"original": 6, "effective": 2}


def test_the_numbers_are_the_harness_own(model: Model) -> None:
    reference = json.loads((EVAL / "reference.json").read_text(encoding="utf-8"))["demo"]
    found = model.evaluate(TASKS)["results"]
    for task in ("hellaswag", "blimp_wh_island", "quiz"):
        assert {key: found[task][key] for key in reference[task]["results"]} == pytest.approx(reference[task]["results"])


def test_mistakes_are_named(model: Model) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match="did you mean hellaswag"):
        model.evaluate("helaswag")
    with pytest.raises(ValueError, match="limit"):
        model.evaluate(TASKS, limit=0)
    with pytest.raises(ValueError, match="2 samples at least"):
        model.evaluate(TASKS, bootstrap=1)
    with pytest.raises((ValueError, FileNotFoundError), match="there is no task"):
        model.evaluate([])


def test_a_first_token_before_every_text_is_refused(model: Model) -> None:
    quiz = EVAL / "quiz.jsonl"
    with pytest.raises(ValueError, match="prepend_bos: evaluate puts"):
        model.evaluate(quiz, prepend_bos=True)
    loaded = Model.load(str(ROOT / "models" / "tiny-shakespeare"), prepend_bos=True)
    with pytest.raises(ValueError, match="prepend_bos: evaluate puts"):
        loaded.evaluate(quiz)
    assert loaded.evaluate(quiz, prepend_bos=False)["results"] == model.evaluate(quiz)["results"]


def test_samples_are_drawn_as_many_as_were_asked_for_and_can_be_interrupted(model: Model) -> None:
    heard: list[tuple[str, int, int | None]] = []

    def progress(steps: str, done: int, count: int | None) -> None:
        heard.append((steps, done, count))
        if steps == "samples" and count == 1_000_000:
            raise KeyboardInterrupt

    model.evaluate(EVAL / "cloze.jsonl", bootstrap=2500, progress=progress)
    assert heard[-1] == ("samples", 2500, 2500)
    with pytest.raises(KeyboardInterrupt):
        model.evaluate(EVAL / "cloze.jsonl", bootstrap=1_000_000, progress=progress)
    assert heard[-1][1] < 1_000_000


def test_the_harness_runs_our_model() -> None:
    lm_eval = pytest.importorskip("lm_eval")
    from gpt2_candle.harness import HarnessModel

    with pytest.raises(ValueError, match="prepend_bos: HarnessModel puts"):
        HarnessModel(Model.load(str(ROOT / "models" / "tiny-shakespeare"), prepend_bos=True))
    for name, folder in (("demo", ROOT / "models" / "tiny-shakespeare"), ("random", EVAL / "random")):
        ours = HarnessModel(Model.load(str(folder)))
        reference = json.loads((EVAL / "reference.json").read_text(encoding="utf-8"))[name]
        cloze = {
            "task": "cloze",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(EVAL / "cloze.jsonl")}},
            "output_type": "loglikelihood",
            "test_split": "test",
            "doc_to_text": lambda doc: doc["context"],
            "doc_to_target": lambda doc: doc["answer"],
            "target_delimiter": "",
            "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
        }
        found = lm_eval.simple_evaluate(model=ours, tasks=[cloze], bootstrap_iters=0)
        for measure in ("perplexity,none", "acc,none"):
            assert found["results"]["cloze"][measure] == pytest.approx(reference["cloze"]["results"][measure], rel=3e-3)
