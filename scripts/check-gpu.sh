#!/usr/bin/env bash
# Is a CUDA build of `gpt2` right on this machine's GPU, and how fast is it beside PyTorch?
#
#   scripts/check-gpu.sh [BINARY] [--out DIR] [--quick]
#
# The default BINARY is target/cuda/gpt2, which scripts/cuda/build.sh builds without a GPU, or else target/release/gpt2.
# The machine needs NVIDIA's driver and a Python 3 with PyTorch; PYTHON may name it. DIR (default: target/gpu-check) gets
# verify.json, gpu.json with all results, and gpu.md, a table for the README.
#
# Exits 1 if a result is wrong or our timings did not run, 2 for wrong arguments, 3 if something is not installed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

fail() { # STATUS MESSAGE [LINE...]
    local status=$1
    shift
    printf 'error: %s\n' "$1" "${@:2}" | sed '2,$s/^error: //' >&2
    exit "$status"
}

binary='' out=$root/target/gpu-check quick=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) [ -n "${2:-}" ] || fail 2 "--out needs a folder"; out=$2; shift ;;
        --quick) quick=(--quick) ;;
        -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) fail 2 "no option $1; usage: check-gpu.sh [BINARY] [--out DIR] [--quick]" ;;
        *) [ -z "$binary" ] || fail 2 "one binary, not both $binary and $1"; binary=$1 ;;
    esac
    shift
done
if [ -z "$binary" ]; then
    binary=$root/target/cuda/gpt2
    [ -x "$binary" ] || binary=$root/target/release/gpt2
fi
[ -f "$binary" ] && [ -x "$binary" ] ||
    fail 3 "$binary is no program" "Make one, on any machine: scripts/cuda/toolkit.sh && scripts/cuda/build.sh"
binary=$(realpath "$binary")

# --- the driver -----------------------------------------------------------------------------

export PATH=$PATH:/usr/local/nvidia/bin:/usr/lib/wsl/lib # where containers and WSL have nvidia-smi
command -v nvidia-smi >/dev/null || fail 3 "no NVIDIA driver: nvidia-smi is not there" \
    "Install the driver (https://www.nvidia.com/drivers; CUDA 13 needs 580 or later); in a container, start it with" \
    "\`docker run --gpus all\` and NVIDIA_DRIVER_CAPABILITIES=compute,utility."
gpus=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1) && [[ $gpus == *,* ]] ||
    fail 3 "the NVIDIA driver does not answer: $gpus" \
        "\`nvidia-smi\` has to list a GPU; is the kernel's module loaded (\`lsmod | grep nvidia\`)?"
echo "$gpus"

