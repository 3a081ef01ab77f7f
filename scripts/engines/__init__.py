"""The parts of bench_vs_engines.py."""
