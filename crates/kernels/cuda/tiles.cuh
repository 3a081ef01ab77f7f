// Attention in tiles: where a block works, and how rows and fragments get into shared memory and registers.
#pragma once
#include "device.cuh"

/// The distance in elements between neighbors along each axis of (B, H, positions, D); D is contiguous.
struct Strides {
    long long batch, head, position;
};

/// q (B, H, T, D) against k and v (B, H, S, D). The Rust side has the same struct.
struct Shape {
    Strides q, k, v;
    int heads, queries, keys;
    /// For decoding: blocks per head.
    int splits;
    /// How many heads (b, h) go through all their tiles before the next heads start: as many as keep their k and v in
    /// the L2 cache.
    int section;
    /// The scale of the scores, times log2(e): the softmax uses powers of 2.
    float scale;
};

static_assert(sizeof(Shape) == 96 && __builtin_offsetof(Shape, heads) == 72, "must match src/attention/cuda/plan.rs");

constexpr float LN_2 = 0.6931471805599453f;

/// A block's tile of rows and its head (b, h).
struct Place {
    int tile, b, h;
};

/// The place of `block` among `blocks` that take `rows` of `positions` each. Blocks start in this order: section by
/// section, and within one tile by tile, the last tile of all its heads first. The last queries see the most keys, so
/// no long tile is left to run alone at the end.
DEVICE Place place_of(unsigned block, unsigned blocks, int positions, int rows, const Shape &shape) {
    const unsigned tiles = (positions + rows - 1) / rows, heads = blocks / tiles;
    const unsigned first = block / (shape.section * tiles) * shape.section, within = block - first * tiles;
    const unsigned together = heads - first < static_cast<unsigned>(shape.section) ? heads - first : shape.section;
    const unsigned head = first + within % together, tile = tiles - 1 - within / together;
    return {static_cast<int>(tile), static_cast<int>(head / shape.heads), static_cast<int>(head % shape.heads)};
}

/// The distance in elements between rows of D in shared memory. 16 bytes of padding put the rows that one
/// instruction reads into different banks.
template <typename E, int D> static constexpr int ROW_LENGTH = D + Unit<E>::COUNT;

/// Starts copying `Rows` rows of D from row `first` on, by all `Threads` threads of a block; from row `end` on it
/// writes zeros.
template <typename E, int Rows, int D, int Threads>
DEVICE void copy_rows(E *to, const E *from, long long stride, int first, int end) {
    constexpr int COUNT = Unit<E>::COUNT, UNITS = D / COUNT, ALL = Rows * UNITS;
#pragma unroll
    for (int n = 0; n < (ALL + Threads - 1) / Threads; n++) {
        const int i = n * Threads + threadIdx.x;
        if (ALL % Threads != 0 && i >= ALL) break;
        const int row = i / UNITS, unit = i % UNITS;
        const bool there = first + row < end;
        const E *const at = from + (there ? first + row : 0) * stride;
        copy_16_bytes(to + row * ROW_LENGTH<E, D> + unit * COUNT, at + unit * COUNT, there);
    }
}

/// Zeros in place of those rows that `copy_rows` copied and that are padding: a weight of 0 times NaN would be NaN. Each thread
/// takes what it copied itself, once its copies have arrived. `Beside`: the distance in elements to a second tensor's rows, or 0.
template <typename E, int Rows, int D, int Threads, int Beside = 0>
DEVICE void clear_padding(E *rows, const uint8_t *visible, int first, int end) {
    constexpr int COUNT = Unit<E>::COUNT, UNITS = D / COUNT;
#pragma unroll 1
    for (int i = threadIdx.x; i < Rows * UNITS; i += Threads) {
        const int row = i / UNITS, unit = i % UNITS;
        if (first + row >= end || visible[first + row]) continue;
        E *const to = rows + row * ROW_LENGTH<E, D> + unit * COUNT;
        *reinterpret_cast<uint4 *>(to) = uint4{0, 0, 0, 0};
        if (Beside) *reinterpret_cast<uint4 *>(to + Beside) = uint4{0, 0, 0, 0};
    }
}

// The rest is for f16 and bf16. Fragments are laid out as for mma.m16n8k16: of a (16, 8) result, lane i holds columns
// i % 4 * 2 and i % 4 * 2 + 1 of row i / 4 ([0], [1]) and of row i / 4 + 8 ([2], [3]).

