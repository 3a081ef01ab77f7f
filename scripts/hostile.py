#!/usr/bin/env python3
"""Runs every command on damaged inputs, by seed, and counts how each run ends. It goes on where an interrupted run stopped.

    cargo build --release && scripts/hostile.py --count 10000 --out /tmp/hostile
    scripts/hostile.py --out /tmp/hostile --again 17     run case 17 once more, and show what it prints
    scripts/hostile.py --self-test

A case has a number: with the seed, it decides the command, the input that is damaged, and how. Every other input is sound. A
run keeps its promise if it ends within the limit of time with exit code 0, 1 or 2, no panic, a line that begins with
"error: " unless the code is 0 or a report on stdout says what was found, at most 64 KiB on stderr without raw escapes, no temporary file left, and no sound input changed.

The folder --out holds `runs.jsonl`, a line a case, and the inputs. The table at the end has a row a command.
"""

import argparse
import collections
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
DEMO = ROOT / "models" / "tiny-shakespeare"
LIMIT = 60  # seconds
MEMORY = 4 << 30  # of address space
LONGEST = 64 << 10  # of stderr

# A run that is stopped, and gone on with.
BEGUN = "train --text {text} --out {begun}/run --steps 100 --eval-every 20 --n-embd 16 --n-layer 1 --n-head 2 --window 16 --vocab-size 300"
# Each line: the command, with {name} for an input and {out} for a path that is free. Each input may be damaged.
COMMANDS = [
    "forward --ids 1,2 --model {folder}",
    "forward --ids 1,2 --model {pickled}",
    "forward --ids 1,2 --model {gguf}",
    "forward --ids 1,2 --model {nano}",
    "forward --ids 1,2 --model {llmc}",
    "forward --ids 1,2 --model {part}",
    "forward --ids 1,2 --model {starcoder}",
    "forward --ids 1,2 --model {sharded}",
    "forward O --model {slow}",
    "generate O -n 3 --model {slow}",
    "live --model {slow} --out {out}/l.html",
    "forward O --model {demo}",
    "forward --file {text}",
    "forward O --circuit {circuit}",
    "forward --ids 1,2 --adapter {lora} --model {base}",
    "attention O --model {demo} --json",
    "attention --ids 1,2 --html {out}/a.html --model {folder}",
    "generate O -n 3 --model {demo}",
    "generate --texts {texts} -n 2",
    "inspect {folder}",
    "inspect {pickled} --json",
    "inspect {gguf}",
    "inspect {lora}",
    "import {nano} --out {out}/m",
    "import {llmc} --out {out}/m",
    "import {pickled} --out {out}/m",
    "import {part} --out {out}/m",
    "import {slow} --out {out}/m",
    "inspect {sharded}",
    "merge --model {base} --adapter {lora} --out {out}/m",
    "quantize {demo} --to q8_0 --out {out}/q.gguf",
    "compare {demo} demo --text {text}",
    "score {texts} --by line --jsonl {out}/s.jsonl",
    "eval {quiz} --out {out}/e.json --samples",
    "eval hellaswag={parquet} --json",
    "eval {task}/task.json",
    "eval wikitext={wikitext} lambada_openai={lambada} --json",
    "eval blimp={blimp} --limit 2",
    "eval {quiz} --journal {begun}/journal",
    "verify --published --answers {answers}",
    "features O --dictionary {sae} --json",
    "features --store {store} --dictionary {sae}",
    "train-features {store} --features 16 -k 2 --batch 16 --epochs 1 --out {out}/f",
    "record {text} --points blocks.1.hook_resid_post --out {out}/r",
    "train --text {text} --out {out}/t --steps 1 --n-embd 16 --n-layer 1 --n-head 2 --window 16 --vocab-size 300",
    f"{BEGUN} --resume",
    "record {text} --points blocks.1.hook_resid_post --out {begun}/record --resume",
    "train --jsonl {examples} --model {demo} --out {out}/t --steps 1 --window 32",
    "train --ids {ids} --model {demo} --out {out}/t --steps 1 --window 32 --optimizer muon",
    "lens O --model {demo}",
    "heads --model {demo} --length 5 --batch 1",
    "patch --pairs {pairs}",
    "discover --pairs {pairs} --edges 40 --out {out}/c.json",
    "circuits --model {demo}",
    "import {gguf} --out {out}/m",
    "bench forward -t 2 -r 1 --model {folder}",
    "forward O --model {repository} --offline --cache-dir {cache}",
    "verify-cache {repository} --offline --cache-dir {cache}",
]


