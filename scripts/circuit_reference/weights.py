"""Direct logit attribution, head scores and weight circuits as TransformerLens 2 computes them: a part of
make_circuit_reference.py."""


import torch
from torch import Tensor

import circuit_reference.model as base
from circuit_reference.lens import NO_PROCESSING, hooked
from circuit_reference.model import ANSWER, AGAINST, BOS, CHANNELS, HEADS, LAYERS

from transformer_lens import HookedTransformer
from transformer_lens.head_detector import detect_head

ALL = dict(fold_ln=True, center_writing_weights=True, center_unembed=True, fold_value_biases=True)
FAMILIES = {
    "centred": ALL,
    "kept": ALL | dict(fold_value_biases=False),
    "raw": NO_PROCESSING | dict(fold_ln=True),
}
BLOCK, REPEATS, ROWS = 25, 4, 6
LENGTH = 1 + BLOCK * REPEATS
FULL = ((0, 1), (2, 0))  # the heads whose (V, V) circuits are stored


# --- the processing, as formulas on the checkpoint ------------------------------------------


def processed(hf) -> dict[str, Tensor]:
    """The README's formulas: what all four steps of processing make of the checkpoint's tensors."""
    state = {name.removeprefix("transformer."): value.detach() for name, value in hf.state_dict().items()}
    out_mean = lambda x: x - x.mean(-1, keepdim=True)  # over the channels that a row writes to, or over the vocabulary
    in_mean = lambda x: x - x.mean(-2, keepdim=True)  # over the channels that a column reads from
    found = {"embed.W_E": out_mean(state["wte.weight"]), "pos_embed.W_pos": out_mean(state["wpe.weight"])}
    for layer in range(LAYERS):
        get = lambda name: state[f"h.{layer}.{name}"]
        put = lambda name, value: found.__setitem__(f"blocks.{layer}.{name}", value)
        for i, which in enumerate("QKV"):
            columns = slice(i * CHANNELS, (i + 1) * CHANNELS)
            weight, bias = get("attn.c_attn.weight")[:, columns], get("attn.c_attn.bias")[columns]
            folded = in_mean(get("ln_1.weight")[:, None] * weight)
            put(f"attn.W_{which}", folded.view(CHANNELS, HEADS, -1).transpose(0, 1))  # (H, C, D)
            bias = bias + get("ln_1.bias") @ weight
            put(f"attn.b_{which}", bias.view(HEADS, -1) * (0.0 if which == "V" else 1.0))
        w_o = out_mean(get("attn.c_proj.weight"))
        put("attn.W_O", w_o.view(HEADS, -1, CHANNELS))  # (H, D, C)
        put("attn.b_O", out_mean(get("attn.c_proj.bias")) + bias @ w_o)  # `bias` is that of the values
        put("mlp.W_in", in_mean(get("ln_2.weight")[:, None] * get("mlp.c_fc.weight")))
        put("mlp.b_in", get("mlp.c_fc.bias") + get("ln_2.bias") @ get("mlp.c_fc.weight"))
        put("mlp.W_out", out_mean(get("mlp.c_proj.weight")))
        put("mlp.b_out", out_mean(get("mlp.c_proj.bias")))
    w_u = state["lm_head.weight"].T  # (C, V)
    found["unembed.W_U"] = out_mean(in_mean(state["ln_f.weight"][:, None] * w_u))
    found["unembed.b_U"] = out_mean(state["ln_f.bias"] @ w_u)
    return found


# --- direct logit attribution -----------------------------------------------------------------


@torch.no_grad()
def shares(model: HookedTransformer, ids: Tensor, against: int | None) -> dict[str, Tensor]:
    """What each component adds to the answer's logit (or its difference to `against`) at the last position."""
    model.set_use_attn_result(True)
    logits, cache = model.run_with_cache(ids)
    attrs = lambda stack: cache.logit_attrs(stack, ANSWER, against, pos_slice=-1, has_batch_dim=False)
    heads = attrs(cache.stack_head_results(layer=-1, pos_slice=-1)[:, 0])
    stack, labels = cache.decompose_resid(layer=-1, mode="all", pos_slice=-1, return_labels=True)
    parts = dict(zip(labels, attrs(stack[:, 0])))
    found = {
        "heads": heads.view(LAYERS, HEADS),
        "mlps": torch.stack([parts[f"{layer}_mlp_out"] for layer in range(LAYERS)]),
        "embed": parts["embed"],
        "pos_embed": parts["pos_embed"],
        "attention_biases": attrs(model.b_O),
        "final_bias": model.b_U[ANSWER] - (0.0 if against is None else model.b_U[against]),
    }
    for layer in range(LAYERS):  # a layer's heads and its bias make up what the layer adds
        whole = found["heads"][layer].sum() + found["attention_biases"][layer]
        assert (whole - parts[f"{layer}_attn_out"]).abs() < 1e-12
    found["total"] = torch.stack([value.sum() for value in found.values()]).sum()
    found["logit"] = logits[0, -1, ANSWER] - (0.0 if against is None else logits[0, -1, against])
    return found


