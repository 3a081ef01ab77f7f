#!/usr/bin/env bash
# Two checks of the feature `cuda` on any machine, without a GPU, a driver or anything installed as root.
#
#   scripts/cuda/check.sh types      clippy on our Rust code with Candle's CUDA side, with a stand-in for nvcc
#   scripts/cuda/check.sh kernels    a real nvcc on our kernels: for each capability no warning, no spilled register,
#                                    and tensor-core instructions where they belong
#   scripts/cuda/check.sh            both
set -euo pipefail
cd "$(dirname "$0")/../.."

# Use a separate target directory, because in a later real build Candle's build script would mistake the stand-in's empty
# kernels for finished ones. Without the Hub and the tests, there is only half as much to build.
types() {
    NVCC=$PWD/scripts/cuda/nvcc-typecheck CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=90 \
        "${CARGO:-cargo}" clippy --release --workspace --no-default-features --features cuda,x86-v4 \
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
    folder=$(mktemp -d) # not local: it is there when the trap is
    trap 'rm -rf "$folder"' EXIT
    for capability in 80 90; do
        for source in crates/kernels/cuda/*.cu; do
            local kernel
            kernel=$(basename "$source" .cu)
            "$CUDA_HOME/bin/nvcc" -std=c++17 -O3 --cubin -arch="sm_$capability" -Werror all-warnings -Xptxas -v \
                "$source" -o "$folder/$kernel.cubin" 2>"$folder/log" ||
                { cat "$folder/log" >&2; exit 1; }
            # The tables for CI's log: registers and spills of each kernel.
            awk -v capability="$capability" '
                /Compiling entry function/ { split($0, name, "\x27") }
                /bytes spill stores/ { spills = $5 + $9 }
                /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); printf "sm_%s %-28s %3d registers, %d bytes spilled\n",
                    capability, name[2], substr($0, RSTART + 5, RLENGTH - 5), spills; if (spills > 0) failed = 1 }
                END { exit failed }' "$folder/log" || { echo "error: $kernel.cu spills registers on sm_$capability" >&2; exit 1; }
            local products local_memory
            "$CUDA_HOME/bin/nvdisasm" "$folder/$kernel.cubin" >"$folder/code"
            products=$(grep -cE '\bHMMA\.' "$folder/code" || true)
            local_memory=$(grep -cE '\b(LDL|STL)\b' "$folder/code" || true)
            echo "sm_$capability $kernel.cu: $products tensor-core instructions, $local_memory accesses to local memory"
            if [ "$local_memory" != 0 ] || { [ "$kernel" = attention ] && [ "$products" = 0 ]; }; then
                echo "error: $kernel.cu on sm_$capability must have no local memory, and attention.cu tensor-core instructions" >&2
                exit 1
            fi
        done
    done
    echo "kernels compile: $SECONDS s"
}

case ${1:-all} in
    types) types ;;
    kernels) kernels ;;
    all) types; SECONDS=0; kernels ;;
    *) echo "usage: scripts/cuda/check.sh [types|kernels]" >&2; exit 2 ;;
esac