def make_inputs(gpt2, folder):
    """Sound inputs by name: a file, or a folder of files."""
    folder.mkdir(parents=True)
    brought = DATA / "brought"

    def copied(name, *sources):
        (folder / name).mkdir()
        for source in sources:
            source, target = source if isinstance(source, tuple) else (source, source.name)
            shutil.copy(source, folder / name / target)

    copied("folder", DATA / "odd" / "config.json", DATA / "odd" / "model.safetensors")
    copied("pickled", brought / "config.json", (brought / "shared.bin", "pytorch_model.bin"))
    copied("demo", *[DEMO / name for name in ("config.json", "model.safetensors", "tokenizer.json")])
    copied("lora", *[DATA / "lora" / "default" / name for name in ("adapter_config.json", "adapter_model.safetensors")])
    copied("base", *[path for path in (DATA / "lora" / "base").iterdir() if path.is_file()])
    copied("sae", *(ROOT / "models" / "tiny-shakespeare-features").iterdir())
    for name, source in (
        ("nano.pt", brought / "ckpt.pt"),
        ("llmc.bin", brought / "llmc.bin"),
        ("starcoder.gguf", DATA / "gguf" / "starcoder.gguf"),
        ("gguf.gguf", DATA / "gguf" / "tiny.gguf"),
        ("quiz.jsonl", DATA / "eval" / "quiz.jsonl"),
        ("endings.parquet", DATA / "eval" / "hellaswag.parquet"),
        ("answers.json", DATA / "eval" / "answers.json"),
        ("wikitext.jsonl", DATA / "eval" / "wikitext.jsonl"),
        ("lambada.jsonl", DATA / "eval" / "lambada.jsonl"),
    ):
        shutil.copy(source, folder / name)
    copied("part", *[(path, path.name) for path in brought.glob("parts-*.gguf")])
    line = "O Romeo, Romeo! wherefore art thou Romeo?\n"
    (folder / "text.txt").write_text(line * 16)
    (folder / "ids.bin").write_bytes(b"".join((n % 1000).to_bytes(2, "little") for n in range(600)))
    (folder / "texts.txt").write_text(line * 4)
    rows = [json.dumps({"prompt": "O Romeo,", "completion": " Romeo!"})] * 4
    (folder / "examples.jsonl").write_text("\n".join(rows) + "\n")
    copied("task", DATA / "eval" / "cloze.jsonl")
    (folder / "task" / "task.json").write_text('{"data": "cloze.jsonl", "context": "{{context}}", "answer": "answer"}')
    copied("blimp", *(DATA / "eval" / "blimp").iterdir())
    sharded(folder / "sharded")
    slow(folder / "slow")
    run = lambda *args: subprocess.run([gpt2, *args], check=True, capture_output=True, text=True).stdout
    (folder / "pairs.jsonl").write_text(run("pairs", "induction", "--count", "2"))
    pairs = str(folder / "pairs.jsonl")
    run("discover", "--pairs", pairs, "--edges", "40", "--out", str(folder / "circuit.json"))
    # The value that the dictionary reads.
    point = ["--points", "blocks.2.hook_resid_post", "--shard-tokens", "256"]
    run("record", str(folder / "text.txt"), *point, "--out", str(folder / "store"))
    cache(folder / "cache")
    begun(gpt2, folder)
    return folder


