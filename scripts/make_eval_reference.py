#!/usr/bin/env python3
"""Writes tests/data/eval: small files in the form of each task's data set, and the results of lm-evaluation-harness on them.

    pip install -r scripts/requirements.txt lm_eval==0.4.13 pyarrow
    python scripts/make_eval_reference.py

The texts are written here; no data set is fetched. The harness' own task definitions read them, with its class for transformers' models
in f32: the demo model, and a random GPT-2 with the demo's tokenizer and a context of 64 tokens, so that many texts exceed it. `--large`
compares both programs on random weights of GPT-2 small's shape instead, and writes no file of the project.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "models" / "tiny-shakespeare"
OUT = ROOT / "tests" / "data" / "eval"
END = "<|endoftext|>"

SPEECH = (
    "First Citizen: Before we proceed any further, hear me speak. You are all resolved rather to die than to famish? Resolved. First, you "
    "know Caius Marcius is chief enemy to the people. We know't, we know't. Let us kill him, and we'll have corn at our own price."
)

# The last word is what follows the last space: several tokens, none, a mark, a line's end.
LAMBADA = [
    "To be, or not to be, that is the question",
    "O Romeo, Romeo! wherefore art thou Romeo",
    "Now is the winter of our discontent made glorious summer by this sun of York",
    "he said that he would never leave the castle without his daughter,",
    f"{SPEECH} {SPEECH} {SPEECH} {SPEECH} Is't a verdict",
    "a trailing space makes the last word empty ",
    "two  spaces before the  end",
    "a line\nends before\nthe king",
    "Schloß und Café: naïve",
    "What, ho",
    "antidisestablishmentarianism unpronounceable incomprehensibilities",
    "the king, the king, the king",
]
HELLASWAG = [
    ("Playing chess", "Two men sit at a table.", "they", ["move a piece.", "eat the board [step] and leave.", "sing.", "run  away  fast."], "0"),
    ("Personal Care", "How to speak to a king [title] Bow first. [step] Bend your knee", "", ["and wait.", "and shout!", "and wait.", "and wait."], "3"),
    ("Fencing", "THE MAN Draws His Sword.", "hE strikes the LORD", ["and the lord falls down dead.", "and he dies.", "", "O"], "2"),
    ("Reading", " ".join([SPEECH] * 4), "the citizen", ["goes on to speak.", "sleeps.", "will proceed no further.", "is resolved."], "1"),
    ("Étude", "Le café est fermé.", "élan vital", ["naïve", "coöperate", "Zoë", "the end"], "0"),
    ("Rowing", " A boat is on the water. ", " a woman ", [" rows. ", "rows.", "  ", "sinks"], "1"),
    ("Dancing", "The queen dances.", "she", ["dances.", "dances.", "dances.", "dances."], "0"),
    ("Dancing", "The queen dances.", "she", ["dances.", "dances.", "dances.", "dances."], "1"),
]
WIKITEXT = [
    " = The Tempest = \n \n The Tempest is a play by William Shakespeare , probably written in 1610 @-@ 11 , with 2 @,@ 283 lines and 1 @.@ 5 "
    "hours . It is set on an island ( the home of Prospero ) : a duke 's \" art \" ; who rules it ? \n \n = = Story = = \n \n = = = Act I = = = \n "
    "\n A ship is caught in a storm ! The sailors ' fear grows ; the king [ of Naples ] is lost { at sea } . The boats ' oars break . 20 ° C \n",
    " = A short one = \n \n It has N words . \n",
    "one",
    f" {SPEECH}  {SPEECH}\n\n{SPEECH} ( a ( b ) c ) '  x  ' \" \" (   ) /' 5/ and s ' t\n",
]
BLIMP = {
    "adjunct_island": [
        ("Who should the king hear before he speaks?", "Who should the king hear the lord before speaking?"),
        ("The people know him.", "The people knows him."),
        ("same", "same"),
        ("O", "Oh"),
        (SPEECH[:110], SPEECH[:105]),
    ],
    "wh_island": [
        ("What does he know?", "What does he knows?"),
        ("Speak, I say.", "Speak I, say."),
        ("I am not what I am.", "I is not what I am."),
    ],
}
# Our own form, and lm-eval's task of the same: texts as they stand, with nothing between context and choice.
QUIZ = [
    {"context": "Q: Who loves Juliet?\nA:", "choices": [" Romeo", " Caius Marcius", " nobody"], "answer": 0},
    {"context": "Trailing spaces move to the choice:  ", "choices": ["the king", " the king", "king"], "answer": 1},
    {"context": "", "choices": ["My lord", "Lord my"], "answer": 0},
    {"context": f"{END}", "choices": ["My lord", f"{END}My lord"], "answer": 1},
    {"context": "ro", "choices": ["meo", "mans", "und"], "answer": 2},
    {"context": SPEECH * 4, "choices": [" No.", " Resolved, resolved, resolved!", " a"], "answer": 1},
]
CLOZE = [
    {"context": "To be, or not to", "answer": " be"},
    {"context": "", "answer": "First"},
    {"context": SPEECH * 4, "answer": " What say you, my lord"},
    {"context": "ends in a line\n", "answer": "break"},
]


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_data(folder):
    lines(folder / "lambada.jsonl", [{"text": text} for text in LAMBADA])
    names = ("activity_label", "ctx_a", "ctx_b", "endings", "label")
    lines(folder / "hellaswag.jsonl", [dict(zip(names, row)) for row in HELLASWAG])
    lines(folder / "wikitext.jsonl", [{"page": page} for page in WIKITEXT])
    for name, pairs in BLIMP.items():
        lines(folder / "blimp" / f"{name}.jsonl", [{"sentence_good": good, "sentence_bad": bad} for good, bad in pairs])
    lines(folder / "quiz.jsonl", QUIZ)
    lines(folder / "cloze.jsonl", CLOZE)
    rows = {name: [row[i] for row in HELLASWAG] for i, name in enumerate(names)}
    # As the Hub's viewer writes data sets: Snappy, with dictionaries.
    pq.write_table(pa.table(rows), folder / "hellaswag.parquet", compression="snappy")


def write_random(folder):
    torch.manual_seed(7)
    sizes = {"vocab_size": 1024, "n_positions": 64, "n_embd": 16, "n_head": 2, "n_layer": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.35)
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())


def harness(model):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "tokenizer.json"), bos_token=END, eos_token=END)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device="cpu", dtype="float32")


def greedy(model, prompt, length):
    """The most probable continuation."""
    ids = torch.tensor([prompt])
    return model.generate(ids, do_sample=False, max_length=length, pad_token_id=0, eos_token_id=None)[0].tolist()


def losses(model, ids, rows, columns, steps, learning_rate):
    """The loss before each step of PyTorch's AdamW on one batch; matrices alone decay."""
    model.train()
    x = torch.tensor(ids[: rows * columns]).view(rows, columns)
    y = torch.tensor(ids[1 : rows * columns + 1]).view(rows, columns)
    decay = {True: 0.01, False: 0.0}
    groups = [
        {"params": [one for one in model.parameters() if (one.dim() >= 2) == matrix], "weight_decay": decay[matrix]} for matrix in decay
    ]
    adam = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8)
    found = []
    for _ in range(steps):
        logits = model(x).logits
        loss = nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
        adam.zero_grad()
        loss.backward()
        adam.step()
        found.append(loss.item())
    return found


