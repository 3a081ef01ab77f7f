// The GPU instructions of device.cuh on the CPU: slow, one block at a time, and strict where a GPU is lenient.
//
// Each thread of a block is a coroutine. The threads take turns in a random order and wait for each other wherever a
// GPU's threads would. The target of a copy into shared memory holds garbage until the thread waits for its copies.
#pragma once
#include <cmath>
#include <cstring>

using std::fmaf;

struct Index {
    unsigned x;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace emulation {
/// Operands that the lanes of a warp show to each other.
struct Shown {
    uint64_t of[6];
};
Index thread();
void *shared();
/// Waits until all threads of the block, or of the warp, get here.
void meet_block();
void meet_warp();
/// Shows `own` to the other lanes, and returns the operands of all 32.
const Shown *show(const Shown &own);
void copy_later(void *shared, const void *global, bool there);
void copy_now();
/// Ends the program unless the `size` bytes at `address` lie in the block's shared memory and are aligned to `size`.
void check_shared(const void *address, unsigned size);
} // namespace emulation

extern Index blockIdx, gridDim;
#define threadIdx emulation::thread()
#define KERNEL(...) extern "C" void
#define DEVICE inline

inline int min(int a, int b) { return a < b ? a : b; }

DEVICE void *shared_memory() { return emulation::shared(); }
DEVICE void sync_block() { emulation::meet_block(); }
DEVICE void sync_warp() { emulation::meet_warp(); }

DEVICE uint64_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEVICE float float_of(uint64_t bits) {
    const uint32_t low = static_cast<uint32_t>(bits);
    float x;
    memcpy(&x, &low, 4);
    return x;
}

DEVICE float shuffle_xor(float x, int lanes) {
    const int lane = threadIdx.x % 32;
    return float_of(emulation::show({{bits_of(x)}})[lane ^ lanes].of[0]);
}

DEVICE uint32_t lanes_where(bool yes) {
    const emulation::Shown *all = emulation::show({{yes}});
    uint32_t word = 0;
    for (int lane = 0; lane < 32; lane++) word |= static_cast<uint32_t>(all[lane].of[0]) << lane;
    return word;
}
DEVICE uint32_t add_atomically(uint32_t *to, uint32_t number) {
    const uint32_t before = *to;
    *to += number;
    return before;
}
DEVICE void memory_fence() {}
DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }

DEVICE float exp2_fast(float x) { return exp2f(x); }
DEVICE float log2_fast(float x) { return log2f(x); }

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(f16 x) {
    const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent == 0 ? ldexpf(fraction, -24)
                                       : ldexpf(1024 + fraction, exponent - 25);
    return x.bits >> 15 ? -size : size;
}
DEVICE float to_float(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

template <typename E> E from_float(float x);
template <> DEVICE float from_float(float x) { return x; }
template <> DEVICE f16 from_float(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (x != x) return {0x7fff};
    // In units of the last place: 2^-24 below the normal numbers; nearbyint rounds to nearest, ties to even.
    int exponent;
    frexpf(x, &exponent);
    const int place = fabsf(x) < 0x1p-14f ? -24 : exponent - 11;
    const int units = static_cast<int>(std::fmin(nearbyintf(ldexpf(fabsf(x), -place)), 4096));
    if (std::isinf(x) || ldexpf(units, place) > 65504) return {static_cast<uint16_t>(sign | 0x7c00)};
    // A carry out of the fraction automatically becomes the next exponent.
    return {static_cast<uint16_t>(sign | (place == -24 ? units : (place + 24) * 1024 + units))};
}
template <> DEVICE bf16 from_float(float x) {
    const uint32_t bits = static_cast<uint32_t>(bits_of(x));
    if (x != x) return {0x7fff};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)}; // to nearest, ties to even
}

template <typename E> DEVICE uint32_t pack(float low, float high) {
    return from_float<E>(low).bits | static_cast<uint32_t>(from_float<E>(high).bits) << 16;
}

template <typename E> float half_of(uint64_t word, int k) { return to_float(E{static_cast<uint16_t>(word >> k % 2 * 16)}); }

#if CAPABILITY >= 80
/// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
template <typename E> DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const emulation::Shown *all = emulation::show({{a[0], a[1], a[2], a[3], b0, b1}});
    const int lane = threadIdx.x % 32;
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            const uint64_t of_a = all[row % 8 * 4 + k % 8 / 2].of[row / 8 + k / 8 * 2];
            const uint64_t of_b = all[column * 4 + k % 8 / 2].of[4 + k / 8];
            sum += half_of<E>(of_a, k) * half_of<E>(of_b, k);
        }
        c[e] += sum;
    }
}
#else
/// PTX ISA, "Matrix fragments for mma.m16n8k8".
template <typename E> DEVICE void mma_8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    const emulation::Shown *all = emulation::show({{a0, a1, b}});
    const int lane = threadIdx.x % 32;
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0;
        for (int k = 0; k < 8; k++)
            sum += half_of<E>(all[row % 8 * 4 + k / 2].of[row / 8], k) * half_of<E>(all[column * 4 + k / 2].of[2], k);
        c[e] += sum;
    }
}
template <typename E> DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_8<E>(c, a[0], a[1], b0);
    mma_8<E>(c, a[2], a[3], b1);
}
#endif

/// PTX ISA, "Warp-level matrix load instruction: ldmatrix".
DEVICE void load_matrices(uint32_t (&r)[4], const void *row) {
    emulation::check_shared(row, 16);
    const emulation::Shown *rows = emulation::show({{reinterpret_cast<uint64_t>(row)}});
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) memcpy(&r[i], reinterpret_cast<const uint32_t *>(rows[i * 8 + lane / 4].of[0]) + lane % 4, 4);
}
DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void *row) {
    emulation::check_shared(row, 16);
    const emulation::Shown *rows = emulation::show({{reinterpret_cast<uint64_t>(row)}});
    const int lane = threadIdx.x % 32;
    const auto half = [&](int matrix, int row) -> uint32_t {
        return reinterpret_cast<const uint16_t *>(rows[matrix * 8 + row].of[0])[lane / 4];
    };
    for (int i = 0; i < 4; i++) r[i] = half(i, lane % 4 * 2) | half(i, lane % 4 * 2 + 1) << 16;
}

DEVICE void copy_16_bytes(void *shared, const void *global, bool there) {
    emulation::copy_later(shared, global, there);
    if (CAPABILITY < 80) emulation::copy_now();
}
DEVICE void copies_arrived() { emulation::copy_now(); }
