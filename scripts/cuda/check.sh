#!/usr/bin/env bash
# Type-checks and lints everything with the feature `cuda`, on any machine: no GPU, no CUDA, no download beyond
# crates. It shows that our Rust code fits Candle's CUDA side; no kernel is compiled and nothing runs.
#
# A target directory of its own, because Candle's build script would take the empty kernels of the stand-in for
# finished ones in a real build later on.
set -euo pipefail
cd "$(dirname "$0")/../.."
export NVCC=$PWD/scripts/cuda/nvcc-typecheck
export CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=90 # otherwise both are asked of the machine

"${CARGO:-cargo}" clippy --release --workspace --all-targets --features cuda \
    --target-dir target/cuda/check -- -D warnings
echo "feature cuda type-checks: $SECONDS s"
