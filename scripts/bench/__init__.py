"""The parts of bench_vs_pytorch.py."""
