#!/usr/bin/env bash
# Is a Metal build of `gpt2` right on this Mac, and how fast is it beside its processor?
#
#   scripts/check-metal.sh [--out DIR]      builds, holds each path to the CPU, times, and runs the model's tests on the GPU
#   scripts/check-metal.sh --dry-run        the CPU in the place of the GPU, to see whether the script runs; its times mean nothing
#
# DIR (target/metal) gets:
#   verify.json      each path on Metal beside plain f32 on the CPU (gpt2 verify)
#   times.md         milliseconds (of decode, for 32 tokens) on the CPU and on Metal, by Candle's operations and by its `sdpa`: GPT-2 small's shape
#   tests.log        the model's tests with GPT2_TEST_DEVICE=metal
# It exits with 1 if a path, a row or a test fails; what follows it is run all the same.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

out=$root/target/metal rows=('core 128' 'core 1024' 'block 1024' 'forward 128' 'forward 1024' 'decode 128') device=metal features=(--features metal) short=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?--out needs a folder}; shift ;;
        --dry-run) device=cpu features=() short=(--model demo --runs 1) rows=('core 64' 'forward 64' 'decode 64') ;;
        -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p;}' "$root/scripts/check-metal.sh"; exit ;;
        *) echo "error: no option $1; see scripts/check-metal.sh --help" >&2; exit 2 ;;
    esac
    shift
done
if [ "$device" = metal ] && [ "$(uname)" != Darwin ]; then
    echo "error: Metal needs a Mac; --dry-run takes the CPU instead" >&2
    exit 3
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) && cd "$root" || exit
failed=()

cargo build --release -p gpt2-cli ${features[@]+"${features[@]}"} || exit
gpt2=target/release/gpt2
"$gpt2" verify --device "$device" --json >"$out/verify.json" || failed+=("gpt2 verify --device $device")

milliseconds() { # WHAT TOKENS DTYPE DEVICE IMPL
    "$gpt2" bench "$1" --tokens "$2" --dtype "$3" --device "$4" --impl "$5" ${short[@]+"${short[@]}"} --json |
        sed -n 's/^ *"median_ms": \([0-9.e-]*\),*$/\1/p'
}
{
    echo "| work, tokens, dtype | CPU, fused | $device, Candle's operations | $device, sdpa |"
    echo '|---|---|---|---|'
} >"$out/times.md"
for row in "${rows[@]}"; do
    read -r what tokens <<<"$row"
    for dtype in f32 f16; do
        cells=()
        for way in 'cpu fused' "$device eager" "$device fused"; do
            read -r where how <<<"$way"
            cell=$(milliseconds "$what" "$tokens" "$dtype" "$where" "$how")
            [ -n "$cell" ] || failed+=("gpt2 bench $what --tokens $tokens --dtype $dtype --device $where --impl $how")
            cells+=("${cell:-failed}")
        done
        echo "| $what, $tokens, $dtype | ${cells[0]} | ${cells[1]} | ${cells[2]} |" | tee -a "$out/times.md"
    done
done

if [ ${#short[@]} -eq 0 ]; then
    # What is for the CPU alone stands in the list for CUDA; Metal's products have no f64, either.
    skipped=()
    while read -r name; do skipped+=(--skip "$name"); done < <(
        sed -n '/^model:/,/^[a-z]*:$/s/^ *\([a-z_]*::[a-z_:]*\).*/\1/p' scripts/cuda/cpu_only.txt
        printf '%s\n' circuits:: processed:: surprises::
    )
    GPT2_TEST_DEVICE=$device cargo test --release -p gpt2-cli -p gpt2-model "${features[@]}" --test model -- "${skipped[@]}" 2>&1 |
        tee "$out/tests.log"
    [ "${PIPESTATUS[0]}" = 0 ] || failed+=("the model's tests: $out/tests.log")
fi
if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "everything passed; please send $out/verify.json and $out/times.md"
