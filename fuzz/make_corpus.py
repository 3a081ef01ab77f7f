#!/usr/bin/env python3
"""Writes the seeds of the fuzzer, corpus/<target>/*, and its dictionaries, dict/<target>.dict.

The models are those of `tiny()` in src/targets/checkpoint.rs. Only Python's standard library is needed.
"""

import collections
import io
import json
import pickle
import random
import shutil
import struct
import sys
import types
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
V, N, C, INNER = 5, 4, 4, 16
SHAPES = {
    "wte.weight": [V, C],
    "wpe.weight": [N, C],
    "h.0.ln_1.weight": [C],
    "h.0.ln_1.bias": [C],
    "h.0.attn.c_attn.weight": [C, 3 * C],
    "h.0.attn.c_attn.bias": [3 * C],
    "h.0.attn.c_proj.weight": [C, C],
    "h.0.attn.c_proj.bias": [C],
    "h.0.ln_2.weight": [C],
    "h.0.ln_2.bias": [C],
    "h.0.mlp.c_fc.weight": [C, INNER],
    "h.0.mlp.c_fc.bias": [INNER],
    "h.0.mlp.c_proj.weight": [INNER, C],
    "h.0.mlp.c_proj.bias": [C],
    "ln_f.weight": [C],
    "ln_f.bias": [C],
}
LM_HEAD = {"lm_head.weight": [V, C]}
BUFFERS = {"h.0.attn.bias": [1, 1, N, N], "h.0.attn.masked_bias": []}


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


GGUF_NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "h.0.ln_1": "blk.0.attn_norm",
              "h.0.attn.c_attn": "blk.0.attn_qkv", "h.0.attn.c_proj": "blk.0.attn_output", "h.0.ln_2": "blk.0.ffn_norm",
              "h.0.mlp.c_fc": "blk.0.ffn_up", "h.0.mlp.c_proj": "blk.0.ffn_down"}  # fmt: skip


def gguf(kind=0, alignment=None, tokens=True, arrays=False):
    """A GGUF file; `kind` is 0 for F32, 1 for F16, 30 for BF16, and any other number for tensors without known data."""
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    key = lambda name, code, value: text(name) + struct.pack("<I", code) + value
    u32 = lambda name, n: key(name, 4, struct.pack("<I", n))
    keys = [key("general.architecture", 8, text("gpt2"))]
    keys += [u32(f"gpt2.{name}", n) for name, n in (("block_count", 1), ("context_length", N), ("embedding_length", C),
                                                     ("feed_forward_length", INNER), ("attention.head_count", 2))]  # fmt: skip
    keys.append(key("gpt2.attention.layer_norm_epsilon", 6, struct.pack("<f", 1e-5)))
    if alignment:
        keys.append(u32("general.alignment", alignment))
    if arrays:
        inner = struct.pack("<IQ", 4, 2) + struct.pack("<II", 1, 2)
        keys.append(key("general.nested", 9, struct.pack("<IQ", 9, 2) + inner * 2))
        keys.append(key("general.flags", 9, struct.pack("<IQ", 7, 3) + b"\0\1\1"))
    if tokens:
        strings = lambda words: struct.pack("<IQ", 8, len(words)) + b"".join(map(text, words))
        keys += [key("tokenizer.ggml.model", 8, text("gpt2")), key("tokenizer.ggml.pre", 8, text("gpt-2")),
                 key("tokenizer.ggml.tokens", 9, strings(["a", "b", "ab", "c", "<|endoftext|>"])),
                 key("tokenizer.ggml.token_type", 9, struct.pack("<IQ5i", 5, 5, 1, 1, 1, 1, 3)),
                 key("tokenizer.ggml.merges", 9, strings(["a b"])), u32("tokenizer.ggml.eos_token_id", 4)]  # fmt: skip
    rng, infos, data = random.Random(1), b"", b""
    align = alignment or 32
    for name, shape in SHAPES.items():
        module, parameter = name.rsplit(".", 1)
        dims = shape if "c_" in module and len(shape) == 2 else shape[::-1]
        code = kind if len(shape) == 2 and module != "wpe" else 0
        values = [rng.gauss(0, 0.5) for _ in range(count(shape))]
        raw = {1: lambda v: struct.pack("<e", v), 30: lambda v: struct.pack("<f", v)[2:]}.get(code, lambda v: struct.pack("<f", v))
        infos += text(f"{GGUF_NAMES[module]}.{parameter}") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, len(data))
        data += b"".join(map(raw, values))
        data += b"\0" * (-len(data) % align)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(SHAPES), len(keys)) + b"".join(keys) + infos
    return head + b"\0" * (-len(head) % align) + data


