// Instructions that kernels write in PTX, as functions: products on tensor cores, ldmatrix, cp.async.
#pragma once
#include "half.hpp"
#include "warps.hpp"

namespace cuda_on_cpu {

template <bool Bf16> inline float half_of(uint32_t word, int k) {
    const uint16_t bits = static_cast<uint16_t>(word >> k % 2 * 16);
    return Bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/// The products of a whole warp. PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type", and for m16n8k8.
/// A lane shows the words of a, then those of b.
template <bool Bf16, int K> void multiply_together(const char (*shown)[48], char (*results)[48], uint32_t, int) {
    float a[16][K], b[K][8], c[16][8] = {};
    for (int lane = 0; lane < 32; lane++) {
        uint32_t words[6];
        memcpy(words, shown[lane], sizeof words);
        for (int word = 0; word < K / 4; word++)
            for (int low = 0; low < 2; low++)
                a[lane / 4 + word % 2 * 8][lane % 4 * 2 + word / 2 * 8 + low] = half_of<Bf16>(words[word], low);
        for (int word = 0; word < K / 8; word++)
            for (int low = 0; low < 2; low++)
                b[lane % 4 * 2 + word * 8 + low][lane / 4] = half_of<Bf16>(words[K / 4 + word], low);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < K; k++)
            for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++) {
        const int row = lane / 4, column = lane % 4 * 2;
        const float own[4] = {c[row][column], c[row][column + 1], c[row + 8][column], c[row + 8][column + 1]};
        memcpy(results[lane], own, sizeof own);
    }
}

/// c (16, 8) += a (16, K) · b (K, 8): mma.sync.aligned.m16n8k16 or .m16n8k8, row.col, with f32 sums.
template <bool Bf16, int K> inline void mma(float (&c)[4], const uint32_t *a, const uint32_t *b) {
    uint32_t words[6];
    for (int i = 0; i < K / 4; i++) words[i] = a[i];
    for (int i = 0; i < K / 8; i++) words[K / 4 + i] = b[i];
    const auto *all = cuda_on_cpu_meet(0xffffffff, words, sizeof words, multiply_together<Bf16, K>, K);
    float sums[4];
    memcpy(sums, all[lane()], sizeof sums);
    for (int i = 0; i < 4; i++) c[i] += sums[i];
}

/// PTX ISA, "Warp-level matrix load instruction: ldmatrix", m8n8.x4.b16, transposed or not.
inline void ldmatrix(uint32_t (&r)[4], const void *row, bool transposed) {
    cuda_on_cpu_check_shared(row, 16, 16);
    const auto *all = cuda_on_cpu_meet(0xffffffff, &row, sizeof row, nullptr, transposed);
    const auto half = [&](int matrix, int row, int column) -> uint32_t {
        const uint16_t *at;
        memcpy(&at, all[matrix * 8 + row], sizeof at);
        return at[column];
    };
    const int down = lane() / 4, across = lane() % 4 * 2;
    for (int i = 0; i < 4; i++)
        r[i] = transposed ? half(i, across, down) | half(i, across + 1, down) << 16
                          : half(i, down, across) | half(i, down, across + 1) << 16;
    // Other lanes may write these rows only when all have read them.
    cuda_on_cpu_meet(0xffffffff, nullptr, 0, nullptr, 0);
}

/// cp.async.cg.shared.global of 16 bytes, of which `there` are copied and the others zeros; cp.async.wait_all.
inline void cp_async_16(void *shared, const void *global, unsigned there = 16) { cuda_on_cpu_copy_later(shared, global, 16, there); }
inline void cp_async_wait_all() { cuda_on_cpu_copies_arrive(); }

} // namespace cuda_on_cpu
