// The GPU instructions that the kernels use, one function each. Without nvcc, an emulation on the CPU provides the
// same names, so that the tests can run these kernels without a GPU.
#pragma once
#include <stdint.h>

/// Tensor elements, as bits; arithmetic is in f32.
struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

/// The distance in elements between neighbours along each axis of (B, H, positions, D); D is contiguous.
struct Strides {
    long long batch, head, position;
};

/// q (B, H, T, D) against k and v (B, H, S, D). The Rust side has the same struct.
struct Shape {
    Strides q, k, v;
    int heads, queries, keys;
    /// For decoding: keys per block, and blocks per head.
    int split_keys, splits;
    /// The scale of the scores, times log2(e): the softmax uses powers of 2.
    float scale;
};

static_assert(sizeof(Shape) == 96 && __builtin_offsetof(Shape, heads) == 72, "must match src/attention/cuda/plan.rs");

constexpr float INFINITE = __builtin_huge_valf();

/// 16 bytes, which a thread reads or writes at once.
template <typename E> struct alignas(16) Unit {
    static constexpr int COUNT = 16 / sizeof(E);
    E of[COUNT];
};

#ifdef __CUDACC__

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define DEVICE __device__ __forceinline__

/// The block's shared memory, of the size given at launch.
DEVICE void *shared_memory() {
    extern __shared__ uint4 memory[];
    return memory;
}

DEVICE uint32_t shared_address(const void *shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffff, x, lanes); }

/// 2^x, to about 2 units in the last place; 2^-inf is 0.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <> DEVICE uint32_t pack<bf16>(float low, float high) {
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/// c (16, 8) += a (16, 16) · b (16, 8) on the tensor cores, by a whole warp: PTX's mma.m16n8k16.
template <typename E> DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> DEVICE void mma<f16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(there ? 16 : 0)
                 : "memory");
}
/// Waits for this thread's copies. Other threads' copies are visible only after a `sync_block`.
DEVICE void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#else
#include "emulation.hpp"
#endif

/// A block's tile of queries and its head (b, h), among `blocks` blocks that take `queries` each. The last tiles of a
/// head see the most keys, so they run first: none is left to run alone at the end.
struct Place {
    int tile, b, h;
};
DEVICE Place place_of(unsigned block, unsigned blocks, int queries, const Shape &shape) {
    const unsigned heads = blocks / ((shape.queries + queries - 1) / queries), head = block % heads;
    const unsigned tile = (blocks - 1 - block) / heads, b = head / shape.heads, h = head % shape.heads;
    return {static_cast<int>(tile), static_cast<int>(b), static_cast<int>(h)};
}

/// The distance in elements between rows of D in shared memory. 16 bytes of padding put the rows that one
/// instruction reads into different banks.
template <typename E, int D> static constexpr int ROW_LENGTH = D + Unit<E>::COUNT;

/// Starts copying `Rows` rows of D from row `first` on, by all `Threads` threads of a block; from row `end` on it
/// writes zeros.
template <typename E, int Rows, int D, int Threads>
DEVICE void copy_rows(E *to, const E *from, long long stride, int first, int end) {
    constexpr int COUNT = Unit<E>::COUNT, UNITS = D / COUNT;
    for (int i = threadIdx.x; i < Rows * UNITS; i += Threads) {
        const int row = i / UNITS, unit = i % UNITS;
        const bool there = first + row < end;
        const E *const at = from + (there ? first + row : 0) * stride;
        copy_16_bytes(to + row * ROW_LENGTH<E, D> + unit * COUNT, at + unit * COUNT, there);
    }
}