def safetensors(shapes, dtype="F32", prefix="", metadata=True):
    width = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1}
    rng, header, data = random.Random(1), {}, b""
    if metadata:
        header["__metadata__"] = {"format": "pt"}
    for name, shape in shapes.items():
        kind = "U8" if name in BUFFERS and shape else dtype
        code = {"F64": "<d", "F32": "<f", "F16": "<e"}.get(kind)
        values = [rng.gauss(0, 0.5) for _ in range(count(shape))]
        if code:
            raw = b"".join(struct.pack(code, v) for v in values)
        elif kind == "BF16":
            raw = b"".join(struct.pack("<f", v)[2:] for v in values)
        else:
            raw = bytes(int(v > 0) for v in values)
        assert len(raw) == count(shape) * width[kind]
        header[prefix + name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


class Storage:
    def __init__(self, kind, key, numel):
        self.kind, self.key, self.numel = kind, key, numel


def torch_pickle(shapes, kind="FloatStorage", parameters=False, protocol=2, wrapped=False, turned=False):
    """What torch.save writes of a state dictionary, without torch: classes of its names stand in."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def function(name):
        f = lambda *args: None  # noqa: E731
        f.__module__, f.__qualname__, f.__name__ = "torch._utils", name, name
        setattr(utils, name, f)
        return f

    rebuild, rebuild_parameter = function("_rebuild_tensor_v2"), function("_rebuild_parameter")
    storage_class = type(kind, (), {"__module__": "torch"})
    setattr(torch, kind, storage_class)
    sys.modules["torch"], sys.modules["torch._utils"] = torch, utils

    class Tensor:
        def __init__(self, key, shape):
            self.key, self.shape = key, shape

        def __reduce__(self):
            strides, n = [], 1
            for d in self.shape if turned else reversed(self.shape):
                strides.insert(len(strides) if turned else 0, n)
                n *= d
            storage = Storage(storage_class, self.key, count(self.shape))
            args = (storage, 0, tuple(self.shape), tuple(strides), False, collections.OrderedDict())
            return rebuild, args

    class Parameter(Tensor):
        def __reduce__(self):
            return rebuild_parameter, (Tensor(self.key, self.shape), True, collections.OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, Storage):
                return ("storage", obj.kind, obj.key, "cpu", obj.numel)
            return None

    state = collections.OrderedDict()
    for i, (name, shape) in enumerate(shapes.items()):
        state[name] = (Parameter if parameters else Tensor)(str(i), shape)
    if wrapped:
        sizes = {"n_layer": 1, "n_head": 2, "n_embd": C, "block_size": N, "bias": False, "vocab_size": V, "dropout": 0.0}
        prefixed = collections.OrderedDict(("_orig_mod." + name, tensor) for name, tensor in state.items())
        state = {"model": prefixed, "model_args": sizes, "iter_num": 5, "config": {"names": ["a"], "set": {1}, "raw": b"x"}}
    out = io.BytesIO()
    Pickler(out, protocol=protocol).dump(state)
    del sys.modules["torch"], sys.modules["torch._utils"]
    return out.getvalue()


def torch_zip(shapes, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:

        def add(name, data):
            info = zipfile.ZipInfo(name)  # a fixed date: the same bytes at every run
            info.compress_type = method
            archive.writestr(info, data)

        add("archive/data.pkl", torch_pickle(shapes))
        for i, shape in enumerate(shapes.values()):
            add(f"archive/data/{i}", bytes(4 * count(shape)))
        add("archive/version", b"3\n")
    return out.getvalue()


def legacy(shapes, **options):
    """A file of torch.save from before PyTorch 1.6."""
    keys = [str(i) for i in range(len(shapes))]
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = b"".join(pickle.dumps(one, protocol=2) for one in (0x1950A86A20F9469CFC6C, 1001, machine))
    rng, data = random.Random(2), b""
    for shape in shapes.values():
        n = count(shape)
        data += struct.pack(f"<Q{n}f", n, *(rng.gauss(0, 0.5) for _ in range(n)))
    return head + torch_pickle(shapes, **options) + pickle.dumps(keys, protocol=2) + data


def llm_c(version=3, padded=8):
    rng, width = random.Random(3), 4 if version == 3 else 2
    n = count([padded, C]) + sum(count(shape) for name, shape in SHAPES.items() if name != "wte.weight")
    data = b"".join(struct.pack("<f", rng.gauss(0, 0.5))[4 - width :] for _ in range(n))
    return struct.pack("<256i", 20240326, version, N, V, 1, 2, C, padded, *[0] * 248) + data


def gguf_part(number, tensors):
    """A part of a GGUF file in two: the whole file's keys and some of its tensors, or only the place of the part."""
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    place = text("split.no") + struct.pack("<IH", 2, number) + text("split.count") + struct.pack("<IH", 2, 2)
    whole = gguf(tokens=False)
    if tensors:
        keys = struct.unpack("<Q", whole[16:24])[0] + 2
        body = whole[24:]
        return whole[:16] + struct.pack("<Q", keys) + place + body[: len(body) - len(place) % 32]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + place + bytes(32)


def bytes_as_letters():
    """GPT-2's letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 0
    for b in range(256):
        if b in plain:
            letters[b] = chr(b)
        else:
            letters[b] = chr(256 + extra)
            extra += 1
    return letters


def vocabulary():
    letters = bytes_as_letters()
    vocab = {"<|endoftext|>": 0}
    for b in range(256):
        vocab[letters[b]] = len(vocab)
    merges = ["h e", "l l", "he ll", "hell o", "\u0120 t", "t h", "th e", "\u0120t he", "a t", "c at"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    return vocab, merges


def tokenizer_json(**changes):
    vocab, merges = vocabulary()
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", **special}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {**level, "trim_offsets": False},
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip
    for key, value in changes.items():
        if key in whole["model"]:
            whole["model"][key] = value
        else:
            whole[key] = value
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def part(data):
    return struct.pack("<H", len(data)) + data


def config(**changes):
    tiny = {"model_type": "gpt2", "vocab_size": V, "n_positions": N, "n_embd": C, "n_layer": 1, "n_head": 2}
    return json.dumps({**tiny, **changes}).encode()


def seeds():
    both = {**SHAPES, **LM_HEAD, **BUFFERS}
    small = {"vocab": {"<|endoftext|>": 0, "h": 1, "e": 2, "l": 3, "o": 4, "he": 5}, "merges": ["h e"]}
    yield "config", {
        "tiny": config(),
        "aliases": json.dumps({"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                               "max_position_embeddings": 8}).encode(),
        "empty": b"{}",
        "everything": config(
            n_inner=24, activation_function="swish", resid_pdrop=0.0, embd_pdrop=0.5, attn_pdrop=0.1,
            layer_norm_epsilon=1e-5, initializer_range=0.02, scale_attn_weights=False,
            scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True, add_cross_attention=False,
            tie_word_embeddings=False, bos_token_id=1, eos_token_id=[1, 2], summary_type="cls_index",
            use_cache=True, quantization_config=None),
        "refused": config(n_head=3, add_cross_attention=True, quantization_config={"bits": 4}),
    }  # fmt: skip
    yield "safetensors", {
        "f32": safetensors(SHAPES),
        "f16_prefix": safetensors(both, "F16", "transformer."),
        "bf16": safetensors({**SHAPES, **LM_HEAD}, "BF16", metadata=False),
        "f64_buffers": safetensors({**SHAPES, **BUFFERS}, "F64"),
        "empty": safetensors({}, metadata=False),
    }
    yield "gguf", {
        "f32": gguf(),
        "f16": gguf(1, alignment=64),
        "bf16_no_tokens": gguf(30, tokens=False),
        "unknown_type": gguf(10),
        "arrays": gguf(arrays=True),
    }
    yield "gguf_parts", {
        "two": part(gguf_part(0, True)) + gguf_part(1, False),
        "one_twice": part(gguf_part(0, True)) + gguf_part(0, True),
    }
    few = dict(list(SHAPES.items())[:4])
    yield "alone", {
        "llm_c": llm_c(),
        "llm_c_halves": llm_c(5, 5),
        "nano_gpt": legacy(SHAPES, wrapped=True),
        "legacy": legacy(few),
        "zip": torch_zip(few),
        "safetensors": safetensors(SHAPES, "F16", "module.transformer."),
        "gguf": gguf(),
    }
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    items = list(SHAPES.items())
    shards = [dict(items[:9]), dict(items[9:])]
    weight_map = {name: names[i] for i, shard in enumerate(shards) for name in shard}
    index = json.dumps({"metadata": {"total_size": 1152}, "weight_map": weight_map}, separators=(",", ":")).encode()
    yield "index", {
        "two_shards": part(index) + part(safetensors(shards[0])) + safetensors(shards[1]),
        "half": part(index) + part(safetensors(shards[0], "BF16")) + safetensors(shards[1], "F16", "transformer."),
        "wrong_shard": part(index) + part(safetensors(shards[1])) + safetensors(shards[0]),
        "outside": part(b'{"weight_map":{"wte.weight":"../config.json"}}') + part(b""),
    }
    yield "pickle", {
        "float": torch_pickle(SHAPES),
        "half_buffers": torch_pickle({**SHAPES, **BUFFERS}, "HalfStorage"),
        "parameters": torch_pickle(SHAPES, "BFloat16Storage", parameters=True),
        "one_tensor": torch_pickle({"wte.weight": [V, C]}),
        "protocol_4": torch_pickle(SHAPES, protocol=4),
        "wrapped": torch_pickle(SHAPES, protocol=3, wrapped=True),
        "turned": torch_pickle(SHAPES, turned=True),
        "not_torch": pickle.dumps({"a": [1, 2.5, None, True, (1, -2, 3, 4)], "b": 2**40}, protocol=2),
    }
    yield "pickle_zip", {
        "stored": torch_zip(SHAPES),
        "few": torch_zip(few),
        "deflated": torch_zip(few, zipfile.ZIP_DEFLATED),
        "legacy": legacy(SHAPES),
        "legacy_turned": legacy(few, turned=True),
    }
    yield "tokenizer_json", {
        "byte_level": tokenizer_json(),
        "small": tokenizer_json(**small),
        "options": tokenizer_json(
            **small, unk_token="<|endoftext|>", byte_fallback=True, ignore_merges=True, fuse_unk=True,
            end_of_word_suffix="</w>",
            truncation={"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
            padding={"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": "!"}),
        "other_parts": tokenizer_json(
            **small, normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "Isolated", "invert": False},
            post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                            "pair": [], "special_tokens": {}},
            decoder={"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}),
        "word_level": tokenizer_json(**small, model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
    }  # fmt: skip
    vocab, merges = vocabulary()
    as_json = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":")).encode()  # noqa: E731
    as_text = lambda m: "\n".join(["#version: 0.2", *m, ""]).encode()  # noqa: E731
    yield "vocab_merges", {
        "byte_level": part(as_json(vocab)) + as_text(merges),
        "small": part(as_json(small["vocab"])) + as_text(small["merges"]),
        "merge_of_nothing": part(as_json(small["vocab"])) + as_text(["x y"]),
        "empty": part(b"{}"),
    }
    yield "prompts", {
        "english": b"First Citizen:\nBefore we proceed any further, hear me speak. don't 1234  \t\n",
        "unicode": "na\u00efve \u65e5\u672c\u8a9e \U0001d11e \U0001f469\u200d\U0001f4bb e\u0301\ufffd\ufeff".encode(),
        "special": b"<|endoftext|>a<|endoftext|><|endof <|endoftext|",
        "bytes": bytes(range(256)),
    }
    yield "interventions", {
        "forms": b"ablate 0.1\nmean-ablate 1.0\nscale 0.1=0.5\nblock 7:4\nblock 1/7:4\nblock 1.0/7:4\n",
        "numbers": b"scale 1.1=-1e-3\nscale 0.0=inf\nscale 0.0=NaN\nblock 4:7\nablate 9.9\n",
        "broken": b"ablate\nscale 0.1\nblock 7\nblock /7:4\nblock 1./7:4\nablate 18446744073709551616.0\n",
    }


CONFIG_WORDS = [
    *"vocab_size n_positions n_embd n_layer n_head n_inner activation_function resid_pdrop embd_pdrop".split(),
    *"attn_pdrop layer_norm_epsilon initializer_range scale_attn_weights scale_attn_by_inverse_layer_idx".split(),
    *"reorder_and_upcast_attn add_cross_attention tie_word_embeddings bos_token_id eos_token_id".split(),
    *"model_type quantization_config max_position_embeddings hidden_size num_hidden_layers".split(),
    *"num_attention_heads gelu_new gelu_pytorch_tanh gelu relu silu swish gpt2".split(),
]
JSON_WORDS = ["true", "false", "null", "{}", "[]", "1e999", "-1", "18446744073709551615", "9223372036854775808", '\\"',
              "\\ud800"]  # fmt: skip
TENSOR_WORDS = [
    *SHAPES, *LM_HEAD, *BUFFERS, "transformer.", "__metadata__", "data_offsets", "dtype", "shape", "BOOL", "U8", "I8",
    "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64", "F8_E4M3", "F8_E5M2", "F4", "F6_E2M3",
    "F8_E8M0", "C64",
]  # fmt: skip
INDEX_WORDS = ["weight_map", "metadata", "total_size", "model-00001-of-00002.safetensors", "../", "config.json",
               "model-00002-of-00002.safetensors", "model.safetensors.index.json", "\0"]  # fmt: skip
PICKLE_WORDS = [
    "ctorch._utils\n_rebuild_tensor_v2\n", "ctorch._utils\n_rebuild_parameter\n", "ccollections\nOrderedDict\n",
    *(f"ctorch\n{kind}Storage\n" for kind in "Float Double Half BFloat16 Byte Bool Int Long".split()), "storage", "cpu",
    b"\x80\x02", b"\x8a\x01", b"\x8a\xff", b"X\x01\0\0\0", b"J\xff\xff\xff\xff", b"M\xff\xff", b"tQ", b"tR", b")R",
    b"h\0", b"q\0", b"r\0\0\0\0", b"j\0\0\0\0", b"\x85", b"\x86", b"\x87", "}", "]", "(", "u", "e", "s", "a", "b", ".",
]  # fmt: skip
ZIP_WORDS = [b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08", b"\x01\0\x10\0",
             "archive/data.pkl", "archive/data/0", "data.pkl", "/", b"\xff\xff\xff\xff", b"\xff\xff",
             b"\x80\x02"]  # fmt: skip
TOKENIZER_WORDS = [
    *"version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model type".split(),
    *"BPE WordPiece WordLevel Unigram vocab merges dropout unk_token continuing_subword_prefix".split(),
    *"end_of_word_suffix fuse_unk byte_fallback ignore_merges id content single_word lstrip rstrip".split(),
    *"normalized special ByteLevel add_prefix_space trim_offsets use_regex Sequence Split pattern Regex".split(),
    *"String behavior invert Isolated Removed MergedWithPrevious MergedWithNext Contiguous NFC NFD NFKC".split(),
    *"Lowercase Strip Replace Prepend Precompiled Digits Punctuation Whitespace Metaspace".split(),
    *"TemplateProcessing RobertaProcessing BertProcessing ByteFallback Fuse Metaspace CTC max_unk_chars".split(),
    *"Fixed BatchLongest Right Left pad_id pad_token pad_type_id strategy LongestFirst stride".split(),
    "<|endoftext|>", "\u0120", "<0x00>",
]  # fmt: skip
DICTIONARIES = {
    "config": [*CONFIG_WORDS, *JSON_WORDS],
    "gguf": ["GGUF", *(f"{name}." for name in GGUF_NAMES.values()), "weight", "bias", "general.alignment", "gpt2.", "tokenizer.ggml."],
    "gguf_parts": ["GGUF", "split.no", "split.count", "split.tensors.count", "general.alignment", b"\x02\0\0\0"],
    "alone": ["model_args", "n_layer", "block_size", "_orig_mod.", b"\xc6\xd7\x34\x01", *ZIP_WORDS, *PICKLE_WORDS, *SHAPES],
    "safetensors": [*TENSOR_WORDS, *JSON_WORDS],
    "index": [*INDEX_WORDS, *TENSOR_WORDS, *JSON_WORDS],
    "pickle": [*PICKLE_WORDS, *SHAPES],
    "pickle_zip": [*ZIP_WORDS, *PICKLE_WORDS],
    "tokenizer_json": [*TOKENIZER_WORDS, *JSON_WORDS],
    "vocab_merges": ["#version: 0.2\n", "<|endoftext|>", "\u0120", *JSON_WORDS],
    "prompts": ["<|endoftext|>", "<|", "|>", "'s", "'ll", "\u0120", "\ufffd", "\u65e5", "\U0001d11e", "\r\n", "\u0301"],
    "interventions": ["ablate ", "mean-ablate ", "scale ", "block ", "=", "/", ":", ".", "inf", "NaN", "1e308", "-0"],
}


def quoted(word):
    data = word if isinstance(word, bytes) else word.encode()
    plain = set(range(32, 127)) - set(b'"\\')
    return '"' + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in data) + '"'


def main():
    for target, files in seeds():
        folder = HERE / "corpus" / target
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, data in files.items():
            assert len(data) <= 8192, (target, name, len(data))
            (folder / name).write_bytes(data)
    for target, words in DICTIONARIES.items():
        text = "".join(f"{quoted(word)}\n" for word in dict.fromkeys(words))
        (HERE / "dict").mkdir(exist_ok=True)
        (HERE / "dict" / f"{target}.dict").write_text(text)


if __name__ == "__main__":
    main()