def write_direct(clean: Tensor) -> dict[str, float]:
    tensors = {"ids/clean": clean, "ids/answer": torch.tensor([ANSWER]), "ids/against": torch.tensor([AGAINST])}
    off = {}
    for family, processing in FAMILIES.items():
        model = hooked(processing)
        for target, against in (("answer", None), ("difference", AGAINST)):
            found = shares(model, clean, against)
            off[f"{family}/{target}"] = base.largest(found["total"], found["logit"])
            tensors |= {f"{family}/{target}/{name}": value for name, value in found.items()}
    base.write(tensors, "direct.safetensors")
    return off


# --- scores of heads --------------------------------------------------------------------------


def repeated_rows() -> Tensor:
    """(ROWS, LENGTH): BOS and four times the same 25 tokens; in the last two rows a token may recur in the 25."""
    rows = []
    for row in range(ROWS):
        if row < ROWS - 2:
            block = torch.randperm(BOS, generator=base.generator(40 + row))[:BLOCK]
        else:
            block = torch.randint(BOS, (BLOCK,), generator=base.generator(40 + row))
        rows.append(torch.cat([torch.tensor([BOS]), block.repeat(REPEATS)]))
    return torch.stack(rows)


def entries(row: Tensor, offset: int, by_token: bool) -> Tensor:
    """(T, T) of 0 and 1: queries after the first repeat, keys `offset` after each earlier copy of the query's token."""
    wanted = torch.zeros(LENGTH, LENGTH)
    for query in range(1 + BLOCK, LENGTH):
        for copy in range(1, query):
            same = row[copy] == row[query] if by_token else (query - copy) % BLOCK == 0
            if same and copy + offset <= query:
                wanted[query, copy + offset] = 1.0
    return wanted


@torch.no_grad()
def write_heads(model: HookedTransformer, full: HookedTransformer) -> None:
    ids = repeated_rows()
    cache = model.run_with_cache(ids)[1]
    patterns = torch.stack([cache["pattern", layer] for layer in range(LAYERS)], 1)  # (rows, L, H, T, T)
    tensors = {"ids": ids}
    for name, offset in (("prefix", 1), ("duplicate", 0), ("preceding", -1)):
        for by_token in (False, True):
            masks = torch.stack([entries(row, offset, by_token) for row in ids])[:, None, None]
            attended = (patterns * masks).sum((-2, -1))
            key = f"{name} by token" if by_token else name
            tensors[f"{key}/mean of entries"] = attended / masks.sum((-2, -1))
            tensors[f"{key}/sum over copies"] = attended / (BLOCK * (REPEATS - 1))
    tensors["previous"] = patterns.diagonal(-1, -2, -1).mean(-1)

    model.to_tokens = lambda row: ids[int(row)][None]  # detect_head wants text, and the model has no tokenizer
    for head in ("previous_token_head", "duplicate_token_head", "induction_head"):
        for measure in ("mul", "abs"):
            rows = [detect_head(model, str(row), head, error_measure=measure) for row in range(ROWS)]
            tensors[f"detect_head/{head}/{measure}"] = torch.stack(rows)
        rows = [
            detect_head(model, str(row), head, exclude_bos=True, exclude_current_token=True) for row in range(ROWS)
        ]
        tensors[f"detect_head/{head}/mul without bos and current"] = torch.stack(rows)

    tensors["copying/eigenvalues"] = copying(full)
    tensors["copying/eigenvalues raw"] = copying(model)
    tensors["copying/olsson"] = torch.stack([olsson_copying(model, row) for row in ids[:, 1 : 1 + BLOCK]])
    base.write(tensors, "heads.safetensors")


def copying(model: HookedTransformer) -> Tensor:
    """(L, H): the sum of the eigenvalues of W_E W_V W_O W_U over the sum of their absolute values."""
    scores = []
    for layer in range(LAYERS):
        for head in range(HEADS):
            values = (model.W_E @ model.OV[layer, head] @ model.W_U).eigenvalues
            scores.append(values.sum().real / values.abs().sum())
    return torch.stack(scores).view(LAYERS, HEADS)


