#!/usr/bin/env bash
# Builds for Arm and runs tests in QEMU, which says nothing about speed: those of the kernels, the model and the loader, and those
# of the command that write results. The build takes six minutes once, the tests four. With `kernels`, those alone: half of
# that. With `all`, also the kernels' on more processors, all of the command's that can run there, and `gpt2 verify` on each
# processor: more than two hours.
#
#   apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross
#   scripts/arm.sh [kernels|all]
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
    '' | kernels | all) ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
    *) echo "error: $1: expected kernels, all, or nothing" >&2; exit 2 ;;
esac
for tool in qemu-aarch64-static aarch64-linux-gnu-gcc; do
    command -v $tool >/dev/null ||
        { echo "error: no $tool; run: apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2; exit 3; }
done
cargo=${CARGO:-cargo}
target=aarch64-unknown-linux-gnu
unset RUST_BACKTRACE # with it, the command starts itself again, which takes more than QEMU

[ -d "$(rustc --print target-libdir --target $target)" ] || rustup target add $target
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc QEMU_LD_PREFIX=/usr/aarch64-linux-gnu PROPTEST_CASES=4
export GPT2_TEST_RUNNER=qemu-aarch64-static
log=$(mktemp) ran=$(mktemp)
trap 'rm -f "$log" "$ran"' EXIT
tests=(-p candle-fused --lib --test kernels)
[ "${1:-}" = kernels ] || tests+=(-p gpt2-model -p gpt2-loader -p gpt2-cli --test model --test loader --test cli)
# Only the kernels are optimized in full: the rest compiles sooner.
CARGO_PROFILE_RELEASE_OPT_LEVEL=1 "$cargo" test --release --config profile.release.package.candle-fused.opt-level=3 \
    --target $target --target-dir target/arm "${tests[@]}" --no-run 2>"$log" || { cat "$log" >&2; exit 1; }

# Runs a package's tests on a processor.
on() {
    local processor=$1 package=$2 name=$3 binary
    shift 3
    binary=$(sed -n "s/.*(\(.*\/$name-[0-9a-f]*\))$/\1/p" "$log")
    [ -n "$binary" ] || { echo "error: cargo named no tests $name" >&2; exit 1; }
    printf '\n-- %s on %s\n' "$name" "$processor"
    (cd "crates/$package" && QEMU_CPU=$processor qemu-aarch64-static "$OLDPWD/$binary" --quiet "$@") | tee "$ran"
    ! grep -q '^running 0 tests' "$ran" || { echo "error: no test was left to run" >&2; exit 1; }
}

# Left out: tests that start a program of their own, which would need QEMU, too; those that ask Linux how much memory they take, and
# are told how much QEMU takes; one that takes more than six minutes there.
kernels=(--skip a_name_in_the_environment --skip the_bits_depend_neither)
# Candle's own quantized products use dotprod without asking whether it is there.
candles=(--skip a_ggml_weight_is_multiplied --skip every_format_of_a_gguf_file)
chosen=cpu::isa::tests::products_use_what_the_emulated_processor_has
processors=(cortex-a72 a64fx neoverse-n1 max)
for processor in "${processors[@]}"; do on "$processor" kernels candle_fused --ignored --exact $chosen; done
on neoverse-n1 kernels candle_fused quantized::
on cortex-a72 kernels candle_fused "${kernels[@]}" "${candles[@]}"
on max kernels candle_fused "${kernels[@]}"
on max kernels kernels --skip asking_for_rows_takes_memory
[ "${1:-}" != kernels ] || exit 0
on max model gpt2_model
on max model model
on max loader gpt2_loader --skip a_caught_panic_prints_nothing
on max loader loader
on max cli cli attention:: forward:: generate:: --skip many_prompts --skip a_draft_gives
[ "${1:-}" = all ] || exit 0

on a64fx kernels candle_fused "${kernels[@]}" "${candles[@]}"
on neoverse-n1 kernels candle_fused "${kernels[@]}"
for processor in "${processors[@]}"; do
    printf '\n-- gpt2 verify on %s\n' "$processor"
    QEMU_CPU=$processor qemu-aarch64-static target/arm/$target/release/gpt2 verify
done
on max cli cli
