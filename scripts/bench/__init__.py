"""What the benchmarks share: processes.py, side.py, report.py; and the parts of bench_vs_pytorch.py."""
