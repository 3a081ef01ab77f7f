#!/usr/bin/env python3
"""What `gpt2 train` and context parallelism would cost on 2 to 1024 ranks: a model on paper, not a measurement.

    scripts/parallel_model.py                                  two networks, as Markdown
    scripts/parallel_model.py --latency 2e-6 --bandwidth 22e9  your own: see `cargo run --release --example exchange`
    scripts/parallel_model.py --plot docs/images/parallel.svg  and a plot (pip install matplotlib==3.11.2)

A message of n bytes takes `latency + n / bandwidth`; a rank sends one at a time; nothing overlaps with computing.

Data parallelism: each rank computes one batch, then the ranks exchange gradients and weights in buckets of 25 MB a
rank. A bucket costs a meeting (rank 0 hears from every rank and answers each), a message to every other rank, and its
bytes. With two levels, the ranks of a node of 8 first add their gradients in its shared memory, and one of them
exchanges the sum with the other nodes: this is not built; it would fix the order of additions by nodes.

Context parallelism: a rank collects the keys and values of all positions and computes its share of attention.
"""

import argparse
import sys
from dataclasses import dataclass

RANKS = [2, 8, 64, 256, 1024]
BUCKET = 25e6
NODE = 8
# GPT-2 small: bytes of its gradients, and the seconds of its batch: 1 x 128 tokens, forward and backward on two cores of
# the machine that docs/parallel.md names. Measured there, as are the three below.
GRADIENTS = 4 * 124_439_808
BATCH = 1.3
# Rank 0's work for each other rank in a meeting, and sums within a machine's memory, in seconds and bytes a second.
MARK = 1e-6
MEMORY = 1.5e9
# Attention, in floating-point operations a second, on those two cores.
ATTENTION = 144e9
HEADS, WIDTH = 12, 64


@dataclass
class Network:
    """Latency in seconds, bandwidth in bytes a second and rank."""

    name: str
    latency: float
    bandwidth: float

    def exchange(self, ranks, sent):
        """Seconds in which every rank sends `sent` bytes, in equal parts to all others."""
        return (ranks - 1) * self.latency + sent * (ranks - 1) / ranks / self.bandwidth

    def meeting(self, ranks):
        """Seconds until rank 0 has heard from every rank and answered each."""
        return 2 * self.latency + 2 * (ranks - 1) * MARK


# Assumed, not measured: there is no cluster at hand.
NETWORKS = [Network("25 Gb Ethernet", 30e-6, 2.8e9), Network("InfiniBand", 2e-6, 22e9)]


def step(network, ranks):
    """Seconds of a step's exchange, flat and in two levels, for gradients of GPT-2 small."""

    def flat(ranks):
        buckets = GRADIENTS / BUCKET
        return 2 * buckets * (network.meeting(ranks) + network.exchange(ranks, BUCKET))

    levels = None
    if ranks > NODE:
        levels = 2 * GRADIENTS / MEMORY + flat(ranks // NODE)
    return flat(ranks), levels


def attention(tokens):
    """Seconds of one layer's causal attention on one rank."""
    return 2 * tokens * tokens * HEADS * WIDTH / ATTENTION


def context(network, ranks, tokens):
    """Seconds of one layer: the keys' and values' journey, and a rank's share of attention."""
    own = 2 * 4 * tokens * HEADS * WIDTH / ranks
    gather = (ranks - 1) * (network.latency + own / network.bandwidth)
    return 2 * network.meeting(ranks) + gather, attention(tokens) / ranks


def table(networks, batch):
    """The tables, as lines of Markdown."""
    yield f"Data parallelism, GPT-2 small, one batch of {batch:g} s a rank:"
    yield ""
    yield "| ranks | " + " | ".join(f"{n.name}: exchange | kept | in two levels" for n in networks) + " |"
    yield "|---" * (1 + 3 * len(networks)) + "|"
    for ranks in RANKS:
        cells = [str(ranks)]
        for network in networks:
            flat, levels = step(network, ranks)
            kept = batch / (batch + flat)
            cells += [f"{flat:.2f} s", f"{100 * kept:.0f} %", "" if levels is None else f"{levels:.2f} s"]
        yield "| " + " | ".join(cells) + " |"
    for tokens in (4096, 131_072):
        yield ""
        yield f"Context parallelism, one layer of GPT-2 small's heads over {tokens} positions ({attention(tokens):.2g} s on one):"
        yield ""
        yield "| ranks | " + " | ".join(f"{n.name}: gather | attention | speed-up" for n in networks) + " |"
        yield "|---" * (1 + 3 * len(networks)) + "|"
        for ranks in RANKS:
            cells = [str(ranks)]
            for network in networks:
                gather, own = context(network, ranks, tokens)
                cells += [f"{1e3 * gather:.1f} ms", f"{1e3 * own:.1f} ms", f"{attention(tokens) / (gather + own):.1f}"]
            yield "| " + " | ".join(cells) + " |"


def plot(networks, batch, path):
    """Draws the part of the time that is kept, over ranks."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("error: --plot needs matplotlib; run: pip install matplotlib==3.11.2")
    matplotlib.use("svg")
    # The same bytes each time.
    matplotlib.rcParams["svg.hashsalt"] = "gpt2"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6))
    ranks = [2**i for i in range(1, 11)]
    for network in networks:
        kept = [batch / (batch + step(network, n)[0]) for n in ranks]
        (line,) = axes.plot(ranks, kept, marker="o", label=network.name)
        deep = [n for n in ranks if n > NODE]
        kept = [batch / (batch + step(network, n)[1]) for n in deep]
        axes.plot(deep, kept, linestyle=":", color=line.get_color(), label=f"{network.name}, two levels (not built)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(RANKS, [str(n) for n in RANKS])
    axes.set_ylim(0, 1)
    axes.set_xlabel("ranks, one batch each")
    axes.set_ylabel("part of the time that computes")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, help="seconds a message")
    parser.add_argument("--bandwidth", type=float, help="bytes a second and rank")
    parser.add_argument("--batch", type=float, default=BATCH, help="seconds of a batch [default: %(default)s]")
    parser.add_argument("--plot", metavar="FILE.svg")
    args = parser.parse_args()
    if (args.latency is None) != (args.bandwidth is None):
        parser.error("--latency and --bandwidth go together")
    networks = NETWORKS if args.latency is None else [Network("yours", args.latency, args.bandwidth)]
    if args.batch <= 0 or any(n.latency < 0 or n.bandwidth <= 0 for n in networks):
        parser.error("expected positive numbers")
    print("\n".join(table(networks, args.batch)))
    if args.plot:
        plot(networks, args.batch, args.plot)


if __name__ == "__main__":
    main()
