#!/usr/bin/env bash
# Runs the tests of the kernels with `unsafe` under valgrind: an index outside its buffer, or a number that was
# never written, ends them with an error. Takes five minutes.
#
# valgrind does not know AVX-512, so this runs the AVX2 and the portable code. With a nightly toolchain, the address
# sanitizer can run whatever the processor has:
#   RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/asan ASAN_OPTIONS=detect_leaks=0 PROPTEST_CASES=20 \
#     cargo +nightly test --release --workspace --target x86_64-unknown-linux-gnu -- fused linear attention
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || { echo "error: no valgrind; run: apt-get install valgrind" >&2; exit 3; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${CARGO:-cargo}" test --release --no-run 2>"$log" || { cat "$log" >&2; exit 1; }
binaries=$(sed -n 's/.*(\(.*\/\(candle_fused\|kernels\)-[0-9a-f]*\))$/\1/p' "$log")
if [ "$(wc -w <<<"$binaries")" != 2 ]; then
    echo "error: expected cargo to name the kernels' unit tests and tests/kernels; found: $binaries" >&2
    exit 1
fi
# valgrind takes 50 instructions at a time, which are too many for it if all multiply and add eight numbers. The names of instruction
# sets run in programs of their own, which valgrind does not look at, and which find AVX-512 where it finds none. Valgrind uses one
# core for each of the two binaries.
running=()
for binary in $binaries; do
    PROPTEST_CASES=3 valgrind -q --vex-guest-max-insns=25 --error-exitcode=9 "$binary" --test-threads 1 --quiet \
        --skip a_name_in_the_environment &
    running+=($!)
done
trap 'rm -f "$log"; kill "${running[@]}" 2>/dev/null || true' EXIT
for process in "${running[@]}"; do wait "$process"; done
