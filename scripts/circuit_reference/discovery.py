"""Edges, circuits and paths of a task as TransformerLens 2's hooks compute them: a part of make_circuit_reference.py.

Every reader's input is built up from what all writers add, so that nothing here is computed as in gpt2-circuits.
"""

import torch
from torch import Tensor

import circuit_reference.model as base
from circuit_reference.lens import NO_PROCESSING, hooked
from circuit_reference.model import EAP_IG_STEPS, HEADS, LAYERS

# Two lengths, and one or several answers.
LENGTHS = (12, 9, 12, 9, 9)
ANSWERS = (([18], [39]), ([4, 7], [21]), ([30], [11, 2, 50]), ([1], [2]), ([6, 9], [40, 41]))
DENSITIES = (0.9, 0.5, 0.1)

WRITERS = ["embed"] + [w for layer in range(LAYERS) for w in [*((layer, head) for head in range(HEADS)), (layer, "mlp")]]
READERS = [
    r
    for layer in range(LAYERS)
    for r in [*((layer, head, part) for part in "qkv" for head in range(HEADS)), (layer, "mlp")]
] + ["logits"]
CORRUPT = [("hook_embed", 0.0)]
PARTS = [("heads", "mlps"), ("heads",), ()]
PATHS = [([(0, 1)], [(2, 0, "q"), (2, 1, "v"), (1, "mlp")]), (["embed", (1, "mlp")], ["logits", (2, 2, "k")])]


def pairs() -> list[tuple[Tensor, Tensor]]:
    found = []
    for i, length in enumerate(LENGTHS):
        clean = base.prompt(100 + i, length)
        corrupt = clean.clone()
        for position in (2, length // 2):
            corrupt[0, position] = (clean[0, position] + 7 + i) % base.BOS
        found.append((clean, corrupt))
    return found


def metric(logits: Tensor, answers: tuple[list[int], list[int]]) -> Tensor:
    last = logits[0, -1]
    return last[answers[0]].mean() - last[answers[1]].mean()


def before(reader) -> int:
    """How many writers come before a reader."""
    if reader == "logits":
        return len(WRITERS)
    return 1 + reader[0] * (HEADS + 1) + (HEADS if reader[1] == "mlp" else 0)


def biases(model, reader) -> Tensor:
    """What attention's output biases have added before a reader."""
    layers = LAYERS if reader == "logits" else reader[0] + (reader[1] == "mlp")
    return sum((model.blocks[layer].attn.b_O.detach() for layer in range(layers)), torch.zeros(base.CHANNELS))


def written_hooks(found: dict) -> list:
    """Hooks that take down what each writer adds, (T, C)."""

    def heads(layer):
        return lambda value, hook: found.update({(layer, h): value[0, :, h] for h in range(HEADS)})

    hooks = [("blocks.0.hook_resid_pre", lambda value, hook: found.update({"embed": value[0]}))]
    for layer in range(LAYERS):
        hooks.append((f"blocks.{layer}.attn.hook_result", heads(layer)))
        hooks.append((f"blocks.{layer}.hook_mlp_out", lambda value, hook, layer=layer: found.update({(layer, "mlp"): value[0]})))
    return hooks


def reader_hooks(change) -> list:
    """Hooks at each reader's input; `change(reader, x)` gives the new input, (T, C), or None."""

    def one(reader):
        def hook(value, hook):
            new = change(reader, value[0])
            return value if new is None else new[None]

        return hook

    def heads(layer, part):
        def hook(value, hook):
            rows = []
            for head in range(HEADS):
                new = change((layer, head, part), value[0, :, head])
                rows.append(value[0, :, head] if new is None else new)
            return torch.stack(rows, 1)[None]

        return hook

    hooks = [(f"blocks.{layer}.hook_{part}_input", heads(layer, part)) for layer in range(LAYERS) for part in "qkv"]
    hooks += [(f"blocks.{layer}.hook_mlp_in", one((layer, "mlp"))) for layer in range(LAYERS)]
    return [*hooks, (f"blocks.{LAYERS - 1}.hook_resid_post", one("logits"))]


def written(model, ids: Tensor) -> dict:
    found: dict = {}
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=written_hooks(found))
    return found


def values_at(model, ids: Tensor, names: list[str]) -> dict[str, Tensor]:
    with torch.no_grad():
        return dict(model.run_with_cache(ids, names_filter=lambda name: name in names)[1])


