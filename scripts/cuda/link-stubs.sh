#!/usr/bin/env bash
# Makes empty stand-ins for the driver and CUDA's libraries, so that a program with the feature `cuda` links and
# starts without the real ones. Each has the real library's SONAME: on a GPU machine the loader finds the real one.
#
#   scripts/cuda/link-stubs.sh DIR
#
# The names come from cudarc's own bindings, in the version in Cargo.lock. Every function returns 34, which
# is CUDA_ERROR_STUB_LIBRARY in the driver: a program that calls one gets an error, never a wrong result.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
out=${1:?usage: link-stubs.sh DIR}
cd "$(dirname "$0")/../.."

manifest=$("${CARGO:-cargo}" metadata --format-version 1 --locked --features cuda |
    grep -oE '"manifest_path":"[^"]*/cudarc-[0-9.]+/Cargo.toml"' | cut -d'"' -f4)
[ -n "$manifest" ] || { echo "error: cudarc is not among the dependencies with the feature cuda" >&2; exit 1; }
bindings=$(dirname "$manifest")/src
mkdir -p "$out"

# stub MODULE LIBRARY VERSION: cudarc's module, lib<LIBRARY>.so with the SONAME of CUDA 13.
stub() {
    local names
    names=$(grep -ohE 'pub unsafe fn [A-Za-z_0-9]+\(' "$bindings/$1/sys/mod.rs" | grep -oE '[A-Za-z_0-9]+\($' |
        tr -d '(' | sort -u)
    [ -n "$names" ] || { echo "error: no function names in $bindings/$1/sys/mod.rs" >&2; exit 1; }
    sed 's/.*/int &(void) { return 34; }/' <<<"$names" |
        "${CC:-cc}" -x c -shared -fPIC -O1 -w -fno-builtin -nostdlib "-Wl,-soname,lib$2.so.$3" -o "$out/lib$2.so.$3" -
    ln -sf "lib$2.so.$3" "$out/lib$2.so"
    echo "lib$2.so.$3: $(wc -l <<<"$names") functions"
}
stub driver cuda 1
stub cublas cublas 13
stub cublaslt cublasLt 13
stub curand curand 10
stub nvrtc nvrtc 13
