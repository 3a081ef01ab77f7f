"""Writes tests/data/features: dictionaries of every architecture and normalization with random weights, as SAELens saves them, the
features that it finds in random values, and what it rebuilds from them.

    pip install sae-lens==6.54.12
    python3 scripts/feature_reference.py
"""

import argparse
import json
import shutil
import warnings
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "tests/data/features"
README = """Dictionaries in SAELens' files, each in a folder with `values.safetensors`: what it read (`x`), which features SAELens {version}
found (`features`), and what it rebuilt (`output`). `demo` fits the demo model; the others fit nothing.

Written by `scripts/feature_reference.py`.
"""
D, FEATURES, POSITIONS = 12, 40, 9
HOOK = "blocks.1.hook_resid_pre"
TRANSCODER = {"apply_b_dec_to_input": False, "d_out": 10}
TOP = {"k": 5}


def cases() -> dict[str, tuple[str, dict]]:
    """The architecture and the settings of each folder."""
    found = {
        "standard": ("standard", {}),
        "gated": ("gated", {}),
        "jumprelu": ("jumprelu", {}),
        "topk": ("topk", TOP),
        "topk_rescaled": ("topk", TOP | {"rescale_acts_by_decoder_norm": True}),
        "abstopk": ("abstopk", TOP | {"rescale_acts_by_decoder_norm": True}),
        "transcoder": ("transcoder", TRANSCODER),
        "square_transcoder": ("transcoder", TRANSCODER | {"d_out": D, "normalize_activations": "layer_norm"}),
        "skip_transcoder": ("skip_transcoder", TRANSCODER),
        "jumprelu_transcoder": ("jumprelu_transcoder", TRANSCODER),
        "jumprelu_skip_transcoder": ("jumprelu_skip_transcoder", TRANSCODER),
        "raw_input": ("jumprelu", {"apply_b_dec_to_input": False}),
    }
    for name in ["expected_average_only_in", "constant_norm_rescale", "layer_norm"]:
        found[name] = ("standard", {"normalize_activations": name})
        found[f"{name}_topk"] = ("topk", TOP | {"normalize_activations": name, "apply_b_dec_to_input": False})
    found["demo"] = ("topk", {"k": 4, "d_in": 128, "d_sae": 96})
    return found


def old(config: dict) -> dict:
    """The settings as SAELens 3 wrote them: flat, and with other names."""
    flat = {key: value for key, value in config.items() if key not in ("metadata", "architecture", "k")}
    flat |= {"hook_point": HOOK, "hook_point_layer": 1, "hook_point_head_index": None, "model_name": "tiny-shakespeare"}
    flat |= {"normalize_activations": False, "finetuning_scaling_factor": False, "prepend_bos": True}
    return flat | {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": config["k"]}}


def main() -> None:
    import sae_lens
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    (FOLDER / "README.md").write_text(README.format(version=sae_lens.__version__))
    for name, (architecture, settings) in cases().items():
        sizes = {"d_in": D, "d_sae": FEATURES} | settings
        metadata = sae_lens.saes.sae.SAEMetadata(model_name="tiny-shakespeare", hook_name=HOOK, prepend_bos=False)
        if "transcoder" in architecture:
            metadata.hook_name, metadata.hook_name_out = "blocks.1.ln2.hook_normalized", "blocks.1.hook_mlp_out"
        kind, config = sae_lens.registry.get_sae_class(architecture)
        sae = kind(config(**sizes, metadata=metadata))
        with torch.no_grad():
            for parameter in sae.parameters():
                parameter.normal_(0, 0.5)
            x = 2 * torch.randn(POSITIONS, sizes["d_in"]) + 0.3
            features = sae.encode(x)
            output = sae(x)
        folder = FOLDER / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sae.save_model(folder)
        values = {"x": x, "features": features.contiguous(), "output": output.contiguous()}
        save_file(values, folder / "values.safetensors")
        if name == "topk":
            shutil.copytree(folder, FOLDER / "old")
            config = json.loads((folder / "cfg.json").read_text())
            (FOLDER / "old/cfg.json").write_text(json.dumps(old(config)))
        print(f"{name}: {(features != 0).float().sum(-1).mean():.1f} features fire")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
