#!/usr/bin/env bash
# Checks of the feature `cuda` on any machine, without a GPU, a driver or anything installed as root.
#
#   scripts/cuda/check.sh types      clippy on the command and what it needs with Candle's CUDA side, without the Hub, with a
#                                    stand-in for nvcc
#   scripts/cuda/check.sh all-types  the same for all crates but those without the feature
#   scripts/cuda/check.sh kernels    a real nvcc on our kernels: for each capability no warning, no spilled register,
#                                    tensor-core instructions where they belong, and no number beyond limits.json
#   scripts/cuda/check.sh on-cpu     on a driver that runs launches on the processor: the driver's own test, and the tests of the
#                                    kernels, the model and training
#   scripts/cuda/check.sh on-cpu-all the same, and the program: every command beside the CPU, launches of a token, and every path of
#                                    `verify`
#   scripts/cuda/check.sh            types and kernels
set -euo pipefail
cd "$(dirname "$0")/../.."

# Use a separate target directory, because in a later real build Candle's build script would mistake the stand-in's empty
# kernels for finished ones. Without the Hub and the tests, there is only half as much to build.
types() { # -p CRATE or --workspace
    NVCC=$PWD/scripts/cuda/nvcc-typecheck CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=90 \
        "${CARGO:-cargo}" clippy --release "$@" --no-default-features --features cuda,x86-v4 \
        --target-dir target/cuda/check -- -D warnings
    echo "feature cuda type-checks: $SECONDS s"
}

kernels() {
    if [ -z "${CUDA_HOME:-}" ]; then
        scripts/cuda/toolkit.sh
        CUDA_HOME=target/cuda/toolkit
    fi
    for tool in nvcc nvdisasm; do
        [ -x "$CUDA_HOME/bin/$tool" ] ||
            { echo "error: no $tool in $CUDA_HOME/bin; unset CUDA_HOME, and toolkit.sh fetches one" >&2; exit 1; }
    done
    CUDA_HOME=$CUDA_HOME "${PYTHON:-python3}" scripts/cuda/kernels.py 75 80 90
    echo "kernels compile: $SECONDS s"
}

on_cpu() {
    "${PYTHON:-python3}" scripts/cuda/on_device.py "$@"
    echo "tests on the driver on the processor: $SECONDS s"
    scripts/cuda/driver/selftest/run.sh target/cuda-on-cpu
    echo "the driver's own test: $SECONDS s"
}

program_on_cpu() {
    scripts/cuda/on-cpu.sh --build
    "${PYTHON:-python3}" scripts/cuda/beside_cpu.py
    echo "every command beside the CPU: $SECONDS s"
    "${PYTHON:-python3}" scripts/cuda/launches.py --most 75
    scripts/cuda/on-cpu.sh verify --device cuda
    echo "verify on the driver on the processor: $SECONDS s"
}

case ${1:-all} in
    types) types -p gpt2-cli ;;
    all-types) types --workspace --exclude models-on-candle-fused ;;
    kernels) kernels ;;
    on-cpu) on_cpu --quick ;;
    on-cpu-all) on_cpu; program_on_cpu ;;
    all) types -p gpt2-cli; SECONDS=0; kernels ;;
    *) echo "usage: scripts/cuda/check.sh [types|all-types|kernels|on-cpu|on-cpu-all]" >&2; exit 2 ;;
esac
