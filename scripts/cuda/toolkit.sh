#!/usr/bin/env bash
# Makes a CUDA home without an installer, from NVIDIA's own wheels on PyPI, about 110 MB, in the layout that nvcc and
# cudarc expect. It has no driver and no cuBLAS: together with driver/build.sh it is enough to build, but not to compute.
#
#   scripts/cuda/toolkit.sh [DIR]      (default: target/cuda/toolkit)
#
# A second run with the same pins does nothing.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-$root/target/cuda/toolkit}

# 13.0 writes PTX 9.0, which drivers from 580 on can read; a later toolkit would need a later driver.
wheels=(
    nvidia-cuda-nvcc==13.0.88    # the driver program, cudafe++, ptxas
    nvidia-nvvm==13.0.88         # the compiler proper and libdevice
    nvidia-cuda-crt==13.0.88     # headers that nvcc includes by itself
    nvidia-cuda-runtime==13.0.96 # libcudart and cuda_fp16.h and its like
    nvidia-cuda-cccl==13.0.85    # libcu++'s headers
    nvidia-cuda-nvdisasm==13.2.51 # machine code as text; there is no 13.0
)

pins=$(printf '%s\n' "${wheels[@]}")
if [ "$(cat "$dir/pins.txt" 2>/dev/null)" = "$pins" ]; then
    echo "CUDA home: $dir (already there)"
    exit 0
fi

if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "error: only Linux on x86_64 is covered here; this is $(uname -sm)" >&2
    exit 1
fi
python=${PYTHON:-python3}
if ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "error: no pip: \`$python -m pip\` does not run; run: apt-get install python3-pip, or set PYTHON" >&2
    exit 1
fi

# Work beside the final folder, so that it holds either a complete toolkit or nothing.
mkdir -p "$(dirname "$dir")"
partial=$(mktemp -d "$dir.partial.XXXXXX")
trap 'rm -rf "$partial"' EXIT
if ! "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
    --only-binary :all: --no-deps --target "$partial" "${wheels[@]}"; then
    echo "error: pip could not fetch NVIDIA's wheels; its own message is above. They come from PyPI" >&2
    echo "(https://pypi.org or the index of pip's configuration), so this needs a network." >&2
    exit 1
fi

home=$partial/nvidia/cu13
ln -s lib "$home/lib64"                            # where nvcc.profile looks
ln -s libcudart.so.13 "$home/lib/libcudart.so"     # where the linker looks
"$home/bin/nvcc" --version >/dev/null || { echo "error: $home/bin/nvcc does not run" >&2; exit 1; }
printf '%s\n' "$pins" >"$home/pins.txt"
rm -rf "$dir"
mv "$home" "$dir"
echo "CUDA home: $dir ($(du -sh "$dir" | cut -f1))"
