// The GPU instructions that the kernels use, one function each. on_cpu.cuh has those that are PTX for the driver that runs
// launches on the processor (scripts/cuda/driver), with which the tests run these kernels without a GPU.
#pragma once
#include <stdint.h>

/// The compute capability that this is compiled for, as a number: 90 for 9.0.
#ifdef __CUDA_ARCH__
#define CAPABILITY (__CUDA_ARCH__ / 10)
#else // what nvcc compiles for the host
#define CAPABILITY 90
#endif
/// Whether there are kernels for bf16: its instructions come with 8.0.
#define HAS_BF16 (CAPABILITY >= 80)

/// Tensor elements, as bits; arithmetic is in f32.
struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

constexpr float INFINITE = __builtin_huge_valf();

/// 16 bytes, which a thread reads or writes at once.
template <typename E> struct alignas(16) Unit {
    static constexpr int COUNT = 16 / sizeof(E);
    E of[COUNT];
};

/// A kernel for blocks of so many threads and, if given, at least so many blocks on a multiprocessor.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define DEVICE __device__ __forceinline__

/// The block's shared memory, of the size given at launch.
DEVICE void *shared_memory() {
    extern __shared__ uint4 memory[];
    return memory;
}

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
template <typename T> DEVICE T shuffle_xor(T x, int lanes) { return __shfl_xor_sync(0xffffffff, x, lanes); }
/// A word whose bit i says whether `yes` holds in lane i.
DEVICE uint32_t lanes_where(bool yes) { return __ballot_sync(0xffffffff, yes); }
/// A word whose bit i says whether lane i has the same number.
DEVICE uint32_t lanes_like(uint32_t x) { return __match_any_sync(0xffffffff, x); }
/// Adds to a number that other threads also add to, and returns what it was before.
DEVICE uint32_t add_atomically(uint32_t *to, uint32_t number) { return atomicAdd(to, number); }
/// Makes what this thread wrote visible to other blocks before anything that it writes later.
DEVICE void memory_fence() { __threadfence(); }
/// The product rounded to f32, never joined with a sum.
DEVICE float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }
/// The upper 32 bits of the product.
DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }

#ifdef CUDA_ON_CPU
#include "on_cpu.cuh"
#else

DEVICE uint32_t shared_address(const void *shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// 2^x, to about 2 units in the last place; 2^-inf is 0.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// log2(x), to about 2 units in the last place.
DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE float to_float(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }

template <typename E> DEVICE E from_float(float x);
template <> DEVICE float from_float(float x) { return x; }
template <> DEVICE f16 from_float(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> DEVICE bf16 from_float(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

/// Rounds two numbers into one register, `low` in its lower half.
template <typename E> DEVICE uint32_t pack(float low, float high);
template <> DEVICE uint32_t pack<f16>(float low, float high) {
#if CAPABILITY >= 80
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#else
    return from_float<f16>(low).bits | static_cast<uint32_t>(from_float<f16>(high).bits) << 16;
#endif
}
template <> DEVICE uint32_t pack<bf16>(float low, float high) {
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/// c (16, 8) += a (16, 16) · b (16, 8) on the tensor cores, by a whole warp: PTX's mma.m16n8k16, or two m16n8k8 before
/// 8.0. A fragment of k16 is two of k8, one after the other.
template <typename E> DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> DEVICE void mma<f16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if CAPABILITY >= 80
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
template <> DEVICE void mma<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads four (8, 8) matrices of 16-bit numbers from shared memory, by a whole warp: lane i gives the address of row i
/// % 8 of matrix i / 8.
DEVICE void load_matrices(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/// The same, with each matrix transposed.
DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// Copies 16 bytes into shared memory, or zeros if `there` is false. They have arrived after `copies_arrived`.
DEVICE void copy_16_bytes(void *shared, const void *global, bool there) {
#if CAPABILITY >= 80
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(there ? 16 : 0)
                 : "memory");
#else
    *static_cast<uint4 *>(shared) = there ? *static_cast<const uint4 *>(global) : uint4{0, 0, 0, 0};
#endif
}
/// Waits for this thread's copies. Other threads' copies are visible only after a `sync_block`.
DEVICE void copies_arrived() {
#if CAPABILITY >= 80
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#endif
