#!/usr/bin/env bash
# The driver's own test: right programs give right numbers, for several seeds, and each fault is noticed.
#
#   scripts/cuda/driver/selftest/run.sh [HOME]
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
home=${1:-$here/../../../../target/cuda-on-cpu}
home=$(cd "$home" && pwd)
python3 "$here/../kernels.py" "$home/kernels" "$here/selftest.cu"
read -ra cxx <<<"${CUDA_ON_CPU_CXX:-g++}"
"${cxx[@]}" -std=c++17 -O1 -pthread "$here/main.cpp" -o "$home/selftest" -L"$home/lib64" -lcublas -lcuda -Wl,-rpath,"$home/lib64"

wrong=0 noticed=0
for seed in 1 2 3 4 5; do
    for case in double_all block_sum warp_sum counts halves two_streams threads products \
        declared_shared copies_to_array polls many_threads graph graph_fork graph_pinned graph_memory graph_relaxed graph_origin_destroyed; do
        CUDA_ON_CPU_SEED=$seed "$home/selftest" $case >"$home/selftest.log" 2>&1 ||
            { echo "WRONG: $case, seed $seed:"; cat "$home/selftest.log"; wrong=$((wrong + 1)); }
    done
done
CUDA_ON_CPU_WORKERS=0 "$home/selftest" threads >"$home/selftest.log" 2>&1 ||
    { echo "WRONG: threads, CUDA_ON_CPU_WORKERS=0:"; cat "$home/selftest.log"; wrong=$((wrong + 1)); }
# notices CASE PATTERN SEED: the program does not end well, and says this.
notices() {
    ! CUDA_ON_CPU_SEED=$3 "$home/selftest" "$1" >"$home/selftest.log" 2>&1 && grep -qE -- "$2" "$home/selftest.log"
}
not_noticed() {
    echo "NOT NOTICED: $1 (expected: $2), seed $3"
    cat "$home/selftest.log"
    wrong=$((wrong + 1))
}
# fault CASE PATTERN: whatever the order, so every seed notices it.
fault() {
    for seed in 1 2 3; do
        notices "$1" "$2" "$seed" || { not_noticed "$1" "$2" "$seed"; return; }
    done
    noticed=$((noticed + 1))
}
# race CASE PATTERN: some orders give the right result, so one of a few seeds notices it.
race() {
    for seed in 1 2 3 4 5; do
        if notices "$1" "$2" "$seed"; then noticed=$((noticed + 1)); return; fi
    done
    not_noticed "$1" "$2" "1 to 5"
}
fault past_the_end 'past the end of allocation'
fault before_the_start 'before the start of allocation'
fault just_past_the_end 'past the end of allocation|past its end'
fault misaligned 'does not suit its type'
race no_first_barrier 'expected 128'
race no_barrier_in_loop 'expected 128'
fault past_shared 'outside of device memory'
fault past_dynamic 'outside of device memory'
fault not_in_mask 'mask leaves it out, block \(0, 0, 0\), thread \(.*, 0, 0\)'
fault waits_forever 'block \(0, 0, 0\) wait forever'
fault assertion 'assertion .*, block \(0, 0, 0\), thread \(.*, 0, 0\)'
fault misaligned_copy 'not aligned to 16 bytes, block \(0, 0, 0\), thread \(.*, 0, 0\)'
fault copy_past_array 'not in the shared memory of its block, block \(0, 0, 0\), thread \(.*, 0, 0\)'
fault divides_by_zero 'an integer division .*, block \(0, 0, 0\), thread \(.*, 0, 0\)'
race no_wait 'expected 32|not allocated yet'
fault no_blocks 'a grid without blocks'
fault too_many_threads 'blocks of 2048'
fault beyond_launch_bounds 'compiled for 128'
fault bounds_before 'compiled for 64'
fault too_much_shared 'are allowed'
fault too_much_memory 'refused: 2'
fault time_of_untimed 'takes none'
fault use_after_free 'has been freed'
fault freed_on_another_stream 'has been freed'
fault double_free 'no allocation, or freed'
fault uninitialized 'nan'
fault copy_too_long 'bytes into allocation'
fault wrong_direction 'not device memory'
fault host_pointer 'not device memory'
fault pinned_changed 'changed its memory'
fault pinned_read_early 'nan'
fault missing_function 'cuGraphCreate'
race graph_race 'expected 34'
fault graph_leak 'nobody has freed.*|refused: 1'
fault graph_leak_in_part 'refused: 1'
fault graph_uninitialized 'nan'
fault graph_frees_outside 'refused: 1, at the end: 901'
fault graph_freed_memory 'has been freed'
fault graph_used_outside 'has been freed'
fault graph_waits 'refused: 900, at the end: 901'
fault graph_waits_for_all 'refused: 900, at the end: 901'
fault graph_asks 'refused: 900, at the end: 901'
fault graph_allocates 'refused: 900, at the end: 901'
fault graph_module 'refused: 900, at the end: 901'
fault graph_pageable 'refused: 900, at the end: 901'
fault graph_reads_back 'refused: 900, at the end: 901'
fault graph_event_outside 'refused: 905, at the end: 901'
fault graph_event_asked 'refused: 907'
fault graph_default_stream 'refused: 906'
fault graph_of_default_stream 'refused: 900'
fault graph_merge 'refused: 902, at the end: 901'
fault graph_not_joined 'refused: 904'
fault graph_other_thread 'refused: 908'
fault graph_other_stream 'refused: 903'
fault graph_stream_destroyed 'refused: 901'
fault graph_twice 'refused: 401'
fault graph_not_begun 'refused: 401'
fault graph_not_there 'refused: 400'
fault no_kernel 'not found: 500'
# What a GPU of another compute capability has, and that it does not run code for a later one.
CUDA_ON_CPU_CAPABILITY=75 fault limits '^65536 65536 1024$'
CUDA_ON_CPU_CAPABILITY=86 fault limits '^101376 102400 1536$'
fault limits '^232448 233472 2048$'
CUDA_ON_CPU_CAPABILITY=75 fault double_all 'is compiled for 90'
# A list of shared variables is refused with what to write.
printf '__global__ void list(float *x) { __shared__ float a, b; a = b = x[0]; }\n' >"$home/list.cu"
python3 "$here/../kernels.py" "$home/list" "$home/list.cu" >"$home/selftest.log" 2>&1 || true
if grep -q 'a declaration of its own' "$home/selftest.log"; then noticed=$((noticed + 1)); else not_noticed list 'a declaration of its own' none; fi

echo "cuda-on-cpu: 18 right programs with 5 seeds each, $noticed faults noticed, $wrong wrong"
[ "$wrong" = 0 ]
