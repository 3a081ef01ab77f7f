#!/usr/bin/env python3
"""Show that BertViz and CircuitsVis accept the files that `gpt2 attention --export FILE.json` writes.

    cargo build --release --workspace
    pip install -r scripts/requirements.txt bertviz==1.4.1 circuitsvis==1.43.3
    python scripts/check_visualizers.py

Exports the demo model's attention, compares it with the safetensors export, and passes it to each visualizer's
function. Each page must contain a weight of the export. The script writes the returned pages to --out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMPT = 'O Romeo, Romeo! wherefore art thou "Romeo"?\n</script>'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/gpt2", help="the gpt2 to run")
    parser.add_argument("--out", type=Path, help="folder for the visualizers' pages (default: none are kept)")
    args = parser.parse_args()

    import circuitsvis.attention
    import numpy
    import torch
    from bertviz import head_view, model_view
    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("weights.json", "weights.safetensors")]
        for file in files:
            subprocess.run([args.binary, "attention", "--quiet", "--export", file, PROMPT], check=True, stdout=subprocess.DEVNULL)
        data = json.loads(files[0].read_text())
        expected = load_file(files[1])["attentions"]  # (L, H, T, T)
    tokens, attention = data["tokens"], numpy.array(data["attention"], dtype=numpy.float32)
    assert attention.shape == expected.shape and attention.shape[2] == len(tokens), (attention.shape, len(tokens))
    assert (attention == expected).all(), "JSON and safetensors differ"
    print(f"{len(tokens)} tokens, attention {attention.shape}: JSON equals safetensors")

    layers = [torch.tensor([layer]) for layer in data["attention"]]  # L of (1, H, T, T)
    pages = {
        "bertviz-head-view": head_view(layers, tokens, html_action="return").data,
        "bertviz-model-view": model_view(layers, tokens, html_action="return").data,
        "circuitsvis-patterns": str(circuitsvis.attention.attention_patterns(tokens, attention[0])),
        "circuitsvis-heads": str(circuitsvis.attention.attention_heads(attention[0], tokens)),
    }
    # BertViz writes a layer's f32 values as Python's json does; CircuitsVis writes the numbers of the array.
    weight = str(float(attention[0, 0, 5, 2]))[:8]
    for name, page in pages.items():
        print(f"{name}: {len(page):,} characters of HTML")
        assert weight in page, f"{name} holds no {weight}"
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"{name}.html").write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
