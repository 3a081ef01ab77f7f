#!/usr/bin/env bash
# Is a CUDA build of `gpt2` right on this machine's GPU, and how fast is it beside PyTorch?
#
#   scripts/check-gpu.sh [BINARY] [--out DIR] [--part times|tests|sanitizers|all] [--budget SECONDS] [--resume] [--quick]
#
# The default BINARY is target/cuda/gpt2, which scripts/cuda/build.sh builds without a GPU, or else target/release/gpt2.
# The machine needs NVIDIA's driver and a Python 3.10 with PyTorch; PYTHON may name it.
#
# Part `times` runs `gpt2 verify`, then times one row of the table after another, the most important first. Part `tests` runs
# the tests of the kernels, the model and training, if `build.sh --tests` has put them beside BINARY. Part `sanitizers` runs
# compute-sanitizer's four tools on our kernels. The default is `all`, one part after the other. Each part ends by itself
# after SECONDS (540). Whenever it ends, DIR (target/gpu-check) has what was done until then:
#   verify.json                  the output of `gpt2 verify --json`
#   gpu.json, gpu.md             all results and the table; both name the rows that were not reached
#   tests.json, PACKAGE.log      which tests passed and failed
#   sanitizers.json, TOOL.log    what each tool found; one that did not finish is named so
# --resume keeps the finished rows of the last run if the binary, PyTorch, the GPU and the settings are the same.
# --quick times few rows with few runs.
# --dry-run takes the CPU and a tiny model instead of the GPU, to see whether the scripts run; its times mean nothing.
#
# Exits 1 if a result is wrong, a test failed, our kernels were not timed in a row that was reached, or a tool did not finish; 2 for
# wrong arguments; 3 if something is not installed; 143 after SIGTERM. Rows that are left over are no error.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

fail() { # STATUS MESSAGE [LINE...]
    local status=$1
    shift
    printf 'error: %s\n' "$1" "${@:2}" | sed '2,$s/^error: //' >&2
    exit "$status"
}

usage='check-gpu.sh [BINARY] [--out DIR] [--part times|tests|sanitizers|all] [--budget SECONDS] [--resume] [--quick]'
binary='' out=$root/target/gpu-check dry='' options=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) [ -n "${2:-}" ] || fail 2 "--out needs a folder"; out=$2; shift ;;
        --part | --budget) [ -n "${2:-}" ] || fail 2 "$1 needs a value; usage: $usage"; options+=("$1" "$2"); shift ;;
        --resume | --quick) options+=("$1") ;;
        --dry-run) dry=yes options+=("$1") ;;
        -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) fail 2 "no option $1; usage: $usage" ;;
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

if [ -z "$dry" ]; then
    export PATH=$PATH:/usr/local/nvidia/bin:/usr/lib/wsl/lib # where containers and WSL have nvidia-smi
    command -v nvidia-smi >/dev/null || fail 3 "no NVIDIA driver: nvidia-smi is not there" \
        "Install the driver (https://www.nvidia.com/drivers; CUDA 13 needs 580 or later); in a container, start it" \
        "with \`docker run --gpus all\` and NVIDIA_DRIVER_CAPABILITIES=compute,utility."
    gpus=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1) && [[ $gpus == *,* ]] ||
        fail 3 "the NVIDIA driver does not answer: $gpus" \
            "\`nvidia-smi\` has to list a GPU; is the kernel's module loaded (\`lsmod | grep nvidia\`)?"
    echo "$gpus"
fi

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
[[ $missing != *libcuda.so* ]] || remedies+=("libcuda is the driver's: put its folder on LD_LIBRARY_PATH;" \
    "in a container, NVIDIA_DRIVER_CAPABILITIES has to have \`compute\`.")
[[ ${missing/libcuda.so.1/} != *lib* ]] || remedies+=("CUDA's: \`$python -m pip install nvidia-cublas nvidia-curand\`")
[ -z "$missing" ] || fail 3 "libraries are missing: $missing" "${remedies[@]}"
if too_old=$(loaded | grep -F 'not found'); then
    fail 3 "$binary needs a later C library than this machine's" "$too_old"
fi
if stubs=$(loaded | grep -F '/stubs/'); then
    fail 3 "stub libraries, which compute nothing, are on LD_LIBRARY_PATH; take them off" "$stubs"
fi

# --- the parts -------------------------------------------------------------------------------

sanitizer=''
for found in "$(command -v compute-sanitizer || true)" {"$site"/nvidia/*,/usr/local/cuda}/bin/compute-sanitizer; do
    if [ -x "$found" ]; then
        sanitizer=$found
        break
    fi
done
# exec: a signal to this process has to reach the one that writes the files.
exec "$python" "$root/scripts/check_gpu.py" --binary "$binary" --out "$out" --library-path "$libraries" \
    ${sanitizer:+--sanitizer "$sanitizer"} "${options[@]}"
