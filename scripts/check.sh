#!/usr/bin/env bash
# The one gate: format, import cycles, lints, tests, tools, docs, packages. CI runs it; run it before you commit.
#
#   scripts/check.sh                    the gate
#   scripts/check.sh quick [CRATE..]    format, import cycles, lints, and the tests of these crates (kernels, model, cli ..), or of those
#                                       that differ from BASE (default: HEAD), and of Python where the command or the engine does:
#                                       a few minutes once the gate has run
#   scripts/check.sh all                the gate, and what it leaves out because it is slow and seldom breaks: every night
#
# Everything uses the release profile and one target folder, so that Candle compiles once, and the README's two commands and
# this script share the result. CARGO may name another cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
only=${1:-gate}

TIMEFORMAT='took %0R s, %0U s of processor time'
step() { printf '\n== %d:%02d  %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; time "$@"; }
# Starts a step in the time that those after it leave idle; `joined` waits for it and prints what it printed.
beside=
beside() {
    printf '\n== %d:%02d  beside the next steps: %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
    printed=$(mktemp)
    set -m # a process group of its own, so that it can be ended whole
    (time nice -n 19 "$@") >"$printed" 2>&1 &
    set +m
    beside=$!
}
joined() {
    local status=0
    [ -n "$beside" ] || return 0
    wait "$beside" || status=$?
    beside=
    printf '\n== %d:%02d  what ran beside\n' $((SECONDS / 60)) $((SECONDS % 60))
    cat "$printed"
    rm -f "$printed"
    return "$status"
}
# Ends what runs beside when a step has failed, and shows how far it came.
left() {
    [ -n "$beside" ] || return 0
    kill -- -"$beside" 2>/dev/null || true
    printf '\n== what ran beside, ended here\n'
    tail -n 20 "$printed"
    rm -f "$printed"
}
trap left EXIT
# Without its tools, a script exits with 3: an error under CI, elsewhere a line.
tools() {
    step "$@" || {
        local status=$?
        [ "$status" = 3 ] && [ -z "${CI:-}" ] || exit "$status"
        printf '\nSKIPPED %s\n' "$*" >&2
    }
}

formats_and_names() {
    step "$cargo" fmt --all --check
    step "$cargo" fmt --manifest-path fuzz/Cargo.toml --check
    step "$cargo" fmt --manifest-path scripts/outside/Cargo.toml --check
    step scripts/check_circles.py
    step scripts/check_paths.py
}

# The folders of crates/ whose sources or tests differ from BASE, and the command's where a page does.
changed() {
    local files
    files=$(git diff --name-only "${BASE:-HEAD}" && git ls-files --others --exclude-standard) || return
    {
        sed -nE 's,^crates/([^/]+)/.*,\1,p; s,^tests/([a-z]+)/.*,\1,p; s,^(docs/.*\.md|README\.md)$,cli,p' <<<"$files"
        # Python's methods are held against the command and the studies.
        sed -nE 's,^(crates|tests)/(cli|engine)/.*,python,p' <<<"$files"
    } | sort -u | while read -r name; do [ ! -d "crates/$name" ] || echo "$name"; done
}

# The command's tests that take half of the time: all examples, killed and stopped runs, several processes, every path of `verify`.
SLOW=(examples:: signals:: parallel:: hub::faults:: score_resume:: every_path_is_checked verify_passes)

quick() {
    local crates=("$@") selected=(-p gpt2-cli) targets=() folder package found skipped=()
    if [ $# = 0 ]; then
        found=$(changed) # a wrong BASE ends this
        mapfile -t crates < <(printf '%s' "${found:+$found$'\n'}")
    fi
    formats_and_names
    step "$cargo" clippy --release --workspace --all-targets -- -D warnings
    for folder in "${crates[@]}"; do
        [ -d "crates/$folder" ] || { echo "error: no crates/$folder; expected a folder of crates/, such as kernels" >&2; exit 2; }
        [ "$folder" != python ] || { tools scripts/python.sh; continue; }
        [ "$folder" != cli ] || skipped=("${SLOW[@]/#/--skip=}")
        package=$(sed -n 's/^name = "\(.*\)"$/\1/p' "crates/$folder/Cargo.toml" | head -n 1)
        selected+=(-p "$package")
        [ ! -f "crates/$folder/src/lib.rs" ] || targets+=(--lib)
        [ "$folder" = cli ] || [ ! -f "tests/$folder/main.rs" ] || targets+=(--test "$folder")
        [ "$folder" != cli ] || targets+=(--bin gpt2)
    done
    # With the command, whose features are those of the gate: otherwise Candle would be compiled again.
    [ ${#targets[@]} = 0 ] || step "$cargo" test --release "${selected[@]}" "${targets[@]}"
    [ ${#skipped[@]} = 0 ] || {
        export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
        step "$cargo" test --release -p gpt2-cli --test cli -- "${skipped[@]}"
        printf '\nLEFT OUT, in the gate: the tests of the command named %s\n' "${SLOW[*]}"
    }
    printf '\nquick checks of %s passed after %d minutes\n' "${crates[*]:-nothing}" $((SECONDS / 60))
}

# Code for a GPU or a browser, which this machine may not have: types and lints.
other_targets() {
    # Our Rust code against Candle's GPU sides, and our own kernels through nvcc. Without the Hub, whose crates such a build must not
    # need.
    step scripts/cuda/check.sh types
    if [ -n "${CI:-}" ] || [ -x target/cuda/toolkit/bin/nvcc ]; then
        step scripts/cuda/check.sh kernels
    else
        printf '\nSKIPPED nvcc on our kernels: no toolkit; run: scripts/cuda/toolkit.sh\n' >&2
    fi
    if [ -d "$(rustc --print target-libdir --target aarch64-apple-darwin)" ]; then
        # Only the kernels have code for Metal and for Arm; other crates pass the feature on.
        local metal=(-p candle-fused)
        # Leave out the command and the Python package, which need a C compiler for macOS.
        [ "$only" != all ] || metal=(--workspace --exclude gpt2-cli --exclude gpt2-python --exclude models-on-candle-fused)
        step "$cargo" clippy --release "${metal[@]}" --no-default-features --features metal,accelerate \
            --target aarch64-apple-darwin --target-dir target/metal-check -- -D warnings
    else
        printf '\nSKIPPED Metal: no standard library for it; run: rustup target add aarch64-apple-darwin\n' >&2
    fi
}

tests() {
    # Many tests wait for a browser or another process, so more of them run at a time than there are cores.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
    step "$cargo" test --release --no-run
    # The tests of kernels, model and training on CUDA, too, with a driver that runs launches on the processor. It has a target
    # folder of its own, and takes from this one what knows nothing of CUDA.
    if [ "$(uname -sm)" = 'Linux x86_64' ] && command -v g++ >/dev/null; then
        beside scripts/cuda/check.sh on-cpu
    elif [ -n "${CI:-}" ]; then
        echo 'error: the CUDA driver on the processor needs Linux on x86_64 and g++' >&2
        exit 1
    else
        printf '\nSKIPPED CUDA on the processor: it needs Linux on x86_64 and g++; run: apt-get install g++\n' >&2
    fi
    step "$cargo" test --release
    # Some of them run the command, which the tests have built.
    step scripts/check_tools.py
    joined
    # The Python package against the same command.
    tools scripts/python.sh
    # The same code on the instruction sets that this machine would not choose.
    local lower=(portable) isa
    [ "$(uname -m)" != x86_64 ] || lower+=(avx2)
    if grep -qs amx_bf16 /proc/cpuinfo; then lower+=(avx512); fi
    for isa in "${lower[@]}"; do
        step env GPT2_ISA="$isa" "$cargo" test --release --lib --test kernels --test model
    done
    # The walkthrough is for reading, and no test runs it.
    step "$cargo" run --release --quiet --example walkthrough >/dev/null
    # Models of candle-transformers on our layers, with the features that are built already.
    step "$cargo" test --release -p gpt2-cli -p models-on-candle-fused --lib --bins --test candle_nn --quiet
    # Where two steps turn on different features of a dependency, Candle and all that is above it is compiled twice. Only a clean
    # checkout, as under CI, can tell.
    local candle=(target/release/deps/libcandle_core-*.rlib)
    [ -z "${CI:-}" ] || [ ${#candle[@]} = 1 ] || { echo "error: Candle was compiled ${#candle[@]} times: the features of two steps differ" >&2; exit 1; }
    step target/release/models --tiny --rounds 1
    step target/release/gpt_oss
}

pages_and_packages() {
    RUSTDOCFLAGS="-D warnings" step "$cargo" doc --release --no-deps --workspace
    if [ "$only" = all ]; then step scripts/check_packages.sh; else step scripts/check_packages.sh types; fi
}

# Slow, and seldom broken.
rest() {
    step "$cargo" clippy --release -p gpt2-cli --no-default-features --features x86-v4 -- -D warnings
    step scripts/cuda/check.sh all-types
    # The module for the browser from these sources: it answers what the one in crates/page-module answers.
    step scripts/web.sh target/web/module
    step env PAGE_MODULE=target/web/module "$cargo" test --release -p gpt2-cli -p gpt2-web --test web the_module
    # Lints of what only a browser compiles.
    step env RUSTFLAGS="-C target-feature=+simd128" "$cargo" clippy --profile web -p gpt2-web --lib \
        --target wasm32-unknown-unknown --target-dir target/web -- -D warnings
    # Other machines, in emulators.
    tools scripts/arm.sh
    tools scripts/windows.sh
    tools scripts/check_memory.sh
    # Advisories are left out, because their database is a separate download.
    step "$cargo" deny --locked check licenses bans sources
    # The kernels with debug assertions and overflow checks, which the other crates have anyway. They are optimized less, since
    # they take longest to compile, and their dependencies are not built again. Last, since what is above the kernels is.
    local checks=() ours=profile.release.package.candle-fused
    for check in debug-assertions=true overflow-checks=true opt-level=1; do checks+=(--config "$ours.$check"); done
    step "$cargo" test --release -p gpt2-cli -p candle-fused --lib "${checks[@]}" -- --quiet
}

case $only in
    quick) quick "${@:2}"; exit ;;
    gate | all) ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
    *) echo "error: $only: expected quick, all, or nothing" >&2; exit 2 ;;
esac
formats_and_names
step "$cargo" clippy --release --workspace --all-targets -- -D warnings
other_targets
tests
pages_and_packages
if [ "$only" = all ]; then
    rest
else
    cat <<'END'

LEFT OUT, every night and before a release (scripts/check.sh all): Arm in QEMU and Windows in Wine (scripts/arm.sh,
scripts/windows.sh), valgrind on the kernels (scripts/check_memory.sh), licenses (cargo deny), the browser's module from these
sources (scripts/web.sh; the one in crates/page-module was tested) and lints of its code, Metal's side of the crates that have no
code of their own for it, the kernels' own tests with debug assertions and overflow checks, lints of a build without the Hub and without
CUDA, and the packages' build and run with the oldest Rust. In no gate: all cases of the tests on the CUDA driver
that runs on the processor, every command on it beside the CPU, and `gpt2 verify` (scripts/cuda/check.sh on-cpu-all).
END
fi
printf '\nall checks passed after %d minutes\n' $((SECONDS / 60))