# --- CUDA's libraries -----------------------------------------------------------------------

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail 3 "no $python; install Python 3 with PyTorch, or set PYTHON"
# Do not import PyTorch: that takes seconds. A Python without PyTorch may still have the libraries.
site=$("$python" -c 'import importlib.util as u, pathlib, sysconfig
torch = u.find_spec("torch")
print(pathlib.Path(torch.origin).parent.parent if torch else sysconfig.get_path("purelib"))')

libraries=${LD_LIBRARY_PATH:-}
loaded() { LD_LIBRARY_PATH=$libraries ldd "$binary" 2>&1 || true; } # fails for a program that loads nothing
unfound() { loaded | awk '/=> not found/ {print $1}'; }
# Add only folders with missing libraries, so that everything else still comes from its usual place.
for folder in "$site"/nvidia/{cu13,*}/lib /usr/local/{cuda,nvidia}/lib64 /usr/lib/wsl/lib; do
    for library in $(unfound); do
        if [ -e "$folder/$library" ]; then
            libraries=${libraries:+$libraries:}$folder
            break
        fi
    done
done
missing=$(unfound | paste -sd' ')
remedies=()
[[ $missing != *libcuda.so* ]] || remedies+=("libcuda is the driver's: put its folder on LD_LIBRARY_PATH; in a container," \
    "NVIDIA_DRIVER_CAPABILITIES has to have \`compute\`.")
[[ ${missing/libcuda.so.1/} != *lib* ]] || remedies+=("CUDA's: \`$python -m pip install nvidia-cublas nvidia-curand\`")
[ -z "$missing" ] || fail 3 "libraries are missing: $missing" "${remedies[@]}"
if too_old=$(loaded | grep -F 'not found'); then
    fail 3 "$binary needs a later C library than this machine's" "$too_old"
fi
if stubs=$(loaded | grep -F '/stubs/'); then
    fail 3 "stub libraries, which compute nothing, are on LD_LIBRARY_PATH; take them off" "$stubs"
fi
gpt2() { LD_LIBRARY_PATH=$libraries "$binary" "$@"; }

# --- right? ---------------------------------------------------------------------------------

mkdir -p "$out"
out=$(cd "$out" && pwd)
trap 'rm -f "$out"/*.part' EXIT
job='' status=0
trap '[ -z "$job" ] || kill "$job" || true; exit 130' INT # what runs in the foreground ends by itself
echo
echo "gpt2 verify --device cuda"
verified=0
gpt2 verify --device cuda --json >"$out/verify.json.part" || verified=$?
mv "$out/verify.json.part" "$out/verify.json"
"$python" - "$out/verify.json" <<'PYTHON' || verified=1
import json, sys
try:
    report = json.load(open(sys.argv[1]))
except ValueError:
    sys.exit("no result: see the error above")
keys = ("what", "case", "impl", "dtype")
widths = [max(len(check[key]) for check in report["checks"]) for key in keys]
for check in report["checks"]:
    names = "  ".join(check[key].ljust(width) for key, width in zip(keys, widths))
    error = "nan" if check["error"] is None else f"{check['error']:.1e}"
    print(f"{names}  {error:>7}  {check['tolerance']:.1e}  {'ok' if check['passed'] else 'FAILED'}")
print(sum(check["passed"] for check in report["checks"]), "of", len(report["checks"]), "paths within their tolerance")
PYTHON
if [ "$verified" != 0 ]; then
    echo "error: gpt2 verify failed; the timings below are of a build that is not right" >&2
    status=1
fi

echo
sanitized='not there, not run'
sanitizer=''
for found in "$(command -v compute-sanitizer || true)" {"$site"/nvidia/*,/usr/local/cuda}/bin/compute-sanitizer; do
    if [ -x "$found" ]; then
        sanitizer=$found
        break
    fi
done
if [ -n "$sanitizer" ]; then
    # Addresses, and the order of accesses to shared memory.
    limit=900 sanitized=''
    [ ${#quick[@]} = 0 ] || limit=300
    for tool in memcheck racecheck; do
        echo "$sanitizer --tool $tool: at most $limit s"
        checked=0
        # timeout also ends the program under the sanitizer, which is in a separate group that Ctrl-C does not reach.
        LD_LIBRARY_PATH=$libraries timeout -k 10 "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 \
            "$binary" verify --device cuda --json >"$out/$tool.log" 2>&1 &
        job=$!
        wait "$job" || checked=$?
        job=''
        case $checked in
            0) found='found nothing' ;;
            9) found='FOUND ERRORS'; status=1 ;;
            124) found="was not done after $limit s" ;;
            *) found="came to no result, status $checked" ;;
        esac
        sanitized+="${sanitized:+, }$tool $found"
        if [ "$checked" != 0 ]; then
            grep -m 20 '^=========' "$out/$tool.log" || true
            echo "all of it: $out/$tool.log"
        fi
    done
fi
echo "compute-sanitizer: $sanitized"

# --- fast? ----------------------------------------------------------------------------------

echo
timed=0
"$python" "$root/scripts/check_gpu.py" --binary "$binary" --device cuda "${quick[@]}" --library-path "$libraries" \
    --verify "$out/verify.json" --sanitizer "$sanitized" --json "$out/gpu.json" --markdown "$out/gpu.md" || timed=$?
[ "$status" != 0 ] || status=$timed
exit "$status"
