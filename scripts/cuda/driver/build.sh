#!/usr/bin/env bash
# The driver's libraries, in HOME/lib64: libcuda, cuBLAS, cuBLASLt and cuRAND with the names and versions of CUDA 13.
#
#   scripts/cuda/driver/build.sh HOME [CUDARC]
#
# CUDARC is the folder of the sources of the crate cudarc, which declare what the real libraries have. Each function that is
# not here becomes one that ends the program and names itself. Without CUDARC, only libcuda is built, without them. A second
# run with the same CUDARC does nothing if no source is newer.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
home=${1:?usage: build.sh HOME [CUDARC]}
cudarc=${2:-}
lib=$home/lib64
mkdir -p "$lib"
[ -z "$cudarc" ] || [ -f "$cudarc/src/driver/sys/mod.rs" ] ||
    { echo "error: $cudarc has no src/driver/sys/mod.rs; expected the sources of cudarc" >&2; exit 1; }

if [ -f "$lib/built" ] && [ "$(cat "$lib/built")" = "$cudarc" ] && [ -z "$(find "$here/src" "$here/include" "$here/build.sh" -newer "$lib/built" -print -quit)" ]; then exit; fi
read -ra cxx <<<"${CUDA_ON_CPU_CXX:-g++}"
options=(-std=c++17 -O3 -march=native -fPIC -pthread -fno-strict-aliasing -mno-red-zone -Wall -Wextra -Wno-missing-field-initializers -Wno-parentheses)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

core=(report memory streams graphs threads blocks modules driver transfers gemm)
[ -z "$cudarc" ] && parts=("${core[@]}") || parts=("${core[@]}" cublas cublaslt curand)
printf '%s\n' "${parts[@]}" |
    xargs -P "$(nproc)" -I{} "${cxx[@]}" "${options[@]}" -c "$here/src/{}.cpp" -o "$work/{}.o"

# library NAME VERSION MODULE OBJECT..: what cudarc's MODULE declares and no object has, ends the program.
library() {
    local name=$1 version=$2 module=$3 objects=("${@:4}")
    objects=("${objects[@]/%/.o}")
    { echo '#include <stdlib.h>'; echo 'void cuda_on_cpu_missing(const char *);'; } >"$work/missing.c"
    [ -z "$cudarc" ] || comm -23 <(grep -ohE 'pub unsafe fn [A-Za-z_0-9]+\(' "$cudarc/src/$module/sys/mod.rs" | grep -oE '[A-Za-z_0-9]+\($' | tr -d '(' | sort -u) \
        <([ ${#objects[@]} = 0 ] || nm --defined-only "${objects[@]}" | awk 'NF == 3 {print $3}' | sort -u) |
        sed 's/.*/int &(void) { cuda_on_cpu_missing("&"); return 1; }/' >>"$work/missing.c"
    cc -c -fPIC -O1 -w "$work/missing.c" -o "$work/missing.o"
    local with=()
    [ "$name" = cuda ] || with=("$lib/libcuda.so.1")
    "${cxx[@]}" -shared -pthread "-Wl,-soname,lib$name.so.$version" -Wl,-Bsymbolic-functions -Wl,-rpath,'$ORIGIN' "${objects[@]}" "$work/missing.o" "${with[@]}" \
        -ldl -o "$lib/lib$name.so.$version"
    ln -sf "lib$name.so.$version" "$lib/lib$name.so"
}
library cuda 1 driver "${core[@]/#/$work/}"
if [ -z "$cudarc" ]; then echo >"$lib/built"; exit; fi
library cublas 13 cublas "$work/cublas"
library cublasLt 13 cublaslt "$work/cublaslt"
library curand 10 curand "$work/curand"
library nvrtc 13 nvrtc
# Candle names it, and calls nothing of it.
echo 'void cuda_on_cpu_runtime(void) {}' | cc -x c -shared -fPIC -Wl,-soname,libcudart.so.13 -o "$lib/libcudart.so.13" -
ln -sf libcudart.so.13 "$lib/libcudart.so"
echo "$cudarc" >"$lib/built"
