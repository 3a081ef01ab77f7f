#!/usr/bin/env bash
# Fuzzes the code that reads other people's input: config.json, safetensors, GGUF, indexes, pickles, tokenizers, prompts,
# interventions.
#
#   scripts/fuzz.sh [MINUTES [TARGET...]]
#
# The targets share MINUTES (80) evenly; JOBS (2) of them run at a time. At the end, the script prints a line per
# target; the exit status is 1 if any input broke a promise (a panic, more than 10 seconds, more than 1 GiB).
#
# fuzz/corpus/    the seeds; fuzz/make_corpus.py writes them, and the dictionaries
# fuzz/found/     inputs that once broke a promise: move a reproducer here once the bug is fixed
# fuzz/work/      inputs from earlier runs that cover new code; not in git, the next run starts with them
# fuzz/artifacts/ reproducers; not in git
#
# The gate runs fuzz/corpus and fuzz/found as an ordinary test (tests/loader/fuzz_corpus.rs). A new target is a function
# in fuzz/src/targets, its name in TARGETS there, and seeds.
#
# Needs cargo-fuzz, a C++ compiler and a nightly toolchain (FUZZ_TOOLCHAIN overrides the pinned one).
# It uses no sanitizer: the code is safe Rust, and runs several times as fast without.
set -euo pipefail
cd "$(dirname "$0")/.."

pinned=nightly-2026-05-20 pinned_commit=2026-05-19
mapfile -t all < <(sed -n 's/^    ("\([a-z_]*\)", .*/\1/p' fuzz/src/targets/mod.rs) # the names in TARGETS
if [ "${1:-}" = --list ]; then
    # A target without seeds or words of its format finds little.
    for target in "${all[@]}"; do
        [ -s "fuzz/dict/$target.dict" ] && [ -n "$(ls "fuzz/corpus/$target")" ] ||
            { echo "error: $target has no dictionary in fuzz/dict or no seeds in fuzz/corpus; run fuzz/make_corpus.py" >&2; exit 1; }
    done
    [ ${#all[@]} -gt 0 ] || { echo "error: no target found in fuzz/src/targets/mod.rs" >&2; exit 1; }
    printf '%s\n' "${all[@]}"
    exit
fi
minutes=${1:-80}
shift || true
targets=("$@")
[ $# -gt 0 ] || targets=("${all[@]}")
jobs=${JOBS:-2}

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
[[ $minutes =~ ^[1-9][0-9]*$ ]] || fail "MINUTES is '$minutes', expected a whole number of at least 1"
[[ $jobs =~ ^[1-9][0-9]*$ ]] || fail "JOBS is '$jobs', expected a whole number of at least 1"
for target in "${targets[@]}"; do
    [[ " ${all[*]} " == *" $target "* ]] || fail "no target $target; there are: ${all[*]}"
done
cargo fuzz --version >/dev/null 2>&1 || fail "cargo-fuzz is not installed; run: cargo install cargo-fuzz --locked"
command -v c++ >/dev/null || fail "no C++ compiler, which libFuzzer needs; run: apt-get install g++"

toolchain=${FUZZ_TOOLCHAIN:-}
if [ -z "$toolchain" ]; then
    if rustc "+$pinned" --version >/dev/null 2>&1; then
        toolchain=$pinned
    elif rustc +nightly --version 2>/dev/null | grep -q " $pinned_commit)"; then
        toolchain=nightly # the same, under its other name
    else
        fail "toolchain $pinned is not installed; run: rustup toolchain install $pinned --profile minimal," \
            "or name another nightly in FUZZ_TOOLCHAIN"
    fi
fi

# Use a separate target folder, because everything is compiled with coverage counters.
env -u CARGO_TARGET_DIR RUSTFLAGS=-Cdebuginfo=0 cargo "+$toolchain" fuzz build --sanitizer none fuzz
host=$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')
binary=fuzz/target/$host/release/fuzz

memory=/dev/shm
[ -d "$memory" ] && [ -w "$memory" ] || memory=${TMPDIR:-/tmp}
scratch=$(mktemp -d "$memory/gpt2-fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
seconds=$((minutes * 60 * jobs / ${#targets[@]}))
[ "$jobs" -le "${#targets[@]}" ] || seconds=$((minutes * 60))
[ "$seconds" -ge 1 ] || seconds=1

fuzz() {
    local target=$1 log=$scratch/$1.log status=0 seeds=()
    mkdir -p "fuzz/work/$target" "fuzz/artifacts/$target" "$scratch/$target"
    for folder in "fuzz/corpus/$target" "fuzz/found/$target"; do
        [ ! -d "$folder" ] || seeds+=("$folder")
    done
    # The limit on addresses is far above the limit on memory; it catches code that trusts a length in a file.
    (
        ulimit -v 4194304
        FUZZ_TARGET=$target TMPDIR=$scratch/$target RAYON_NUM_THREADS=1 exec "$binary" "fuzz/work/$target" "${seeds[@]}" \
            "-dict=fuzz/dict/$target.dict" "-artifact_prefix=fuzz/artifacts/$target/" -max_len=65536 -timeout=10 \
            -rss_limit_mb=1024 -max_total_time="$seconds" -print_final_stats=1
    ) >"$log" 2>&1 || status=$?
    local runs new cov
    stat() { sed -n "s/^stat::$1: *//p" "$log"; }
    cov=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -1 || true)
    runs=$(stat number_of_executed_units)
    new=$(stat new_units_added)
    printf '%-15s %12s %-22s %8s  %s\n' "$target" "${runs:-?}" "${cov:-?}" "${new:-?}" \
        "$([ "$status" = 0 ] && echo none || echo FOUND)" >"$scratch/$target.line"
    if [ "$status" != 0 ]; then
        cp "$log" "fuzz/artifacts/$target/log"
        {
            printf '\n%s: ' "$target"
            grep -v '^#\|^INFO\|^\(Dictionary\|stat::\)' "$log" | grep -m1 -A1 'panicked at\|libFuzzer:\|memory alloc' || true
            printf 'the whole log: fuzz/artifacts/%s/log\nrun it again: FUZZ_TARGET=%s %s %s\n' "$target" "$target" "$binary" \
                "$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)"
        } >"$scratch/$target.found"
    fi
}

printf 'fuzzing %s targets, %s at a time, %s seconds each\n' "${#targets[@]}" "$jobs" "$seconds" >&2
for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    fuzz "$target" &
done
wait

printf '%-15s %12s %-22s %8s  %s\n' target runs coverage new broken
found=0
for target in "${targets[@]}"; do
    cat "$scratch/$target.line"
    [ ! -f "$scratch/$target.found" ] || found=1
done
cat "$scratch"/*.found 2>/dev/null || true
exit "$found"