def best_heads(model):
    """The head with the highest mean weight of each kind, on random tokens that repeat."""
    torch.manual_seed(11)
    length, repeats, rows = 12, 4, 16
    once = torch.randint(1, 1024, (rows, length))
    ids = torch.cat([torch.zeros(rows, 1, dtype=torch.long), once.repeat(1, repeats)], 1)
    with torch.no_grad():
        weights = torch.stack(model(ids, output_attentions=True).attentions)  # (L, B, H, T, T)
    queries = range(1 + length, 1 + length * repeats)
    copies = {q: [k for k in range(1, q) if (q - k) % length == 0] for q in queries}
    sums = {
        "previous_token": [weights[..., q, q - 1] for q in queries],
        "duplicate_token": [sum(weights[..., q, k] for k in copies[q]) for q in queries],
        "induction": [sum(weights[..., q, k + 1] for k in copies[q]) for q in queries],
    }
    found = {}
    for kind, values in sums.items():
        scores = torch.stack(values).mean(0).mean(1)  # (L, H)
        best = int(scores.argmax())
        found[kind] = f"{best // scores.size(1)}.{best % scores.size(1)}"
    return found


def write_answers():
    """Answers about both models in the form of `gpt2 verify --published`, by transformers and PyTorch."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "tokenizer.json"), bos_token=END, eos_token=END)
    documents = [speech + "\n\n" for speech in SPEECH.split(". ")] * 3
    ids = [id for document in documents for id in [0, *tokenizer.encode(document)]]
    answers = {}
    for name, folder in (("demo", DEMO), ("random", OUT / "random")):
        def load():
            config = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_implementation": "eager"}
            return GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, **config).eval()

        prompt = tokenizer.encode("O Romeo, Romeo")
        found = losses(load(), ids, 4, 32, 10, 1e-4)
        training = {"documents": documents, "rows": 4, "columns": 32, "learning_rate": 1e-4, "losses": found, "tolerance": 1e-5}
        answers[name] = [
            {"source": "transformers, greedy", "question": {"continuation": {"prompt": prompt, "ids": greedy(load(), prompt, 20)}}},
            {"source": "PyTorch's AdamW on transformers' model, f32", "question": {"losses": training}},
        ]
        # Of random weights, the head depends on the tokens.
        for kind, head in best_heads(load()).items() if name == "demo" else ():
            question = {"heads": {"score": kind, "heads": [head], "among": 3}}
            answers[name].append({"source": "transformers' attentions", "question": question})
    (OUT / "answers.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


def tasks(data):
    """The harness' own definitions, with our files in the place of the data sets."""

    def of(task, file, split):
        found = Path(lm_eval.tasks.__file__).parent.glob(f"*/{task.removeprefix('blimp_')}.yaml")
        defined = [load_yaml(path, resolve_func=True) for path in found if task not in ("quiz", "cloze")]
        defined = next((one for one in defined if one["task"] == task), {})
        splits = {f"{kind}_split": None for kind in ("training", "validation", "test", "fewshot")}
        splits[f"{'validation' if split == 'train' else split}_split"] = split
        data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {split: str(file)}}}
        return {key: value for key, value in defined.items() if key != "tag"} | {"task": task} | splits | data

    yield of("lambada_openai", data / "lambada.jsonl", "test")
    yield of("lambada_standard", data / "lambada.jsonl", "test")
    yield of("hellaswag", data / "hellaswag.jsonl", "validation")
    yield of("wikitext", data / "wikitext.jsonl", "test")
    for name in BLIMP:
        yield of(f"blimp_{name}", data / "blimp" / f"{name}.jsonl", "train")
    yield of("quiz", data / "quiz.jsonl", "test") | {
        "output_type": "multiple_choice",
        "doc_to_text": lambda doc: doc["context"],
        "doc_to_choice": lambda doc: doc["choices"],
        "doc_to_target": lambda doc: doc["answer"],
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    yield of("cloze", data / "cloze.jsonl", "test") | {
        "output_type": "loglikelihood",
        "doc_to_text": lambda doc: doc["context"],
        "doc_to_target": lambda doc: doc["answer"],
        "target_delimiter": "",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    }


def evaluated(lm, data, limit=None):
    found = lm_eval.simple_evaluate(
        model=lm, tasks=list(tasks(data)), task_manager=TaskManager(), limit=limit, log_samples=True, bootstrap_iters=100000
    )
    out = {}
    for name, metrics in found["results"].items():
        numbers = {key: value for key, value in metrics.items() if key not in ("alias", "name", "sample_len", "sample_count")}
        samples = found["samples"][name]
        out[name] = {
            "results": numbers,
            "n-samples": found["n-samples"][name],
            "version": found["versions"].get(name),
            "samples": [
                [list(reply) if isinstance(reply, tuple | list) else reply for reply in sample["filtered_resps"]]
                for sample in sorted(samples, key=lambda sample: sample["doc_id"])
            ],
        }
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", metavar="GPT2", help="compare this binary with the harness on random weights of GPT-2 small's shape")
    args = parser.parse_args()
    torch.set_num_threads(1 if not args.large else 2)
    if args.large:
        return compare_large(args.large)
    write_data(OUT)
    write_random(OUT / "random")
    reference = {}
    for name, folder in (("demo", DEMO), ("random", OUT / "random")):
        model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
        reference[name] = evaluated(harness(model), OUT)
        reference[name + " limited"] = {
            task: {"results": found["results"], "n-samples": found["n-samples"]}
            for task, found in evaluated(harness(model), OUT, limit=2).items()
        }
    write_answers()
    text = json.dumps(reference, indent=1, default=str)
    (OUT / "reference.json").write_text(text + "\n", encoding="utf-8")


def compare_large(binary):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torch.manual_seed(1)
        model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0)).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.05)
        model.save_pretrained(folder / "model")
        (folder / "model" / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
        write_data(folder / "data")
        expected = evaluated(harness(model), folder / "data")
        data = folder / "data"
        named = {"quiz": f"{data}/quiz.jsonl", "cloze": f"{data}/cloze.jsonl", "lambada_openai": f"lambada_openai={data}/lambada.jsonl"}
        named |= {"lambada_standard": f"lambada_standard={data}/lambada.jsonl", "hellaswag": f"hellaswag={data}/hellaswag.jsonl"}
        named |= {"wikitext": f"wikitext={data}/wikitext.jsonl", "blimp": f"blimp={data}/blimp"}
        command = [binary, "eval", *named.values(), "--model", str(folder / "model"), "--json", "-q"]
        got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["results"]
        worst = 0.0
        for task, found in expected.items():
            for metric, value in found["results"].items():
                if isinstance(value, str):
                    continue
                error = abs(got[task][metric] - value) / max(abs(value), 1e-9)
                worst = max(worst, error)
                print(f"{task:24} {metric:28} {value:.6g} {error:.1e}")
        print(f"largest relative difference {worst:.1e}")
        if not worst < 1e-4:
            sys.exit(1)


if __name__ == "__main__":
    main()
