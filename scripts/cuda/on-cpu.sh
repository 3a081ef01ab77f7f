#!/usr/bin/env bash
# Runs `gpt2` with the feature `cuda` on a driver whose launches run on the processor (scripts/cuda/driver), and builds what is
# missing:
#
#   scripts/cuda/on-cpu.sh [--seed N] [--report[=FILE]] [--trace FILE] [--] ARGS..
#   scripts/cuda/on-cpu.sh --build [CARGO ARGS..]      builds, and runs `cargo` with the environment for it; with CUDA_ON_CPU_LATER
#                                                      in the environment, kernels are only noted
#   scripts/cuda/on-cpu.sh --cudarc                    prints the folder of cudarc's sources, in the version of Cargo.lock
#
#   --seed N         the order of blocks, warps and streams (default: 1)
#   --report[=FILE]  at the end: launches, products, copies and syncs by name
#   --trace FILE     each operation when it is added to its stream, and when it runs
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
root=$(cd "$(dirname "$0")/../.." && pwd)
driver=$root/scripts/cuda/driver
home=$root/target/cuda-on-cpu

# The sources that declare what the libraries have.
cudarc() {
    local manifest
    manifest=$("${CARGO:-cargo}" metadata --format-version 1 --locked --features cuda --manifest-path "$root/Cargo.toml" |
        grep -oE '"manifest_path":"[^"]*/cudarc-[0-9.]+/Cargo.toml"' | cut -d'"' -f4)
    [ -n "$manifest" ] || { echo "error: cudarc is not among the dependencies with the feature cuda" >&2; exit 1; }
    dirname "$manifest"
}
if [ "${1:-}" = --cudarc ]; then cudarc; exit; fi
mkdir -p "$home/kernels"

while [ $# -gt 0 ]; do
    case $1 in
        --seed) export CUDA_ON_CPU_SEED=$2; shift 2 ;;
        --report) export CUDA_ON_CPU_REPORT=1; shift ;;
        --report=*) export CUDA_ON_CPU_REPORT=${1#*=}; shift ;;
        --trace) export CUDA_ON_CPU_TRACE=$2; shift 2 ;;
        --build) build=yes; shift; break ;;
        --) shift; break ;;
        *) break ;;
    esac
done

# Only the build's own environment differs from a build for a GPU. Kernels for 7.5 are among ours, so that the driver can be a T4.
# Candle and our crates are not optimized: they take longest to compile, and here the kernels and products take the time.
compile() {
    local less=() crate
    for crate in candle-core candle-nn candle-fused gpt2-{model,circuits,files,loader,parallel,train,view,engine,cli}; do
        less+=(--config "profile.release.package.$crate.opt-level=0")
    done
    env CUDA_ON_CPU_HOME="$home" CUDA_ON_CPU_LATER=1 NVCC="$driver/nvcc" CUDA_HOME="$home" CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=90 \
        GPT2_CUDA_CAPABILITIES="75 90" \
        LD_LIBRARY_PATH="$home/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        "${CARGO:-cargo}" "$1" --locked --release --no-default-features --features cuda,x86-v4 --manifest-path "$root/Cargo.toml" \
        --target-dir "$home/target" "${less[@]}" "${@:2}"
}

# What knows nothing of CUDA is not compiled again if a build without it is there.
if [ ! -d "$home/target/release" ] && [ -d "$root/target/release/.fingerprint" ]; then
    mkdir -p "$home/target/release/deps"
    cp -a --reflink=auto "$root"/target/release/{.fingerprint,build} "$home/target/release"
    find "$root/target/release/deps" -maxdepth 1 -type f -name "*.*" -print0 | xargs -0 cp -a --reflink=auto -t "$home/target/release/deps" # no programs
fi

ready=$home/gpt2
inputs=("$root/crates" "$root/Cargo.lock" "$root/Cargo.toml" "$driver")
if [ ! -x "$ready" ] || [ -n "${build:-}" ] || [ -n "$(find "${inputs[@]}" -newer "$ready" -type f -print -quit)" ]; then
    "${CARGO:-cargo}" fetch --locked --quiet --manifest-path "$root/Cargo.toml"
    sources=$(cudarc)
    "$driver/build.sh" "$home" "$sources" >&2
    if [ -n "${build:-}" ] && [ $# -gt 0 ]; then
        compile "$@"
        [ -n "${CUDA_ON_CPU_LATER:-}" ] || python3 "$driver/kernels.py" "$home/kernels"
        exit
    fi
    compile build --quiet -p gpt2-cli >&2
    python3 "$driver/kernels.py" "$home/kernels"
    ln -f "$home/target/release/gpt2" "$ready" 2>/dev/null || cp "$home/target/release/gpt2" "$ready"
    touch "$ready"
fi
[ -z "${build:-}" ] || exit 0
export LD_LIBRARY_PATH=$home/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$ready" "$@"
