// What the f32 kernels share. A block has 128 threads and 64 own rows; a thread works on 4 of them. 8 threads share those,
// and each takes every eighth of 32 other rows, or of the pairs of columns.
#pragma once
#include "masks.cuh"

constexpr int THREADS = 128, OWN = 64, OTHERS = 32, ACROSS = 8, EACH = OWN / (THREADS / ACROSS);
constexpr int WEIGHT_ROW = OTHERS + 4;

DEVICE float4 four(const float *from) { return *reinterpret_cast<const float4 *>(from); }
DEVICE float dot(float4 a, float4 b, float c) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, c)))); }

/// sums += own rows `down` to `down + EACH - 1` · every eighth other row, transposed.
template <int D> DEVICE void multiply_rows(float (&sums)[EACH][OTHERS / ACROSS], const float *own, const float *others) {
    constexpr int ROW = ROW_LENGTH<float, D>;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS * EACH;
#pragma unroll 4
    for (int d = 0; d < D; d += 4) {
        float4 rows[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) rows[i] = four(own + (down + i) * ROW + d);
#pragma unroll
        for (int j = 0; j < OTHERS / ACROSS; j++) {
            const float4 other = four(others + (j * ACROSS + across) * ROW + d);
#pragma unroll
            for (int i = 0; i < EACH; i++) sums[i][j] = dot(rows[i], other, sums[i][j]);
        }
    }
}

/// sums += weights (OWN, WEIGHT_ROW) · other rows, for own rows `down` to `down + EACH - 1` and every eighth pair of columns.
template <int D> DEVICE void add_weighted_rows(float (&sums)[EACH][D / 2 / ACROSS][2], const float *weights, const float *others) {
    constexpr int ROW = ROW_LENGTH<float, D>;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS * EACH;
#pragma unroll 1
    for (int other = 0; other < OTHERS; other += 4) {
        float of_row[EACH][4];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float4 row = four(weights + (down + i) * WEIGHT_ROW + other);
            of_row[i][0] = row.x, of_row[i][1] = row.y, of_row[i][2] = row.z, of_row[i][3] = row.w;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int p = 0; p < D / 2 / ACROSS; p++) {
                const float2 value = *reinterpret_cast<const float2 *>(others + (other + j) * ROW + (p * ACROSS + across) * 2);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    sums[i][p][0] = fmaf(of_row[i][j], value.x, sums[i][p][0]);
                    sums[i][p][1] = fmaf(of_row[i][j], value.y, sums[i][p][1]);
                }
            }
    }
}

/// Writes a row of D, times `factor`, by the 8 threads that share it.
template <int D> DEVICE void write_row(float *to, const float (&sums)[D / 2 / ACROSS][2], float factor) {
    const int across = threadIdx.x % ACROSS;
#pragma unroll
    for (int p = 0; p < D / 2 / ACROSS; p++)
        *reinterpret_cast<float2 *>(to + (p * ACROSS + across) * 2) = float2{sums[p][0] * factor, sums[p][1] * factor};
}
