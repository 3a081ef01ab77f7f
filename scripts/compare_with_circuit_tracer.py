#!/usr/bin/env python3
"""Attribution graphs beside circuit-tracer's: every feature, activation and edge, and the time and memory of both.

    scripts/python.sh                                         # builds the package
    python3 -m venv /tmp/tracer && /tmp/tracer/bin/pip install torch==2.11.0 circuit-tracer==0.5.0
    PYTHONPATH=target/python-package /tmp/tracer/bin/python scripts/compare_with_circuit_tracer.py [demo] [small] [--rounds N]

`demo` is the demo model, `small` one of GPT-2 small's shape with random weights; both get a random JumpReLU transcoder for each MLP. The
sides run in turn, each in a process of its own, with 2 threads. Exits 1 if the features differ, a score by more than 1e-5, or an edge or
an activation by more than 1e-5 of the largest one. Linux only.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-5
PROMPT = {"demo": [40, 262, 7, 300, 11, 287, 500, 63], "small": [464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 13]}
FEATURES = {"demo": 1024, "small": 6144}
THRESHOLD = {"demo": 2.5, "small": 3.9}
HOOKS = {"hook_name": "mlp.hook_in", "hook_name_out": "hook_mlp_out"}


# --- what both sides read ------------------------------------------------------------------------------------------------------


def random_model(folder):
    """GPT-2 small's shape; what attention and MLPs write is small, so that transcoders with one threshold fire at every layer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("c_proj.weight"):
                weight.mul_(0.5)
            elif name.endswith("bias"):
                weight.normal_(0, 0.02)
    model.save_pretrained(folder)


