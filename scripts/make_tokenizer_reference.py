#!/usr/bin/env python3
"""Writes tests/data/tokenizers: a small byte-level vocabulary, what files beside it may say, and the ids that transformers'
AutoTokenizer then gives.

    pip install -r scripts/requirements.txt
    python scripts/make_tokenizer_reference.py

`vocab.json`, `merges.txt` and `tokenizer.json` are the vocabulary. Each case of `cases.json` has a name; `files`, which are
written beside the vocabulary; `tokenizer`, the parts of tokenizer.json that differ, or null where vocab.json and merges.txt
are there instead; and `ids`, for each of the `texts`. `written.json` is the tokenizer.json that transformers' own
save_pretrained writes.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "tokenizers"
END = "<|endoftext|>"
TEXTS = [
    "Hi there",
    " Hi",
    "<T0> hi",
    "a <T1> b",
    "x<T0>y",
    "  <T0>  <T1>z",
    f"{END}Hi there",
    f"Hi{END}Hi",
    "12 the cat",
    "HELLO I'll go\n\n now",
    "é🦀 ｈｉ",
]
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}


def trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat. Hi there, hello hello there!\n"] * 30, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"] | {END: len(model["vocab"])}, model["merges"]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
VOCAB, MERGES = trained()
N = len(VOCAB)


def token(content, **flags):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return {"content": content} | flags


def declared(*tokens):
    """`added_tokens_decoder` of tokens from the first id after the vocabulary on."""
    return {"added_tokens_decoder": {str(id): token for id, token in enumerate(tokens, N)}}


def byte_level(prefix=False, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": True}


def template(*around):
    a, b = ({"Sequence": {"id": id, "type_id": i}} for i, id in enumerate("AB"))
    special = {"SpecialToken": {"id": END, "type_id": 0}}
    single = [special] * ("bos" in around) + [a] + [special] * ("eos" in around)
    names = {END: {"id": END, "ids": [N - 1], "tokens": [END]}} if around else {}
    return {"type": "TemplateProcessing", "single": single, "pair": [a, b], "special_tokens": names}


def added(*tokens):
    return [{"id": id} | token for id, token in enumerate(tokens, N - 1)]


def whole(parts):
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    bpe |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": VOCAB, "merges": MERGES}
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added(token(END)), "normalizer": None}
    file |= {"pre_tokenizer": byte_level(), "post_processor": byte_level(True, False), "decoder": byte_level()}
    return file | {"model": bpe} | parts


def cases():
    """Names, files and parts of tokenizer.json: `None` for vocab.json and merges.txt."""
    yield "nothing beside", {}, None
    yield "nothing beside tokenizer.json", {}, {}
    yield "only tokenizer.json, with a prefix space", {}, {"pre_tokenizer": byte_level(True)}
    for name, kind in (("no class", {}), ("GPT2", GPT2), ("GPT2Fast", {"tokenizer_class": "GPT2TokenizerFast"}), ("Fast", FAST)):
        for prefix in (None, False, True):
            config = kind | ({} if prefix is None else {"add_prefix_space": prefix})
            files = {"tokenizer_config.json": config}
            if kind is not FAST:
                yield f"{name}, add_prefix_space {prefix}", files, None
            for own in (False, True):
                yield f"{name}, add_prefix_space {prefix}, ByteLevel {own}", files, {"pre_tokenizer": byte_level(own)}
    for bos in (None, False, True):
        for eos in (None, True):
            config = {"add_bos_token": bos, "add_eos_token": eos}
            config = GPT2 | {name: value for name, value in config.items() if value is not None}
            files = {"tokenizer_config.json": config}
            yield f"bos {bos}, eos {eos}", files, None
            for post in (None, template(), template("bos"), template("bos", "eos")):
                length = len(post["single"]) if post else 0
                yield f"bos {bos}, eos {eos}, a template of {length}", files, {"post_processor": post}
    for name, config in (
        ("another begin", {"add_bos_token": True, "bos_token": "<T0>"}),
        ("no begin", {"add_bos_token": True, "bos_token": None}),
        ("begin and prefix space", {"add_bos_token": True, "add_prefix_space": True}),
        ("no special tokens", {"bos_token": None, "eos_token": None, "unk_token": None}),
        ("a pad token", {"pad_token": "<T0>", "additional_special_tokens": ["<T1>"]}),
        ("extra tokens", {"extra_special_tokens": ["<T1>", "<T0>"]}),
        ("named tokens", {"image_token": "<T0>", "extra_special_tokens": {"voice_token": "<T1>"}}),
        ("a pad token that strips", {"pad_token": {"__type": "AddedToken"} | token("<T0>", lstrip=True)}),
        ("other ends", {"bos_token": "<s>", "eos_token": "</s>"}),
        ("declared", declared(token("<T0>"), token("<T1>"))),
        ("stripping", declared(token("<T0>", lstrip=True), token("<T1>", lstrip=True, rstrip=True))),
        ("single words", declared(token("<T0>", single_word=True))),
        ("not special", declared(token("<T0>", special=False, normalized=True))),
        ("split", {"split_special_tokens": True} | declared(token("<T0>"), token("<T1>", special=False))),
        ("declared far away", {"added_tokens_decoder": {str(N + 7): token("<T0>"), str(N + 3): token("<T1>")}}),
        ("declared in the vocabulary", {"added_tokens_decoder": {"3": token("the"), str(N - 1): token(END)}}),
        ("declared empty", declared(token(""), token("<T0>"))),
        ("declared none", {"added_tokens_decoder": {}}),
        ("declared with the defaults", {"added_tokens_decoder": {str(N): {"content": "<T0>"}}}),
    ):
        yield name, {"tokenizer_config.json": GPT2 | config}, None
        yield f"{name}, beside tokenizer.json", {"tokenizer_config.json": GPT2 | config}, {}
        if "begin" not in name:
            yield f"{name}, Fast", {"tokenizer_config.json": FAST | config}, {}
    special = {"bos_token": "<T0>", "eos_token": END, "unk_token": END, "pad_token": "<T1>"}
    strips = {"pad_token": {"content": "<T0>", "lstrip": True, "rstrip": True, "normalized": False, "single_word": False}}
    for name, files in (
        ("added_tokens.json", {"added_tokens.json": {"<T0>": N, "<T1>": N + 1}}),
        ("in another order", {"added_tokens.json": {"<T0>": N + 1, "<T1>": N}}),
        ("with a gap", {"added_tokens.json": {"<T0>": N + 5, "<T1>": N + 1}}),
        ("of the vocabulary", {"added_tokens.json": {"the": 0, "<T0>": N}}),
        ("a map", {"special_tokens_map.json": special}),
        ("a map that strips", {"special_tokens_map.json": strips}),
        ("a map with more", {"special_tokens_map.json": {"additional_special_tokens": ["<T1>", "<T0>"]}}),
        ("a map and added", {"special_tokens_map.json": special, "added_tokens.json": {"<T1>": N, "<T0>": N + 1}}),
    ):
        yield name, files, None
        yield f"{name}, beside tokenizer.json", files, {}
        yield f"{name}, Fast", files | {"tokenizer_config.json": FAST}, {}
        over = {"tokenizer_config.json": GPT2 | declared(token("<T1>"))}
        yield f"{name}, under a declaration", files | over, None
    own = {"added_tokens": added(token(END), token("<T0>", lstrip=True))}
    for kind in (GPT2, FAST):
        name = kind["tokenizer_class"]
        for what, config in (
            ("no declaration", {}),
            ("the same without flags", declared(token("<T0>"))),
            ("another in its place", declared(token("<T1>"))),
            ("another after it", {"added_tokens_decoder": {str(N + 1): token("<T1>", rstrip=True)}}),
            ("a purpose", {"pad_token": "<T0>", "extra_special_tokens": ["<T1>"]}),
        ):
            yield f"{name}, <T0> in tokenizer.json, {what}", {"tokenizer_config.json": kind | config}, own
        more = {"tokenizer_config.json": kind, "added_tokens.json": {"<T1>": N + 1}}
        yield f"{name}, <T0> in tokenizer.json, <T1> in added_tokens.json", more, own
        lower = {"normalizer": {"type": "Lowercase"}}
        yield f"{name}, lower case", {"tokenizer_config.json": kind}, lower
        normal = kind | declared(token("<T0>", special=False, normalized=True))
        yield f"{name}, NFKC", {"tokenizer_config.json": normal}, {"normalizer": {"type": "NFKC"}}
        digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level()]}
        yield f"{name}, digits", {"tokenizer_config.json": kind}, {"pre_tokenizer": digits}
        yield f"{name}, no added tokens", {"tokenizer_config.json": kind}, {"added_tokens": []}


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_vocabulary(folder):
    write_json(folder / "vocab.json", VOCAB)
    merges = "".join(f"{a} {b}\n" for a, b in MERGES)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")


def ids(files, tokenizer):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_json(folder / "config.json", {"model_type": "gpt2", "vocab_size": N})
        for file, content in files.items():
            write_json(folder / file, content)
        if tokenizer is None:
            write_vocabulary(folder)
        else:
            write_json(folder / "tokenizer.json", whole(tokenizer))
        found = AutoTokenizer.from_pretrained(folder)
        return [found(text)["input_ids"] for text in TEXTS]


def main():
    OUT.mkdir(exist_ok=True)
    write_vocabulary(OUT)
    write_json(OUT / "tokenizer.json", whole({}))
    found = [{"name": n, "files": f, "tokenizer": t, "ids": ids(f, t)} for n, f, t in cases()]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in found)
    texts = json.dumps(TEXTS, ensure_ascii=False)
    (OUT / "cases.json").write_text(f'{{"texts": {texts},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_json(folder / "config.json", {"model_type": "gpt2", "vocab_size": N})
        write_vocabulary(folder)
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder / "out")
        (OUT / "written.json").write_bytes((folder / "out" / "tokenizer.json").read_bytes())
    print(f"{len(found)} cases")


if __name__ == "__main__":
    main()
