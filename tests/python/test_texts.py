"""Predictions, continuations, corpora and files of models: against the command, number for number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, TEXT, safetensors

import gpt2_candle
from gpt2_candle import Model

PROMPTS = ["ROMEO:", "O Romeo, Romeo!", "To be, or not to be"]


def test_forward_is_the_command_s(model: Model, gpt2: Any, tmp_path: Path) -> None:
    found = model.forward(TEXT, top_k=3, compare=True, ablate="1.*", block="3:1")
    expected = gpt2("forward", TEXT, "--top-k", "3", "--compare", "--ablate", "1.*", "--block", "3:1")
    assert found.report == expected
    file = str(tmp_path / "run.safetensors")
    gpt2("forward", TEXT, "--export", file, "--export-point", "blocks.*.hook_resid_post", "--ablate", "1.*")
    exported = safetensors(Path(file))
    found = model.forward(TEXT, export_point="blocks.*.hook_resid_post", ablate="1.*")
    arrays = {"logits": found.logits, "hidden_states": found.hidden_states, **found.points}
    assert sorted(arrays) == sorted(exported)
    for name, values in exported.items():
        np.testing.assert_array_equal(arrays[name], values, err_msg=name)
    assert "perplexity" in repr(found)
    with pytest.raises(ValueError, match="nothing to compare"):
        model.forward(TEXT, compare=True)
    with pytest.raises(ValueError, match="blocks.0.attn.hook_z"):
        model.forward(TEXT, export_point="blocks.0.attn.z")


def test_many_prompts_take_all_interventions(model: Model) -> None:
    means = ["My lord", "O Romeo, Romeo!"]
    options: Any = {"max_new_tokens": 12, "seed": 3}
    plain = [one.ids for one in model.generate(PROMPTS, **options)]
    interventions: list[dict[str, Any]] = [
        {"ablate": "1.*", "scale": {"2.1": 3.0}},
        {"block": ["3:1", "9:0"]},
        {"patch": ["0.mlp@1", "2@0"], "from_prompt": "My lord, my king"},
        {"mean_ablate": "1.*", "mean_of": means},
        {"circuit": [("embed", "logits"), ("0.mlp", "logits")], "mean_of": means},
    ]
    for changes in interventions:
        asked: Any = {**options, **changes}
        alone = [model.generate(prompt, **asked) for prompt in PROMPTS]
        assert model.generate(PROMPTS, **asked) == alone
        assert model.generate(PROMPTS, batch=2, **asked) == alone
        assert [one.ids for one in alone] != plain, "the interventions change nothing: this shows nothing"
        assert [model.generate(prompt, draft="lookup", **asked) for prompt in PROMPTS] == alone
    with pytest.raises(ValueError, match="mean_of"):
        model.generate(PROMPTS, mean_ablate="1.0")
    with pytest.raises(ValueError, match="grows beyond from_prompt"):
        model.generate("ROMEO:", circuit=[("embed", "logits")], from_prompt="My lord")


def test_beams_and_drafts_are_the_command_s(model: Model, gpt2: Any) -> None:
    found = model.generate("ROMEO:", beams=3, length_penalty=0.5, max_new_tokens=10, ablate="1.*")
    expected = gpt2("generate", "ROMEO:", "--beams", "3", "--length-penalty", "0.5", "-n", "10", "--ablate", "1.*")
    assert found.report["hypotheses"] == expected["hypotheses"]
    assert (found.ids, found.text) == (expected["hypotheses"][0]["ids"], expected["hypotheses"][0]["text"])
    found = model.generate("ROMEO:", draft="q4_0", max_new_tokens=20)
    expected = gpt2("generate", "ROMEO:", "--draft", "q4_0", "-n", "20")
    assert (found.ids, found.report["draft"]) == (expected["ids"], expected["draft"])
    assert model.generate("ROMEO:", greedy=True, max_new_tokens=8).ids == model.generate("ROMEO:", temperature=0, max_new_tokens=8).ids
    steps: list[Any] = []
    model.generate("ROMEO:", max_new_tokens=4, progress=lambda *step: steps.append(step))
    assert steps == [("tokens", done, None) for done in range(1, 5)]
    refused: list[tuple[Any, str]] = [
        ({"beams": 2, "stop": "."}, "stop"),
        ({"beams": 2, "temperature": 0.5}, "temperature"),
        ({"early_stopping": True}, "beams"),
        ({"draft": "/nowhere"}, "draft|nowhere"),
        ({"top_p": float("nan")}, "top_p is nan"),
    ]
    for asked, says in refused:
        with pytest.raises((ValueError, OSError), match=says):
            model.generate("ROMEO:", **asked)
    with pytest.raises(TypeError, match="beams"):
        model.stream("ROMEO:", beams=2)


def test_corpora_are_scored_as_by_the_command(model: Model, gpt2: Any, tmp_path: Path) -> None:
    corpus = tmp_path / "lines.txt"
    corpus.write_text("\n".join([TEXT, "", "To be, or not to be", "My lord " * 200]))
    options = ("--by", "line", "--stride", "100", "--bos", "--ablate", "1.*")
    expected = gpt2("score", str(corpus), *options, "--jsonl", str(tmp_path / "theirs.jsonl"), "--summaries")
    asked: Any = {"by": "line", "stride": 100, "bos": True, "ablate": "1.*", "jsonl": tmp_path / "ours.jsonl", "summaries": True}
    assert model.score_corpus(corpus, **asked) == expected
    assert (tmp_path / "ours.jsonl").read_bytes() == (tmp_path / "theirs.jsonl").read_bytes()
    with pytest.raises(ValueError, match="exists already; choose another name, or give overwrite=True"):
        model.score_corpus(corpus, **asked)
    with pytest.warns(UserWarning, match="resume=True: this run has finished"):
        assert model.score_corpus(corpus, resume=True, **asked) == expected
    with pytest.raises(ValueError, match="resume"):
        model.score_corpus(corpus, resume=True)
    with pytest.raises(ValueError, match="which this reads"):
        model.score_corpus(corpus, by="line", jsonl=corpus, overwrite=True)
    circuit = tmp_path / "circuit.json"
    edges = '{"edges": [{"from": "embed", "to": "logits"}]}'
    circuit.write_text(edges)
    # By another name, too.
    (tmp_path / "link.json").hardlink_to(circuit)
    for out in (circuit, tmp_path / "link.json"):
        with pytest.raises(ValueError, match="which this reads"):
            model.score_corpus(corpus, by="line", jsonl=out, overwrite=True, circuit=circuit)
    assert circuit.read_text() == edges
    with pytest.raises(ValueError, match="expected the name of a file"):
        model.score_corpus(corpus, by="line", jsonl="-")
    with pytest.raises(ValueError, match="stride"):
        model.score_corpus(corpus, stride=257)


def test_files_are_those_of_the_command(gpt2: Any, tmp_path: Path) -> None:
    assert gpt2_candle.inspect()["tensors"] == gpt2("inspect")["tensors"]
    assert gpt2_candle.inspect("demo", points=True) == gpt2("inspect", "--points")
    adapter = str(next(path.parent for path in sorted((DATA / "lora").rglob("adapter_config.json"))))
    assert gpt2_candle.inspect(adapter) == gpt2("inspect", adapter)
    report = gpt2_candle.import_model(DATA / "brought/ckpt.pt", tmp_path / "ours", save_dtype="f16")
    expected = gpt2("import", str(DATA / "brought/ckpt.pt"), "--out", str(tmp_path / "theirs"), "--save-dtype", "f16")
    assert report["parameters"] == expected["parameters"]
    names = sorted(path.name for path in (tmp_path / "ours").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "theirs").iterdir())
    for name in names:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    with pytest.raises(ValueError, match="holds config.json already"):
        gpt2_candle.import_model(DATA / "brought/ckpt.pt", tmp_path / "ours")
    with pytest.raises(ValueError, match="is the folder of the model"):
        gpt2_candle.import_model(tmp_path / "ours", tmp_path / "ours", overwrite=True)
    # A folder of links is the model's, and so is the folder that they lead to.
    (tmp_path / "links").mkdir()
    for name in names:
        (tmp_path / "links" / name).symlink_to(tmp_path / "ours" / name)
    for out in ("links", "ours"):
        with pytest.raises(ValueError, match="is the folder of the model"):
            gpt2_candle.import_model(tmp_path / "links", tmp_path / out, overwrite=True)
    report = gpt2_candle.quantize(None, tmp_path / "ours.gguf", to="q4_0")
    expected = gpt2("quantize", "--to", "q4_0", "--out", str(tmp_path / "theirs.gguf"))
    assert {**report, "file": ""} == {**expected, "file": ""}
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
    with pytest.raises(ValueError, match="is there already"):
        gpt2_candle.quantize(None, tmp_path / "ours.gguf")
    with pytest.raises(ValueError, match="adapter"):
        gpt2_candle.merge(tmp_path / "merged", adapter={})
    assert not (tmp_path / "merged").exists()


def test_adapters_are_merged_as_by_the_command(gpt2: Any, tmp_path: Path) -> None:
    examples = [{"prompt": "Who speaks? ", "completion": "ROMEO"}, {"prompt": "Who hears? ", "completion": "JULIET"}] * 4
    run = gpt2_candle.train(examples, model=Model.load(), lora=gpt2_candle.LoRA(r=4), steps=3, batch=2, window=32, warmup=1)
    run.model.save_adapter(tmp_path / "adapter", base="demo")
    report = gpt2_candle.merge(tmp_path / "ours", model="demo", adapter={str(tmp_path / "adapter"): 0.5})
    expected = gpt2("merge", "--model", "demo", "--adapter", f"{tmp_path / 'adapter'}=0.5", "--out", str(tmp_path / "theirs"))
    assert {**report, "out": ""} == {**expected, "out": ""}
    assert (tmp_path / "ours/model.safetensors").read_bytes() == (tmp_path / "theirs/model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="odd|adapter"):
        gpt2_candle.merge(tmp_path / "misfit", model=DATA / "odd", adapter=tmp_path / "adapter")
    assert not (tmp_path / "misfit").exists()
    compared = gpt2_candle.inspect(model="demo", adapter=tmp_path / "adapter")
    assert compared["fits"] and compared["layers"][0]["rank"] == 4


def test_warnings_name_the_line_of_the_caller(model: Model) -> None:
    def continued(text: str, **changes: Any) -> Any:
        return model.generate(text, max_new_tokens=1, **changes)

    for call in (model, model.forward, model.run_with_cache, continued):
        with pytest.warns(UserWarning, match="outside the circuit") as caught:
            call("O", circuit=[("embed", "logits")])  # what the other edges carry is a note
        assert caught[0].filename == __file__, call
