"""The faces of the engine: what a study has, the command and Python have, interventions included.

With ``pytest -s`` it prints the table.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from typing import Any

import pytest
from conftest import COMMAND

from gpt2_candle import Changes, Model, _native, train, verify
from gpt2_candle._inputs import Options

STUDIES = {name: (set(refused), json.loads(defaults)) for name, refused, defaults in _native.studies()}
# How a text is read is no intervention, but stands beside them.
INTERVENTIONS = [name.replace("_", "-") for name in Changes.__annotations__ if name != "prepend_bos"]

# A study that is a part of another one's command.
COMMANDS = {"effects": "attention", "rollout": "attention", "path-patching": "patch", "edge-scores": "discover", "features-in-store": "features"}

# A study whose method has another name.
METHODS = {"eval": "evaluate", "graph": "attribution_graph"}

# Options that a command takes without a name, or under another one.
IN_COMMAND = {
    ("*", "prompt"): "PROMPT",
    ("*", "pairs"): "--pairs",
    ("pairs", "task"): "TASK",
    ("circuits", "head"): "L.H",
    ("circuits", "seen_only"): "--all-tokens",  # the other way round
    ("eval", "tasks"): "TASK",
    ("edge-scores", "gradients"): "--steps",  # 0 are the clean run's
}

# Options that a method has under another name.
IN_PYTHON = {
    ("*", "prompt"): "text",
    ("generate", "prompt"): "prompt",
    ("effects", "effect"): "mean",
    ("effects", "target"): "answer",
}

# Options that a face lacks, and what serves there instead.
ELSEWHERE = {
    ("Python", "lens", "export_point"): "run_with_cache returns the values at points",
    ("Python", "attention", "export_point"): "run_with_cache returns the values at points",
    ("Python", "attention", "layer"): "the result has the weights of every head",
    ("Python", "attention", "head"): "the result has the weights of every head",
    ("Python", "effects", "raw"): "an option of direct, which has the shares",
}


def help_of(study: str) -> str:
    found = subprocess.run([COMMAND, COMMANDS.get(study, study), "--help"], capture_output=True, text=True, check=True)
    return found.stdout


def method_of(study: str) -> Any:
    return getattr(Model, METHODS.get(study, study).replace("-", "_"))


def keywords_of(study: str) -> set[str]:
    """The names that a method takes, with those of the mapping behind ``**options``."""
    names = set(inspect.signature(method_of(study)).parameters)
    for behind, mapping in (("options", Options), ("changes", Changes)):
        names |= set(mapping.__annotations__) if behind in names else set()
    return names


def given(table: dict[tuple[str, str], str], study: str, option: str) -> str | None:
    return table.get((study, option)) or table.get(("*", option))


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_the_same_options_in_each_face(study: str) -> None:
    text, keywords, missing = help_of(study), keywords_of(study), []
    for option in STUDIES[study][1]:
        flag = given(IN_COMMAND, study, option) or "--" + option.replace("_", "-")
        keyword = given(IN_PYTHON, study, option) or option
        faces = {"command": re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None, "Python": keyword in keywords}
        for face, has in faces.items():
            if not has and (face, study, option) not in ELSEWHERE:
                missing.append(f"{face} lacks {option}")
        print(f"{study:18} {option:18} {flag if faces['command'] else '-':24} {keyword if faces['Python'] else '-'}")
    assert not missing, f"{study}: {missing}"


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_takes_the_same_interventions_in_each_face(study: str) -> None:
    refused, text = STUDIES[study][0], help_of(study)
    takes = [name for name in INTERVENTIONS if name not in refused]
    print(f"{study:18} takes {', '.join(takes) or 'none'}")
    if study in COMMANDS:
        return  # the command's help tells of the whole command
    own = [name for name in refused if name in STUDIES[study][1]]  # an option of its own, which changes nothing
    shown = [name for name in INTERVENTIONS if name not in own and re.search(rf"^ +(-\w, )?--{name}(?![\w-])", text, re.MULTILINE)]
    assert sorted(shown) == sorted(takes)
    parameters = inspect.signature(method_of(study)).parameters.values()
    has_changes = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    assert has_changes == bool(takes)


def test_attention_and_its_effects_are_those_of_the_command(model: Model) -> None:
    def printed(*options: str) -> Any:
        found = subprocess.run([COMMAND, "attention", "--json", "-q", *options, "O Romeo"], capture_output=True, text=True, check=True)
        return json.loads(found.stdout)

    cases: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
        ("attention", {}, ()),
        ("attention", {"layer": [1], "head": [0, 2]}, ("--layer", "1", "--head", "0,2")),
        ("effects", {"effect": "mean", "raw": True}, ("--effect=mean", "--raw")),
        ("rollout", {}, ("--rollout",)),
    ]
    for study, asked, options in cases:
        found, arrays = model._study(study, {"prompt": "O Romeo", **asked}, {"ablate": "0.3"})
        assert found == printed("--ablate", "0.3", *options) and arrays, study


def test_verify_is_that_of_the_command() -> None:
    found = subprocess.run([COMMAND, "verify", "--json", "-q", "--device", "cpu", "--seed", "1"], capture_output=True, text=True, check=True)
    ours, theirs = verify(device="cpu", seed=1), json.loads(found.stdout)
    assert ours["passed"] and len(ours["checks"]) == len(theirs["checks"])
    differing = [(a, b) for a, b in zip(ours["checks"], theirs["checks"]) if a != b]
    assert not differing


def test_training_has_the_same_options_in_each_face() -> None:
    text, keywords = help_of("train"), set(inspect.signature(train).parameters)
    in_python = {option: "lora" for option in ("lora_alpha", "lora_dropout", "lora_target", "rslora")}  # fields of LoRA
    missing = []
    for option in json.loads(_native.train_defaults()):
        if not re.search(rf"(?<![\w-])--{option.replace('_', '-')}(?![\w-])", text):
            missing.append(f"the command lacks {option}")
        if in_python.get(option, option) not in keywords:
            missing.append(f"Python lacks {option}")
    assert not missing
    assert {"--text", "--ids", "--jsonl", "--val-text", "--model"} <= set(re.findall(r"--[\w-]+", text))


@pytest.mark.parametrize("study", [study for study, (refused, options) in STUDIES.items() if {"prompt", "pairs"} & set(options)])
def test_the_views_of_a_model_and_its_first_token_are_in_each_face(study: str) -> None:
    text = help_of(study)
    assert "--processed" in text and "--prepend-bos" in text
    parameters = inspect.signature(method_of(study)).parameters
    assert "prepend_bos" in Changes.__annotations__ and ({"changes", "options", "prepend_bos"} & set(parameters))


def test_an_unknown_option_is_named_with_the_nearest(model: Model) -> None:
    with pytest.raises(TypeError, match="ablate"):
        model.forward("O Romeo", ablat="0.3")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="there is no option 'topk'; did you mean 'top_k'"):
        model._study("forward", {"topk": 3}, {})


def test_refused_interventions_are_refused_by_name(model: Model) -> None:
    with pytest.raises(ValueError, match="circuit: is not for lens; it works in forward, attention, heads, generate, eval, score and record"):
        model.lens("O Romeo", circuit=[("embed", "logits")])
