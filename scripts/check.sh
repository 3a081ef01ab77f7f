#!/usr/bin/env bash
# The one gate: format, circles, lints, tests, tools, docs, packages, memory, licenses. CI runs it; run it before you commit.
#
# Everything uses the release profile, so that Candle compiles only once and the README's two commands
# and this script share the result. CARGO may name another cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

TIMEFORMAT='took %0R s, %0U s of processor time'
step() { printf '\n== %d:%02d  %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; time "$@"; }

step "$cargo" fmt --all --check
step "$cargo" fmt --manifest-path fuzz/Cargo.toml --check
step "$cargo" fmt --manifest-path scripts/outside/Cargo.toml --check
step "$cargo" fmt --manifest-path examples/Cargo.toml --check
step scripts/check_circles.py
step scripts/check_paths.py
step "$cargo" clippy --release --workspace --all-targets -- -D warnings
# The model for the browser, which the tests of the live page run: six minutes once, then seconds.
step scripts/web.sh
step env RUSTFLAGS="-C target-feature=+simd128" "$cargo" clippy --profile web -p gpt2-web --lib \
    --target wasm32-unknown-unknown --target-dir target/web -- -D warnings
# A build without the Hub must not build any of its crates. This one has the module for the browser inside.
step "$cargo" clippy --release -p gpt2-cli --no-default-features --features x86-v4,live -- -D warnings
# GPUs that this machine does not have: check our Rust code against Candle's GPU side, and compile our own kernels.
step scripts/cuda/check.sh types
if [ -n "${CI:-}" ] || [ -x target/cuda/toolkit/bin/nvcc ]; then
    step scripts/cuda/check.sh kernels
else
    printf '\nSKIPPED nvcc on our kernels: no toolkit; run: scripts/cuda/toolkit.sh\n' >&2
fi
if [ -d "$(rustc --print target-libdir --target aarch64-apple-darwin)" ]; then
    # Leave out the command and the Python package, which need a C compiler for macOS and have no Metal code of their own.
    step "$cargo" clippy --release --workspace --exclude gpt2-cli --exclude gpt2-python --no-default-features --features metal,accelerate \
        --target aarch64-apple-darwin --target-dir target/metal-check -- -D warnings
else
    printf '\nSKIPPED Metal: no standard library for it; run: rustup target add aarch64-apple-darwin\n' >&2
fi
step "$cargo" test --release
# Some of them run the command, which the tests have built.
step scripts/check_tools.py
# The Python package against the same command. Without its tools, the script exits with 3.
step scripts/python.sh || {
    status=$?
    [ "$status" = 3 ] && [ -z "${CI:-}" ] || exit "$status"
    printf '\nSKIPPED the Python package\n' >&2
}
# The same code on the instruction sets that this machine would not choose.
case $(uname -m) in x86_64) lower=(portable avx2) ;; *) lower=(portable) ;; esac
if grep -qs amx_bf16 /proc/cpuinfo; then lower+=(avx512); fi
for isa in "${lower[@]}"; do
    # The emulated GPU runs on no instruction set in particular.
    step env GPT2_ISA="$isa" "$cargo" test --release --lib --test kernels --test model -- --skip _emulated
done
# The libraries (not the Python package) with debug assertions and overflow checks, still optimized. Their dependencies stay as they are, and are not built again.
# The kernels, which take longest to compile, are optimized less.
checks=() ours=profile.release others='profile.release.package."*"'
for check in debug-assertions overflow-checks; do checks+=(--config "$ours.$check=true" --config "$others.$check=false"); done
checks+=(--config "$ours.package.candle-fused.opt-level=1")
step "$cargo" test --release --lib "${checks[@]}" -- --quiet
# Other machines, in emulators. Without its tools, a script exits with 3.
for other in "arm.sh kernels" "windows.sh types"; do
    step scripts/$other || {
        status=$?
        [ "$status" = 3 ] && [ -z "${CI:-}" ] || exit "$status"
        printf '\nSKIPPED scripts/%s\n' "$other" >&2
    }
done
printf '\nLEFT OUT: the rest on Arm and Windows, a quarter of an hour (scripts/arm.sh, scripts/windows.sh), and lints of examples/\n'
# The walkthrough is for reading, and no test runs it.
step "$cargo" run --release --quiet --example walkthrough >/dev/null
RUSTDOCFLAGS="-D warnings" step "$cargo" doc --release --no-deps --workspace
# Models of candle-transformers on our layers, and their own dependencies: four minutes once, then seconds.
examples=(--release --locked --manifest-path examples/Cargo.toml --target-dir target/examples)
step "$cargo" test "${examples[@]}" --quiet
step "$cargo" run "${examples[@]}" --quiet --bin models -- --tiny --rounds 1
step "$cargo" run "${examples[@]}" --quiet --bin gpt_oss
# Build the libraries without optimization, since they only run a small program: three minutes once, then seconds.
step scripts/check_packages.sh

if command -v valgrind >/dev/null; then
    step scripts/check_memory.sh
elif [ -n "${CI:-}" ]; then
    echo "error: valgrind is not installed; run: apt-get install valgrind" >&2
    exit 1
else
    echo
    echo "SKIPPED memory checks: valgrind is not installed; run: apt-get install valgrind" >&2
fi

if "$cargo" deny --version >/dev/null 2>&1; then
    # This leaves out advisories, because their database is a separate download.
    step "$cargo" deny --locked check licenses bans sources
elif [ -n "${CI:-}" ]; then
    echo "error: cargo-deny is not installed; run: cargo install --locked cargo-deny" >&2
    exit 1
else
    echo
    echo "SKIPPED licenses: cargo-deny is not installed; run: cargo install --locked cargo-deny" >&2
fi
printf '\nall checks passed after %d minutes\n' $((SECONDS / 60))