def sharded(folder):
    """Two shards and their index, of the same tensors as `folder`'s."""
    folder.mkdir()
    shutil.copy(DATA / "odd" / "config.json", folder)
    content = (DATA / "odd" / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    names, places = sorted(header), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        head, body = {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            head[name] = header[name] | {"data_offsets": [len(body), len(body) + end - begin]}
            body += data[begin:end]
        text = json.dumps(head).encode()
        file = f"model-{number:05}-of-00002.safetensors"
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + body)
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def slow(folder):
    """The demo model with the files of a tokenizer that older programs wrote, and settings of generation."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(DEMO / name, folder)
    model = json.loads((DEMO / "tokenizer.json").read_text())["model"]
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    last = max(model["vocab"], key=model["vocab"].get)
    token = {"content": last, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "eos_token": last, "added_tokens_decoder": {str(model["vocab"][last]): token}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "added_tokens.json").write_text(json.dumps({last: model["vocab"][last]}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": token}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [model["vocab"][last]], "max_new_tokens": 3}))


def begun(gpt2, folder):
    """What runs leave that were stopped or have finished, to go on from."""
    (folder / "begun").mkdir()
    words = [word.replace("{text}", str(folder / "text.txt")).replace("{begun}", str(folder / "begun")) for word in BEGUN.split()]
    process = subprocess.Popen([gpt2, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    next(line for line in process.stderr if line.startswith("step "))
    process.send_signal(signal.SIGINT)
    process.communicate()
    if not (folder / "begun" / "run" / "training-state.safetensors").exists():
        sys.exit("error: train was faster than its signal; give BEGUN more steps")
    record = ["--points", "blocks.1.hook_resid_post", "--out", str(folder / "begun" / "record")]
    subprocess.run([gpt2, "record", str(folder / "text.txt"), *record], check=True, capture_output=True)
    journal = ["--journal", str(folder / "begun" / "journal")]
    subprocess.run([gpt2, "eval", str(folder / "quiz.jsonl"), *journal], check=True, capture_output=True)


def cache(folder):
    """A cache as Python's huggingface_hub writes it, with the demo model in it."""
    commit = "0123456789" * 4
    repo = folder / "models--who--name"
    for part in ("blobs", f"snapshots/{commit}", "refs"):
        (repo / part).mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        content = (DEMO / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        (repo / "blobs" / digest).write_bytes(content)
        (repo / "snapshots" / commit / name).symlink_to(f"../../blobs/{digest}")
    absent = repo / ".no_exist" / commit
    absent.mkdir(parents=True)
    for name in ("vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "tokenizer_config.json", "added_tokens.json",
                 "special_tokens_map.json", "generation_config.json"):
        (absent / name).touch()


FILES = {"nano": "nano.pt", "llmc": "llmc.bin", "starcoder": "starcoder.gguf", "gguf": "gguf.gguf", "text": "text.txt",
         "texts": "texts.txt", "ids": "ids.bin", "examples": "examples.jsonl", "pairs": "pairs.jsonl",
         "circuit": "circuit.json", "quiz": "quiz.jsonl", "parquet": "endings.parquet",
         "answers": "answers.json", "wikitext": "wikitext.jsonl", "lambada": "lambada.jsonl"}


def path_of(world, name):
    if name == "repository":
        return "who/name"
    if name == "part":
        return str(world / "part" / "parts-00002-of-00003.gguf")
    return str(world / FILES.get(name, name))


NUMBERS = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, 2**63, 2**64, 1e308, -1e308, 1e-320, 0.5]
VALUES = [None, True, False, "", "\x1b[31m", "a" * 5000, [], {}, [[]], [0] * 2000, {"a": {"b": {}}}, *NUMBERS]
FOREIGN = [b"", b"\0" * 4096, b"\x1f\x8b\x08\0" + b"x" * 50, b"PK\x03\x04" + b"\0" * 60, b"<!DOCTYPE html><html>404</html>",
           b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", b"\x89HDF\r\n\x1a\n" + b"\0" * 50, b"GGUF\x03\0\0\0" + b"\xff" * 40,
           b"\x80\x04.", b"\xff\xfe" + "text".encode("utf-16-le"), b"[" * 200_000, b'{"a":' * 100_000, b"\x1b]0;title\x07\n" * 9, b"\n" * 4096,
           b"\xf0\x28\x8c\x28" * 100, (2**63 - 1).to_bytes(8, "little") + b"{}", (10).to_bytes(8, "little") + b'{"a":1}   ']


def change_json(rng, content):
    """One value of the JSON replaced, or one key removed, doubled or renamed; `None` if it is no JSON."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    places = []

    def walk(node):
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in list(keys)[:200]:
            places.append((node, key))
            walk(node[key])

    walk(value)
    if not places:
        return None
    node, key = rng.choice(places)
    kind = rng.randrange(3)
    if kind == 0 and isinstance(node, dict):
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[rng.choice(["", "\x1b[2J", str(key) * 3])] = node.pop(key)
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(value).encode()


def damaged(rng, content):
    """The content after one change, and the change's name."""
    kind = rng.choice(["flip", "flips", "cut", "grow", "zeros", "number", "swap", "foreign", "json", "json", "repeat"])
    data = bytearray(content)
    size = len(data)
    if kind == "json":
        changed = change_json(rng, content)
        if changed is not None:
            return changed, kind
        kind = "flip"
    # Headers decide more than data: half of the places are in the first part.
    place = lambda: rng.randrange(min(size, 600) if rng.random() < 0.5 else size) if size else 0
    if kind == "foreign" or size == 0:
        return rng.choice(FOREIGN), "foreign"
    if kind in ("flip", "flips"):
        for _ in range(1 if kind == "flip" else 20):
            data[place()] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[place():]
    elif kind == "grow":
        data += rng.randbytes(rng.choice([1, 8, 5000]))
    elif kind == "zeros":
        at = place()
        data[at : at + 3000] = bytes(len(data[at : at + 3000]))
    elif kind == "number":
        at = place()
        width = rng.choice([1, 4, 8])
        number = int(rng.choice([n for n in NUMBERS if isinstance(n, int)])) % (1 << (8 * width))
        data[at : at + width] = number.to_bytes(width, "little")
    elif kind == "swap":
        a, b, width = place(), place(), rng.choice([1, 8, 64])
        data[a : a + width], data[b : b + width] = data[b : b + width], data[a : a + width]
    elif kind == "repeat":
        at = place()
        data[at:at] = data[at : at + rng.choice([1, 16, 400])] * rng.choice([1, 3])
    return bytes(data), kind


def odd_place(rng, target):
    """Puts something that is no file in the file's place."""
    kind = rng.choice(["absent", "folder", "pipe", "zero", "loop", "unreadable-name"])
    target.unlink()
    if kind == "folder":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "zero":
        target.symlink_to("/dev/zero")
    elif kind == "loop":
        target.symlink_to(target.name)
    elif kind == "unreadable-name":
        target.symlink_to("nowhere\x1b[31m")
    return kind


def state(folder):
    """The hash of each file, to see what a run changed."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            files[str(path.relative_to(folder))] = hashlib.sha1(path.read_bytes()).hexdigest()
    return files


def prepare(seed, number, sound, world, is_damaged=True):
    """Copies the inputs of case `number`, damages one file; returns the command and what was done."""
    rng = random.Random(f"{seed}/{number}")
    line = COMMANDS[number % len(COMMANDS)]
    names = [name for name in re.findall(r"\{(\w+)\}", line) if name != "out"]
    for name in set(names) - {"repository"}:
        source = sound / FILES.get(name, name)
        target = world / source.name
        (shutil.copytree(source, target, symlinks=True) if source.is_dir() else shutil.copy(source, target))
    files = [path for path in sorted(world.rglob("*")) if path.is_file()]
    target = rng.choice(files)
    if not is_damaged:
        how = "sound"
    elif rng.random() < 0.06:
        how = odd_place(rng, target)
    else:
        real = target.resolve()
        content, how = damaged(rng, real.read_bytes())
        real.write_bytes(content)
    (world / "out").mkdir()
    args = []
    for word in line.split():
        for name in set(names):
            word = word.replace("{" + name + "}", path_of(world, name))
        args.append(word.replace("{out}", str(world / "out")))
    return args, f"{target.relative_to(world)}: {how}"


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(gpt2, args, world):
    environment = {"PATH": os.environ["PATH"], "HOME": str(world), "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    process = subprocess.Popen([gpt2, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment, cwd=world, preexec_fn=limited)
    try:
        out, err = process.communicate(timeout=LIMIT)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        code = "hang"
    return code, out, err, time.monotonic() - began


def broken(code, out, err, before, after, left):
    """The promises that the run broke, by name."""
    text = err.decode("utf-8", "replace")
    rows = [
        # Who gives a pipe is asked to write to it, and work that takes long says how long.
        ("hang", code == "hang" and not re.search(r"waiting for a program that writes to the pipe|, about .+ left", text)),
        ("signal", isinstance(code, int) and code < 0),
        ("code", isinstance(code, int) and code not in (0, 1, 2) and code >= 0),
        ("panic", "panicked" in text or "RUST_BACKTRACE" in text),
        ("no error", code in (1, 2) and not re.search(r"^error: ", text, re.MULTILINE) and not out),
        ("long", len(err) > LONGEST),
        ("escape", any(byte in err for byte in (b"\x1b", b"\x07"))),
        ("not UTF-8", text.encode() != err),
        ("temporary", any(".gpt2-" in name and ".gpt2-verified" not in name for name in left)),
        ("input changed", any(after.get(name) != digest for name, digest in before.items())),
    ]
    return [name for name, is_so in rows if is_so]


def case(given, number, sound, show=False):
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        world = Path(folder)
        args, how = prepare(given.seed, number, sound, world)
        inputs = lambda: {name: digest for name, digest in state(world).items() if not name.startswith("out/")}
        before = inputs()
        code, out, err, seconds = run(given.gpt2, args, world)
        left = [str(path) for path in world.rglob("*")]
        # A cache is written to when it is mended, and a run that goes on writes where it began.
        kept = {name: digest for name, digest in before.items() if not name.startswith(("cache/", "begun/"))}
        faults = broken(code, out, err, kept, inputs(), left)
        last = err.decode("utf-8", "replace").strip().splitlines()
        if show:
            print(*args, f"\n{how}\nexit {code} in {seconds:.1f} s; {faults or 'as promised'}\n{err.decode('utf-8', 'replace')[:4000]}")
        told = [line for line in last if line.startswith("error: ")] or last[-1:]
        text = told[0].replace(folder, "")[:300] if told else ""
        return {"case": number, "command": args[0], "damage": how, "code": code, "seconds": round(seconds, 2), "broken": faults, "last": text}


def check_sound(given, sound):
    """Every command succeeds on inputs that are whole."""
    failed = []
    for number, line in enumerate(COMMANDS):
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            args, _ = prepare(given.seed, number, sound, Path(folder), is_damaged=False)
            code, _, err, _ = run(given.gpt2, args, Path(folder))
            if code != 0:
                failed.append(f"{line}: exit {code}: {err.decode('utf-8', 'replace')[-500:]}")
    if failed:
        sys.exit("error: not even sound inputs do: " + "\n".join(failed))


def table(rows):
    classes = collections.defaultdict(collections.Counter)
    for row in rows:
        for name in (row["command"], "all"):
            classes[name][f"exit {row['code']}" if not row["broken"] else "broken"] += 1
    heads = sorted({one for counts in classes.values() for one in counts})
    print(f"{'':16}" + "".join(f"{head:>10}" for head in heads))
    for name in [*sorted(set(classes) - {"all"}), "all"]:
        print(f"{name:16}" + "".join(f"{classes[name][head]:>10}" for head in heads))
    bad = [row for row in rows if row["broken"]]
    for row in bad[:50]:
        print(f"case {row['case']}: {', '.join(row['broken'])}: {row['command']}, {row['damage']}: {row['last']}")
    return len(bad)


def self_test():
    """Programs that break one promise each are found out, and the same case is the same damage."""
    def of(script):
        with tempfile.TemporaryDirectory() as folder:
            code, out, err, _ = run("/bin/sh", ["-c", script], Path(folder))
            return broken(code, out, err, {}, {}, os.listdir(folder))

    for script, expected in (
        ("exit 0", []),
        ("echo 'error: x' >&2; exit 1", []),
        ("exit 1", ["no error"]),
        ("echo 'an error: x' >&2; exit 1", ["no error"]),
        ("echo error: panicked at x >&2; exit 101", ["code", "panic"]),
        ("kill -SEGV $$", ["signal"]),
        ("printf 'error: \\033[31m' >&2; exit 1", ["escape"]),
        ("touch .gpt2-x.tmp", ["temporary"]),
    ):
        found = of(script)
        assert found == expected, (script, found)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "runs.jsonl"
        assert finished(log) == []
        log.write_text('{"case": 0}\n{"ca')
        assert finished(log) == [{"case": 0}] and log.read_text() == '{"case": 0}\n'
    content = (DATA / "odd" / "config.json").read_bytes()
    kinds = {damaged(random.Random(n), content)[1] for n in range(300)}
    assert len(kinds) >= 9, kinds
    assert damaged(random.Random(5), content) == damaged(random.Random(5), content)
    print("the harness finds what it looks for")


def finished(log):
    """The cases in the log. A run that was killed may have left half a line at its end, which goes."""
    text = log.read_text() if log.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        log.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="cases in all, finished ones included (default 1000)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--gpt2", default=str(ROOT / "target" / "release" / "gpt2"))
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "gpt2-hostile")
    parser.add_argument("--again", type=int, metavar="CASE")
    parser.add_argument("--self-test", action="store_true")
    given = parser.parse_args()
    if given.self_test:
        return self_test()
    sound = given.out / "inputs"
    if not (given.out / "ready").exists():
        shutil.rmtree(given.out, ignore_errors=True)
        given.out.mkdir(parents=True)
        make_inputs(given.gpt2, sound)
        check_sound(given, sound)
        (given.out / "ready").write_text(f"{given.seed}\n")
    if (given.out / "ready").read_text() != f"{given.seed}\n":
        sys.exit(f"error: {given.out} is of another seed; name another folder")
    if given.again is not None:
        case(given, given.again, sound, show=True)
        return 0
    log = given.out / "runs.jsonl"
    rows = finished(log)
    done = {row["case"] for row in rows}
    end = time.monotonic() + 60 * given.minutes
    todo = (number for number in range(given.count) if number not in done)
    with log.open("a") as file, ThreadPoolExecutor(given.jobs) as pool:
        one = lambda number: case(given, number, sound) if time.monotonic() < end else None
        for row in pool.map(one, todo):
            if row:
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
    return 1 if table(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