def olsson_copying(model: HookedTransformer, block: Tensor) -> Tensor:
    """(L, H): see the README. `block` is (T); no BOS."""
    model.set_use_attn_result(True)
    cache = model.run_with_cache(block[None])[1]
    model.set_use_attn_result(False)
    sample = block.unique()
    scores = []
    for layer in range(LAYERS):
        logits = cache["result", layer][0] @ model.W_U  # (T, H, V)
        raised = (logits - logits.mean(-1, keepdim=True)).relu()
        attended = torch.einsum("hij,ihj->h", cache["pattern", layer][0], raised[:, :, block])
        ratio = attended / (attended + raised[:, :, sample].sum((0, 2)))
        scores.append(4 * ratio - 1)
    return torch.stack(scores)


# --- circuits ---------------------------------------------------------------------------------


def by_size(values: Tensor) -> Tensor:
    """(D, 2), real and imaginary parts: the largest absolute value first; of a conjugate pair, the positive part."""
    order = sorted(values.tolist(), key=lambda z: (-abs(z), -z.imag))
    return torch.tensor([[z.real, z.imag] for z in order])


@torch.no_grad()
def write_circuits(model: HookedTransformer) -> None:
    tensors = {}
    for layer, head in FULL:
        ov = model.W_E @ model.OV[layer, head] @ model.W_U
        qk = model.W_E @ model.QK[layer, head] @ model.W_E.T
        tensors[f"ov/{layer}.{head}"] = ov.AB
        tensors[f"qk/{layer}.{head}"] = qk.AB / model.cfg.d_head**0.5
        tensors[f"ov eigenvalues/{layer}.{head}"] = by_size(model.OV[layer, head].eigenvalues)
        tensors[f"full ov eigenvalues/{layer}.{head}"] = by_size(ov.eigenvalues)
    tensors["ov singular values"] = model.OV.S
    tensors["qk singular values"] = model.QK.S
    for mode in "QKV":
        tensors[f"composition/{mode}"] = model.all_composition_scores(mode)
    base.write(tensors, "circuits.safetensors")


@torch.no_grad()
def check_circuits(ours: dict[str, Tensor]) -> float:
    """The largest difference between circuits.safetensors and the definitions, from `processed` alone."""
    stored = base.read("circuits.safetensors")
    get = lambda layer, name: ours[f"blocks.{layer}.attn.W_{name}"]
    pairs = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    ov = {(l, h): get(l, "V")[h] @ get(l, "O")[h] for l, h in pairs}
    qk = {(l, h): get(l, "Q")[h] @ get(l, "K")[h].T for l, h in pairs}
    w_e, w_u = ours["embed.W_E"], ours["unembed.W_U"]
    dim = CHANNELS // HEADS
    off = []
    for layer, head in FULL:
        key, full = f"{layer}.{head}", w_e @ ov[layer, head] @ w_u
        off.append(base.largest(full, stored[f"ov/{key}"]))
        off.append(base.largest(w_e @ qk[layer, head] @ w_e.T / dim**0.5, stored[f"qk/{key}"]))
        off.append(base.largest(by_size(torch.linalg.eigvals(full))[:dim], stored[f"full ov eigenvalues/{key}"]))
        off.append(base.largest(by_size(torch.linalg.eigvals(ov[layer, head]))[:dim], stored[f"ov eigenvalues/{key}"]))
    for l, h in pairs:
        for name, matrix in (("ov", ov[l, h]), ("qk", qk[l, h])):
            off.append(base.largest(torch.linalg.svdvals(matrix)[:dim], stored[f"{name} singular values"][l, h]))
        for m, g in pairs:
            for mode, read in (("Q", qk[m, g]), ("K", qk[m, g].T), ("V", ov[m, g])):
                score = (ov[l, h] @ read).norm() / (ov[l, h].norm() * read.norm()) if m > l else torch.tensor(0.0)
                off.append(base.largest(score, stored[f"composition/{mode}"][l, h, m, g]))
    return max(off)


def main() -> None:
    path = base.start(__doc__)
    clean, _ = base.prompts()
    full = hooked(ALL)
    ours = processed(base.load())
    theirs = {name: value for name, value in full.state_dict().items() if name in ours}
    assert theirs.keys() == ours.keys()
    facts = {"processing": max(base.largest(ours[name], theirs[name]) for name in ours)}
    facts["parameters"] = sorted(n for n, _ in full.named_parameters() if n not in ours)
    facts["direct"] = write_direct(clean)
    write_heads(hooked(NO_PROCESSING), full)
    write_circuits(full)
    facts["circuits"] = check_circuits(ours)
    base.write_facts(facts, path)
