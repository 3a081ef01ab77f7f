// What threads of a block do together: barriers, shuffles, votes; fences and atomic operations.
#pragma once
#include "bits.hpp"
#include "worker.hpp"
#include <type_traits>

inline void __syncthreads() { cuda_on_cpu_sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffff) { cuda_on_cpu_meet(mask, nullptr, 0, nullptr, 0); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

namespace cuda_on_cpu {
inline int lane() { return static_cast<int>(cuda_on_cpu_worker.rank % 32); }

/// The value that lane `from` shows. `width` splits the warp into parts; a lane outside of its part reads its own.
template <class T> T shuffle(unsigned mask, T value, int from, int width, bool inside) {
    static_assert(sizeof(T) <= 48, "a value that a lane can show");
    const auto *all = cuda_on_cpu_meet(mask, &value, sizeof value, nullptr, width);
    if (!inside) return value;
    T result;
    memcpy(&result, all[from], sizeof result);
    return result;
}
} // namespace cuda_on_cpu

template <class T> T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const int lane = cuda_on_cpu::lane();
    return cuda_on_cpu::shuffle(mask, value, (lane & ~(width - 1)) + (from & (width - 1)), width, true);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    const int from = cuda_on_cpu::lane() ^ lanes, part = cuda_on_cpu::lane() & ~(width - 1);
    return cuda_on_cpu::shuffle(mask, value, from & 31, width, from < part + width);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
    const int from = cuda_on_cpu::lane() + static_cast<int>(lanes), part = cuda_on_cpu::lane() & ~(width - 1);
    return cuda_on_cpu::shuffle(mask, value, from & 31, width, from < part + width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
    const int from = cuda_on_cpu::lane() - static_cast<int>(lanes), part = cuda_on_cpu::lane() & ~(width - 1);
    return cuda_on_cpu::shuffle(mask, value, from & 31, width, from >= part);
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
    const char own = yes != 0;
    const auto *all = cuda_on_cpu_meet(mask, &own, 1, nullptr, 0);
    unsigned word = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane][0] == 1) word |= 1u << lane;
    return word;
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, !yes) == 0; }
template <class T> unsigned __match_any_sync(unsigned mask, T value) {
    const auto *all = cuda_on_cpu_meet(mask, &value, sizeof value, nullptr, sizeof value);
    unsigned word = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && memcmp(all[lane], &value, sizeof value) == 0) word |= 1u << lane;
    return word;
}

// Atomic operations. `Change` takes the old value to the new one.
namespace cuda_on_cpu {
/// T, which is not deduced from the argument.
template <class T> using Same = std::common_type_t<T>;
template <class T, class Change> T atomically(T *at, Change change) {
    T before, after;
    __atomic_load(at, &before, __ATOMIC_SEQ_CST);
    do after = change(before);
    while (!__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}
} // namespace cuda_on_cpu

template <class T> T atomicAdd(T *at, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T old) { return static_cast<T>(old + x); });
}
template <class T> T atomicSub(T *at, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T old) { return static_cast<T>(old - x); });
}
template <class T> T atomicMax(T *at, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T old) { return old < x ? x : old; });
}
template <class T> T atomicMin(T *at, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T old) { return x < old ? x : old; });
}
template <class T> T atomicExch(T *at, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T) { return x; });
}
template <class T> T atomicCAS(T *at, cuda_on_cpu::Same<T> expected, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T old) { return old == expected ? x : old; });
}
template <class T> T atomicOr(T *at, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T old) { return old | x; });
}
template <class T> T atomicAnd(T *at, cuda_on_cpu::Same<T> x) {
    return cuda_on_cpu::atomically(at, [=](T old) { return old & x; });
}
