#!/usr/bin/env bash
# A stripped `gpt2` with CUDA, on a machine without a GPU:
#
#   scripts/cuda/toolkit.sh && scripts/cuda/build.sh [--tests] [CAPABILITIES]
#
# --tests also builds the tests of the kernels, the model and training, in target/cuda/tests, for scripts/check-gpu.sh.
# CAPABILITIES are the GPUs to support, as numbers: 75 is a T4, 80 an A100, 90 an H100 or H200 (default: "80 90").
# With 75 among them the program has no bf16 on any GPU, because Candle's kernels for the lowest one have none. The program
# contains our own kernels as machine code for each. It contains Candle's once, as PTX for the lowest, which the driver
# compiles for the GPU it finds; this script checks with ptxas that this works for each capability.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
with_tests=''
[ "${1:-}" != --tests ] || { with_tests=yes; shift; }
# Always use the toolkit from toolkit.sh: the stand-ins match its libraries, and must not go into an installed one.
export CUDA_HOME=$PWD/target/cuda/toolkit
read -ra capabilities <<<"${*:-80 90}"
for capability in "${capabilities[@]}"; do
    [[ $capability =~ ^[0-9]{2,3}$ ]] && [ "$capability" -ge 75 ] ||
        { echo "error: \`$capability\` is not a compute capability from 75 on, such as 90" >&2; exit 2; }
done
lowest=$(printf '%s\n' "${capabilities[@]}" | sort -n | head -1)
[ -x "$CUDA_HOME/bin/nvcc" ] || { echo "error: no nvcc in $CUDA_HOME; run scripts/cuda/toolkit.sh first" >&2; exit 1; }

# The driver that runs on the processor has every function of the real libraries, under their names.
stubs=$CUDA_HOME/lib/stubs # one of the places where cudarc looks for libraries
scripts/cuda/driver/build.sh target/cuda/driver "$(scripts/cuda/on-cpu.sh --cudarc)"
rm -rf "$stubs"
ln -s "$PWD/target/cuda/driver/lib64" "$stubs"

# Use a separate target directory for each capability: a plain `cargo build --features cuda` would mistake the left-out
# kernels for finished ones.
target=target/cuda/sm_$lowest
export CUDA_COMPUTE_CAP=$lowest GPT2_CUDA_CAPABILITIES="${capabilities[*]}" REAL_NVCC=$CUDA_HOME/bin/nvcc NVCC=$PWD/scripts/cuda/nvcc-float PATH=$CUDA_HOME/bin:$PATH
SECONDS=0
"${CARGO:-cargo}" build --release --locked -p gpt2-cli --features cuda --target-dir "$target"
took=$SECONDS

rm -rf target/cuda/tests # those of another build
if [ -n "$with_tests" ]; then
    mkdir target/cuda/tests
    # With the command, so that the features of what they share are the same.
    "${CARGO:-cargo}" test --no-run --release --locked -p gpt2-cli -p candle-fused -p gpt2-model -p gpt2-train --features cuda \
        --target-dir "$target" --test kernels --test model --test train --message-format json-render-diagnostics >target/cuda/tests.json
    for name in kernels model train; do
        built=$(grep -oP "\"executable\":\"\K[^\"]+/$name-[0-9a-f]+(?=\")" target/cuda/tests.json) ||
            { echo "error: cargo built no test program $name" >&2; exit 1; }
        strip -o "target/cuda/tests/$name" "$built"
    done
fi

program=target/cuda/gpt2
strip -o "$program" "$target/release/gpt2"
echo
echo "$program: $(stat -c %s "$program") bytes, built in $took s"

# List the contents: Candle's PTX is text in the program, and our kernels are there as build.rs compiled them.
echo "Candle's kernels: $(grep -aoE '^\.target sm_[0-9]+[af]?' "$program" | sort | uniq -c | awk '{print $1 " modules of PTX for " $3}' | paste -sd,)"
newest=$(ls -td "$target"/release/build/candle-fused-*/out | head -1)
echo "our kernels: $(cd "$newest" && stat -c '%n (%s bytes)' ./*.fatbin | sed 's|^\./||' | paste -sd' '), machine code for ${capabilities[*]}, PTX for $lowest"
for ptx in "$target"/release/build/candle-kernels-*/out/*.ptx; do
    for capability in "${capabilities[@]}"; do
        "$CUDA_HOME/bin/ptxas" -arch="sm_$capability" -O0 -o /dev/null "$ptx" ||
            { echo "error: ptxas cannot compile $(basename "$ptx") for sm_$capability" >&2; exit 1; }
    done
done
echo "ptxas compiles each of them for: ${capabilities[*]/#/sm_}"

# List the libraries it needs: the C library's symbols have a version, and all others must be CUDA's.
echo "libraries: $(readelf -dW "$program" | grep -oP 'NEEDED.*\[\K[^]]+' | paste -sd' ')"
echo "C library: $(readelf -VW "$program" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -1) or later"
foreign=$(comm -23 <(nm -D --undefined-only "$program" | awk '$1 == "U" && $2 !~ /@(GLIBC|GCC)_/ {sub(/@.*/, "", $2); print $2}' | sort -u) \
    <(nm -D --defined-only "$stubs"/lib*.so "$CUDA_HOME/lib/libcudart.so" | awk 'NF == 3 {sub(/@.*/, "", $3); print $3}' | sort -u))
if [ -n "$foreign" ]; then
    echo "error: symbols that neither the driver nor CUDA's libraries have:" >&2
    echo "$foreign" >&2
    exit 1
fi
echo "undefined symbols: the driver's, CUDA's libraries' and the C library's, no others"