/// The fragments of `Groups` times 16 rows of D in shared memory: all of them held in registers, or those of 16
/// columns at a time.
template <typename E, int D, int Groups, bool Hold> struct Rows {
    const E *at;
    uint32_t fragments[Groups][Hold ? D / 16 : 1][4];

    DEVICE void load(int columns) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int g = 0; g < Groups; g++)
            load_matrices(fragments[g][Hold ? columns : 0],
                          at + (g * 16 + lane % 16) * ROW_LENGTH<E, D> + columns * 16 + lane / 16 * 8);
    }
    DEVICE void hold() {
        if constexpr (Hold) {
#pragma unroll
            for (int columns = 0; columns < D / 16; columns++) load(columns);
        }
    }
};

/// sums (16·Groups, Others) += own rows · other rows of D in shared memory, transposed.
template <typename E, int D, int Groups, bool Hold, int Others>
DEVICE void multiply_rows(float (&sums)[Groups][Others / 8][4], Rows<E, D, Groups, Hold> &own, const E *others) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        if (!Hold) own.load(d);
#pragma unroll
        for (int j = 0; j < Others / 16; j++) {
            uint32_t b[4];
            load_matrices(b, others + (j * 16 + lane / 16 * 8 + lane % 8) * ROW_LENGTH<E, D> + d * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int g = 0; g < Groups; g++) {
                mma<E>(sums[g][2 * j], own.fragments[g][Hold ? d : 0], b[0], b[1]);
                mma<E>(sums[g][2 * j + 1], own.fragments[g][Hold ? d : 0], b[2], b[3]);
            }
        }
    }
}

/// sums (16·Groups, D) += weights (16·Groups, Others), rounded, · other rows of D in shared memory.
template <typename E, int D, int Groups, int Others>
DEVICE void add_weighted_rows(float (&sums)[Groups][D / 8][4], const float (&weights)[Groups][Others / 8][4], const E *others) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Others / 16; j++) {
        uint32_t a[Groups][4]; // two (16, 8) results side by side are one (16, 16) operand
#pragma unroll
        for (int g = 0; g < Groups; g++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float(&part)[4] = weights[g][2 * j + e / 2];
                a[g][e] = pack<E>(part[e % 2 * 2], part[e % 2 * 2 + 1]);
            }
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            load_matrices_transposed(b, others + (j * 16 + lane % 16) * ROW_LENGTH<E, D> + d * 16 + lane / 16 * 8);
#pragma unroll
            for (int g = 0; g < Groups; g++) {
                mma<E>(sums[g][2 * d], a[g], b[0], b[1]);
                mma<E>(sums[g][2 * d + 1], a[g], b[2], b[3]);
            }
        }
    }
}

/// Writes a warp's results (16·Groups, D), each row times its factor, to rows `first` to `end` - 1 of `to`, `stride`
/// elements apart. They go through the warp's own rows of shared memory, so that whole rows go out.
template <typename E, int D, int Groups>
DEVICE void write_rows(const float (&sums)[Groups][D / 8][4], const float (&factors)[Groups][2], E *shared, E *to,
                       long long stride, int first, int end) {
    constexpr int ROW = ROW_LENGTH<E, D>;
    const int lane = threadIdx.x % 32;
    sync_warp();
#pragma unroll
    for (int g = 0; g < Groups; g++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            E *const row = shared + (g * 16 + lane / 4 + half * 8) * ROW + lane % 4 * 2;
            const float factor = factors[g][half];
#pragma unroll
            for (int d = 0; d < D / 8; d++)
                *reinterpret_cast<uint32_t *>(row + d * 8) =
                    pack<E>(sums[g][d][2 * half] * factor, sums[g][d][2 * half + 1] * factor);
        }
    sync_warp();
    for (int i = lane; i < 16 * Groups * (D / 8); i += 32) {
        const int row = i / (D / 8), unit = i % (D / 8);
        if (first + row >= end) break;
        reinterpret_cast<uint4 *>(to + (first + row) * stride)[unit] = *reinterpret_cast<const uint4 *>(shared + row * ROW + unit * 8);
    }
}
