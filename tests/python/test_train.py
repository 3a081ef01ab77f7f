"""Training, files and comparisons: against the command, byte for byte."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import COMMAND, safetensors

from gpt2_candle import LoRA, Model, known_text, train

TEXT = "".join(f"the {a} of the {b} is {c}.\n" for a in ("king", "heart", "sea") for b in ("house", "land") for c in ("old", "cold", "bold") for _ in range(8))
SMALL: Any = {"steps": 6, "batch": 2, "window": 16, "warmup": 2, "eval_every": 3, "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 280}


def command(*arguments: str) -> None:
    found = subprocess.run([COMMAND, *arguments, "--quiet"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def options(**changes: Any) -> list[str]:
    found = []
    for name, value in {**SMALL, **changes}.items():
        found += [f"--{name.replace('_', '-')}", str(value)]
    return found


def same(a: Path, b: Path) -> None:
    a_, b_ = safetensors(a), safetensors(b)
    assert a_.keys() == b_.keys()
    for name, values in a_.items():
        np.testing.assert_array_equal(values, b_[name], err_msg=name)


def test_a_new_model_is_that_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    command("train", "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "theirs"), "--metrics", str(tmp_path / "m.jsonl"), *options())
    heard: list[tuple[int, float, float | None]] = []
    run = train(TEXT, callback=lambda *step: heard.append(step), **SMALL)
    assert run.finished and len(run.losses) == 6 and [step for step, _ in run.validation] == [3, 6]
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([loss for _, loss, _ in heard], [row["loss"] for row in rows], rtol=1e-6)
    assert [step for step, *_ in heard] == [1, 2, 3, 4, 5, 6] and heard[2][2] == pytest.approx(rows[2]["val_loss"])
    best = min(run.validation, key=lambda one: one[1])[0]
    run.model.save(tmp_path / "ours")
    if best == 6:  # the command saves the best step's weights
        same(tmp_path / "ours/model.safetensors", tmp_path / "theirs/model.safetensors")
    assert json.loads((tmp_path / "ours/config.json").read_text()) == json.loads((tmp_path / "theirs/config.json").read_text())
    again = Model.load(tmp_path / "ours")
    np.testing.assert_array_equal(again("the king").logits, run.model("the king").logits)
    assert run.model.generate("the", max_new_tokens=3).ids == again.generate("the", max_new_tokens=3).ids


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": "muon", "schedule": "trapezoid"}, {"optimizer": "muon", "muon_lr": 0.05, "lr": 0.003}, {"schedule": "linear", "lr": 0.01}],
)
def test_optimizers_and_schedules_are_those_of_the_command(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    metrics = tmp_path / "m.jsonl"
    command("train", "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), "--metrics", str(metrics), *options(**changes))
    run = train(TEXT, **{**SMALL, **changes})
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert run.losses == pytest.approx([row["loss"] for row in rows], rel=1e-6)
    assert [loss for _, loss in run.validation] == pytest.approx([row["val_loss"] for row in rows if row["val_loss"] is not None])


def test_epochs_samples_ids_and_another_text() -> None:
    small = {name: value for name, value in SMALL.items() if name != "steps"}
    run = train(TEXT, epochs=0.2, num_samples=2, sample_prompt="the ", sample_tokens=4, **small)
    assert [step for step, _ in run.samples] == [step for step, _ in run.validation]
    assert all(len(texts) == 2 and all(text.startswith("the ") for text in texts) for _, texts in run.samples)
    assert run.bytes_per_token is not None and run.bytes_per_token > 1
    last, bits = run.validation[-1][1], run.bits_per_byte[-1][1]
    assert bits == pytest.approx(last / np.log(2) / run.bytes_per_token)
    plain = train(TEXT, epochs=0.2, **small)
    assert plain.losses == run.losses and plain.samples == []
    apart = train(TEXT, val_text="the sea of the land is bold.\n" * 40, **SMALL)
    assert apart.validation != train(TEXT, **SMALL).validation
    ids = [(i * i + i // 3) % 280 for i in range(600)]
    of_ids = train(ids, **SMALL)
    assert of_ids.bytes_per_token is None and of_ids.bits_per_byte == []
    assert of_ids.model(ids[:9]).logits.shape == (1, 9, 280)
    assert train(np.array(ids), val_text=ids[:100], **SMALL).finished
    for wrong, error in [
        ({"epochs": 1.0, "steps": 3}, ValueError),
        ({"optimizer": "sgd"}, ValueError),
        ({"schedule": "step"}, ValueError),
        ({"muon_lr": 0.1}, ValueError),
        ({"val_text": [1, 2, 3]}, TypeError),
        ({"val_text": 3}, TypeError),
    ]:
        with pytest.raises(error):
            train(TEXT, **{**small, **wrong})  # type: ignore[arg-type]


def test_a_text_to_begin_with_is_known_by_name() -> None:
    assert len(known_text().encode()) == 1_115_394
    with pytest.raises(ValueError, match='"hamlet" is no text'):
        known_text("hamlet")


def test_an_adapter_is_that_of_the_command(tmp_path: Path, model: Model) -> None:
    examples = [{"prompt": f"What is {n}? ", "completion": f"It is {n + 1}."} for n in range(12)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, examples)))
    settings: Any = {"steps": 4, "batch": 2, "window": 32, "warmup": 1, "eval_every": 4}
    given = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command("train", "--jsonl", str(tmp_path / "data.jsonl"), "--model", "demo", "--lora", "4", "--out", str(tmp_path / "theirs"), *given)
    run = train(examples, model=model, lora=LoRA(r=4), **settings)
    run.model.save_adapter(tmp_path / "ours", base="demo")
    same(tmp_path / "ours/adapter_model.safetensors", tmp_path / "theirs/adapter_model.safetensors")
    again = Model.load(adapter=tmp_path / "ours")
    np.testing.assert_array_equal(again("What is 3?").logits, run.model("What is 3?").logits)
    assert np.abs(again("What is 3?").logits - model("What is 3?").logits).max() > 0, "the adapter changed nothing"
    run.model.save(tmp_path / "merged")
    np.testing.assert_allclose(Model.load(tmp_path / "merged")("What is 3?").logits, run.model("What is 3?").logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="is there already"):
        run.model.save_adapter(tmp_path / "ours")


def test_a_callback_stops_and_raises(model: Model) -> None:
    run = train(TEXT, callback=lambda step, loss, validation: step < 3, **SMALL)
    assert not run.finished and len(run.losses) == 3
    with pytest.raises(ZeroDivisionError):
        train(TEXT, callback=lambda *step: 1 / 0, **SMALL)
    for data, changes, kind, says in (
        ("", {}, ValueError, "too short"),
        (["only one"], {}, ValueError, "at least 2"),
        ([3.5], {}, TypeError, "whole number"),
        ([{"completion": "a"}], {}, TypeError, "prompt"),
        ([{"prompt": "a", "completion": ""}], {}, ValueError, "empty completion"),
        (TEXT, {"steps": 0}, ValueError, "steps is 0"),
        (TEXT, {"lora": 4}, TypeError, "model="),
        (TEXT, {"steps": 2**40}, ValueError, "at most"),
        (TEXT, {"model": "gpt2"}, TypeError, "Model.load"),
        (TEXT, {"n_head": 3}, ValueError, "n_embd"),
        (TEXT, {"lr": float("nan")}, ValueError, "lr"),
        (TEXT, {"val_fraction": 2.0}, ValueError, "val_fraction"),
    ):
        with pytest.raises(kind, match=says):
            train(data, **{**SMALL, **changes})  # type: ignore[arg-type]


def test_a_gguf_file_is_that_of_the_command(model: Model, tmp_path: Path) -> None:
    model.quantize(tmp_path / "ours.gguf", to="q8_0")
    command("quantize", "--to", "q8_0", "--out", str(tmp_path / "theirs.gguf"))
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
    loaded = Model.load(tmp_path / "ours.gguf")
    assert loaded.facts["quantized"]
    for path, changes, says in (
        ("ours.gguf", {}, "is there already"),
        ("model.bin", {}, "ends in .gguf"),
        ("new.gguf", {"to": "q3"}, "q4_k_m"),
    ):
        with pytest.raises(ValueError, match=says):
            model.quantize(tmp_path / path, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="quantized already|file of the model"):
        loaded.quantize(tmp_path / "ours.gguf", overwrite=True)
    with pytest.raises(ValueError, match="quantized"):
        loaded.save(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.gguf", "theirs.gguf"]


def test_a_folder_keeps_its_model(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "one")
    before = (tmp_path / "one/model.safetensors").read_bytes()
    loaded = Model.load(tmp_path / "one")
    with pytest.raises(ValueError, match="holds the model that is loaded"):
        loaded.save(tmp_path / "one", overwrite=True)
    with pytest.raises(ValueError, match="is there already"):
        model.save(tmp_path / "one")
    assert (tmp_path / "one/model.safetensors").read_bytes() == before
    loaded.save(tmp_path / "half", dtype="f16")
    assert (tmp_path / "half/model.safetensors").stat().st_size < 0.6 * len(before)


def test_comparisons_are_those_of_the_command(model: Model, gpt2: Any, tmp_path: Path) -> None:
    text = "O Romeo, Romeo! wherefore art thou Romeo?\nDeny thy father and refuse thy name;\n"
    (tmp_path / "text.txt").write_text(text)
    report = gpt2("compare", "demo", "demo", "--quantize-other", "q4_0", "--text", str(tmp_path / "text.txt"), "--window", "16")
    found = model.compare(Model.load(quantize="q4_0"), text, window=16)
    assert found.tokens == report["tokens"]
    np.testing.assert_allclose([found.perplexity, found.other_perplexity], [report["model"]["perplexity"], report["other"]["perplexity"]], rtol=1e-6)
    assert found.mean_kl_divergence == pytest.approx(report["mean_kl_divergence"])
    assert found.top_1_agreement == pytest.approx(report["top_1_agreement"])
    with pytest.raises(ValueError, match="at least 2"):
        model.compare(model, [1])