def fixed_pattern(model, ids: Tensor, reader, other: Tensor) -> Tensor:
    """A head's pattern (T, T) in a run over a text in which its queries or keys read `other` (T, C)."""
    layer, head, part = reader

    def read(value, hook):
        new = value.clone()
        new[0, :, head] = other
        return new

    found = {}
    keep = (f"blocks.{layer}.attn.hook_pattern", lambda value, hook: found.update({"pattern": value[0, head]}))
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.hook_{part}_input", read), keep])
    return found["pattern"]


def edge_scores(
    model, clean: Tensor, corrupt: Tensor, answers, runs: list[tuple[str, float]], qk_fix: bool = False
) -> Tensor:
    """(readers, writers): the change of a writer, clean less corrupted, times the mean gradient at the reader. A run names a hook
    and how far its value is on the way from the corrupted to the clean text's."""
    values = [written(model, ids) for ids in (clean, corrupt)]
    hooked_at = [values_at(model, ids, [name for name, _ in runs]) for ids in (clean, corrupt)]
    scores = torch.zeros(len(READERS), len(WRITERS))
    patterns = [torch.zeros(HEADS, clean.shape[1], clean.shape[1]) for _ in range(LAYERS)]
    for name, share in runs:
        inputs: dict = {}

        def tap(reader, x):
            inputs[reader] = torch.zeros_like(x, requires_grad=True)
            return x + inputs[reader]

        def tap_pattern(layer):
            def hook(value, hook):
                inputs[layer] = torch.zeros_like(value[0], requires_grad=True)
                return value + inputs[layer]

            return hook

        mixed = hooked_at[1][name] + share * (hooked_at[0][name] - hooked_at[1][name])
        mix = [(name, lambda value, hook: mixed)]
        taps = reader_hooks(tap) + [(f"blocks.{layer}.attn.hook_pattern", tap_pattern(layer)) for layer in range(LAYERS)]
        logits = model.run_with_hooks(clean, fwd_hooks=[*mix, *taps])
        wanted = [*READERS, *range(LAYERS)]
        found = torch.autograd.grad(metric(logits, answers), [inputs[key] for key in wanted], allow_unused=True)
        gradients = dict(zip(wanted, found))
        for layer in range(LAYERS):
            if gradients[layer] is not None:
                patterns[layer] += gradients[layer] / len(runs)
        for row, reader in enumerate(READERS):
            if qk_fix and reader[-1] in ("q", "k"):
                continue
            for column in range(before(reader)):
                change = values[0][WRITERS[column]] - values[1][WRITERS[column]]
                if gradients[reader] is not None:
                    scores[row, column] += (change * gradients[reader]).sum() / len(runs)
    if qk_fix:
        # Where the gradient is taken: in the corrupted run, an edge gets the clean one's value, and else the other way.
        ids, sign = (corrupt, 1) if runs == CORRUPT else (clean, -1)
        names = [f"blocks.{layer}.hook_resid_pre" for layer in range(LAYERS)]
        streams = values_at(model, ids, names)
        for row, reader in enumerate(READERS):
            if reader[-1] not in ("q", "k"):
                continue
            stream = streams[names[reader[0]]][0]
            plain = fixed_pattern(model, ids, reader, stream)
            for column in range(before(reader)):
                change = values[0][WRITERS[column]] - values[1][WRITERS[column]]
                pattern = fixed_pattern(model, ids, reader, stream + sign * change)
                scores[row, column] = sign * (patterns[reader[0]][reader[1]] * (pattern - plain)).sum()
    return scores


@torch.no_grad()
def circuit(model, clean: Tensor, answers, edges: Tensor, other: dict) -> Tensor:
    """The metric of a run in which readers get what writers add along `edges` (readers, writers), and `other` elsewhere."""
    now: dict = {}

    def read(reader, x):
        row = READERS.index(reader)
        total = biases(model, reader).expand(x.shape).clone()
        for column in range(before(reader)):
            writer = WRITERS[column]
            total += now[writer] if edges[row, column] else other[writer]
        return total

    logits = model.run_with_hooks(clean, fwd_hooks=[*written_hooks(now), *reader_hooks(read)])
    return metric(logits, answers)