def random_transcoders(folder, layers, width, features, threshold):
    """A transcoder for each MLP in SAELens' files, of which few features fire."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.standard_normal(shape, dtype=np.float32)
    for layer in range(layers):
        of_layer = folder / f"t{layer}"
        of_layer.mkdir()
        scale = 1.4 / np.sqrt(width)
        tensors = {
            "W_enc": normal(width, features) * scale, "W_dec": normal(features, width) * scale / 10, "b_enc": normal(features) * 0.1,
            "b_dec": normal(width) * 0.1, "threshold": np.full(features, threshold, np.float32),
        }  # fmt: skip
        save_file(tensors, of_layer / "sae_weights.safetensors")
        hooks = {key: f"blocks.{layer}.{point}" for key, point in HOOKS.items()}
        config = {"architecture": "jumprelu_transcoder", "d_in": width, "d_out": width, "d_sae": features, "dtype": "float32", "apply_b_dec_to_input": False}
        (of_layer / "cfg.json").write_text(json.dumps({**config, "normalize_activations": "none", "metadata": hooks}))


# --- the sides -----------------------------------------------------------------------------------------------------------------


def ours(model, dictionaries, ids):
    import gpt2_candle

    loaded = gpt2_candle.Model.load(model)
    read = [gpt2_candle.Dictionary.load(one) for one in dictionaries]
    start = time.perf_counter()
    graph = loaded.attribution_graph(ids, read)
    seconds = time.perf_counter() - start
    scores = [graph.report["replacement_score"], graph.report["completeness_score"]]
    return seconds, scores, graph.adjacency_matrix, graph.active_features, graph.activation_values


def theirs(model, dictionaries, ids):
    import torch
    from circuit_tracer.attribution.attribute import attribute
    from circuit_tracer.graph import compute_graph_scores
    from circuit_tracer.replacement_model.replacement_model_transformerlens import TransformerLensReplacementModel
    from circuit_tracer.transcoder.activation_functions import JumpReLU
    from circuit_tracer.transcoder.single_layer_transcoder import SingleLayerTranscoder, TranscoderSet
    from safetensors.torch import load_file
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(2)
    source = GPT2LMHeadModel.from_pretrained(model, torch_dtype=torch.float32)
    shape = source.config
    config = HookedTransformerConfig(
        n_layers=shape.n_layer, d_model=shape.n_embd, n_ctx=shape.n_positions, d_head=shape.n_embd // shape.n_head, n_heads=shape.n_head,
        d_mlp=4 * shape.n_embd, d_vocab=shape.vocab_size, act_fn="gelu_new", normalization_type="LN", eps=shape.layer_norm_epsilon,
        model_name="compared", device="cpu", dtype=torch.float32,
    )  # fmt: skip
    transcoders = {}
    for layer, folder in enumerate(dictionaries):
        tensors = load_file(f"{folder}/sae_weights.safetensors")
        width, features = tensors["W_enc"].shape
        one = SingleLayerTranscoder(width, features, JumpReLU(tensors["threshold"], 2.0), layer, dtype=torch.float32, device=torch.device("cpu"))
        one.load_state_dict({**one.state_dict(), **tensors, "W_enc": tensors["W_enc"].T}, strict=False)
        transcoders[layer] = one
    replacement = TransformerLensReplacementModel.from_config(config, TranscoderSet(transcoders, "mlp.hook_in", "mlp.hook_out"))
    renamed = lambda name: name.replace(".mlp.", ".mlp.old_mlp.").replace("unembed.", "unembed.old_unembed.")
    weights = {renamed(name): tensor for name, tensor in convert_gpt2_weights(source, config).items()}
    loaded = replacement.load_state_dict(weights, strict=False)
    of_model = [name for name in loaded.missing_keys if not name.startswith("transcoders.")]
    left = [name for name in of_model if ".W_" in name or name.endswith((".w", ".b"))] + loaded.unexpected_keys
    assert not left, f"weights that circuit-tracer's model did not get: {left}"
    # Tokens are given, and none of them is left out as one of no meaning.
    replacement.ensure_tokenized = lambda ids: ids
    replacement.zero_positions = slice(0, 0)
    replacement.tokenizer = Tokens(shape.vocab_size)
    start = time.perf_counter()
    graph = attribute(torch.tensor(ids), replacement, batch_size=256)
    seconds = time.perf_counter() - start
    values = graph.activation_values.detach().numpy()
    return seconds, list(compute_graph_scores(graph)), graph.adjacency_matrix.numpy(), graph.active_features.numpy(), values


class Tokens:
    """What circuit-tracer asks of a tokenizer where ids are given."""

    padding_side = "right"
    bos_token_id = pad_token_id = eos_token_id = cls_token_id = sep_token_id = None

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def decode(self, ids, **_):
        return str(ids)


def run_side(side, model, dictionaries, ids, out):
    """Runs a side in this process, and leaves what it found in a file."""
    seconds, scores, edges, features, values = (ours if side == "ours" else theirs)(model, dictionaries, ids)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    np.savez(out, seconds=seconds, peak=peak, scores=scores, edges=edges, features=features, values=values)


# --- beside one another --------------------------------------------------------------------------------------------------------


def compare(name, rounds, folder):
    model = folder / "model" if name == "small" else ROOT / "models/tiny-shakespeare"
    if name == "small":
        random_model(model)
    config = json.loads((model / "config.json").read_text())
    random_transcoders(folder, config["n_layer"], config["n_embd"], FEATURES[name], THRESHOLD[name])
    dictionaries = [str(folder / f"t{layer}") for layer in range(config["n_layer"])]
    found = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for side, runs in found.items():
            out = folder / f"{side}.npz"
            asked = json.dumps([side, str(model), dictionaries, PROMPT[name], str(out)])
            done = subprocess.run([sys.executable, __file__, "--run", asked], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"error: {side}: {done.stdout}{done.stderr}")
            runs.append(dict(np.load(out)))
    mine, other = found["ours"][0], found["theirs"][0]
    same = np.array_equal(mine["features"], other["features"])
    print(f"{name}: {len(mine['features'])} features fire, {'the same' if same else 'OTHER features'} on both sides")
    for side, runs in found.items():
        seconds = sorted(float(run["seconds"]) for run in runs)
        peak = min(float(run["peak"]) for run in runs) / 1e9
        scores = ", ".join(f"{score:.6f}" for score in runs[0]["scores"])
        print(f"  {side:6} {seconds[0]:6.2f} s (median {seconds[len(seconds) // 2]:.2f}), {peak:.2f} GB, scores {scores}")
    if not same:
        return False
    largest = lambda kind: float(np.abs(mine[kind] - other[kind]).max() / np.abs(other[kind]).max())
    print(f"  largest difference of an edge {largest('edges'):.1e} of the largest edge, of an activation {largest('values'):.1e}")
    scores = float(np.abs(mine["scores"] - other["scores"]).max())
    return max(largest("edges"), largest("values"), scores) <= TOLERANCE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo", "small"], metavar="MODEL", help="demo, small (default: both)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="runs of each side, in turn")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        return run_side(*json.loads(given.run))
    unknown = set(given.models) - set(PROMPT)
    if unknown or given.rounds < 1:
        parser.error(f"expected demo or small, and at least one round, got {', '.join(unknown) or given.rounds}")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here needs the network
    agreed = True
    for name in given.models:
        with tempfile.TemporaryDirectory(prefix="gpt2-tracer-") as folder:
            agreed = compare(name, given.rounds, Path(folder)) and agreed
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