@torch.no_grad()
def path(model, clean: Tensor, corrupt: Tensor, answers, senders, receivers, frozen) -> Tensor:
    """Wang et al.'s three runs."""
    of_clean, of_corrupt = written(model, clean), written(model, corrupt)

    def value(writer, now):
        kind = "mlps" if writer != "embed" and writer[1] == "mlp" else "heads"
        if writer in senders:
            return of_corrupt[writer]
        return of_clean[writer] if kind in frozen and writer != "embed" else now

    def heads(layer):
        return lambda x, hook: torch.stack([value((layer, h), x[0, :, h]) for h in range(HEADS)], 1)[None]

    hooks = [("blocks.0.hook_resid_pre", lambda x, hook: value("embed", x[0])[None])]
    for layer in range(LAYERS):
        hooks.append((f"blocks.{layer}.attn.hook_result", heads(layer)))
        hooks.append((f"blocks.{layer}.hook_mlp_out", lambda x, hook, layer=layer: value((layer, "mlp"), x[0])[None]))
    read: dict = {}
    model.run_with_hooks(clean, fwd_hooks=[*hooks, *reader_hooks(lambda reader, x: read.update({reader: x.clone()}))])
    receive = reader_hooks(lambda reader, x: read[reader] if reader in receivers else None)
    return metric(model.run_with_hooks(clean, fwd_hooks=receive), answers)


def main() -> None:
    facts = base.start(__doc__)
    model = hooked(NO_PROCESSING)
    for switch in ("set_use_attn_result", "set_use_split_qkv_input", "set_use_hook_mlp_in"):
        getattr(model, switch)(True)
    stored: dict[str, Tensor] = {}
    all_pairs = pairs()
    corrupted = [written(model, corrupt) for _, corrupt in all_pairs]
    means = {w: torch.cat([found[w] for found in corrupted]).mean(0, keepdim=True) for w in WRITERS}
    zeros = {w: torch.zeros(1, base.CHANNELS) for w in WRITERS}
    legal = torch.tensor([[column < before(reader) for column in range(len(WRITERS))] for reader in READERS])
    for i, density in enumerate(DENSITIES):
        drawn = torch.rand(legal.shape, generator=base.generator(200 + i)) < density
        stored[f"edges/{i}"] = (drawn & legal).long()
    steps = [k / EAP_IG_STEPS for k in range(1, EAP_IG_STEPS + 1)]
    groups = [f"blocks.{layer}.{name}" for layer in range(LAYERS) for name in ("attn.hook_z", "hook_mlp_out")]
    inputs = [("hook_embed", share) for share in steps]
    activations = [(name, share) for name in ["hook_embed", *groups] for share in steps]
    for name, runs, qk_fix in (
        ("clean", [("hook_embed", 1.0)], False),
        ("corrupt", CORRUPT, False),
        ("integrated", inputs, False),
        ("activations", activations, False),
        ("clean fixed", [("hook_embed", 1.0)], True),
        ("corrupt fixed", CORRUPT, True),
        ("integrated fixed", inputs, True),
        ("activations fixed", activations, True),
    ):
        scores = [edge_scores(model, *pair, answers, runs, qk_fix) for pair, answers in zip(all_pairs, ANSWERS)]
        stored[f"scores/{name}"] = torch.stack(scores).mean(0)
    for i, ((clean, corrupt), answers) in enumerate(zip(all_pairs, ANSWERS)):
        stored |= {f"{i}/clean": clean[0], f"{i}/corrupt": corrupt[0]}
        stored |= {f"{i}/answers": torch.tensor(answers[0]), f"{i}/against": torch.tensor(answers[1])}
        for edges in range(len(DENSITIES)):
            for name, other in (("corrupted", corrupted[i]), ("mean", means), ("zero", zeros)):
                found = circuit(model, clean, answers, stored[f"edges/{edges}"], other)
                stored[f"{i}/circuit {edges} {name}"] = found
        for number, (senders, receivers) in enumerate(PATHS):
            for frozen in PARTS:
                name = {2: "all", 1: "heads", 0: "nothing"}[len(frozen)]
                stored[f"{i}/path {number} {name}"] = path(model, clean, corrupt, answers, senders, receivers, frozen)
    base.write(stored, "discovery.safetensors")
    base.write_facts({"versions": base.versions("transformer_lens")}, facts)
