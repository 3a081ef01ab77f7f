// Causal attention in f16 and bf16 on tensor cores, in the manner of FlashAttention-2 (Dao 2023, "FlashAttention-2:
// Faster Attention with Better Parallelism and Work Partitioning", algorithm 1): a block walks a tile of queries
// through the keys that it sees, with an online softmax (Milakov and Gimelshein 2018), and never holds anything of
// size (T, S).
#include "device.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;

/// One tile of `WARPS * 16 * Rows16` queries of one head, `Keys` keys at a time. A warp owns `16 * Rows16` queries and
/// reads each fragment of k and v once for all of them.
///
/// Fragments are laid out as for mma.m16n8k16: of a (16, 8) result, lane i holds columns i % 4 * 2 and i % 4 * 2 + 1 of
/// row i / 4 ([0], [1]) and of row i / 4 + 8 ([2], [3]).
template <typename E, int D, int Rows16, int Keys>
DEVICE void attend(const E *q, const E *k, const E *v, const uint8_t *padding, E *out, const Shape &shape) {
    constexpr int ROWS = 16 * Rows16, QUERIES = WARPS * ROWS, ROW = ROW_LENGTH<E, D>;
    // With wider heads no registers are left to hold q.
    constexpr bool HOLD_Q = D <= 64;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    const auto [tile, b, h] = place_of(blockIdx.x, gridDim.x, QUERIES, shape);
    q += b * shape.q.batch + h * shape.q.head;
    k += b * shape.k.batch + h * shape.k.head;
    v += b * shape.v.batch + h * shape.v.head;
    const uint8_t *visible = padding ? padding + static_cast<long long>(b) * shape.keys : nullptr;

    const int past = shape.keys - shape.queries, first = tile * QUERIES;
    const int seen = past + min(first + QUERIES, shape.queries); // keys that the tile's last query sees
    const int steps = (seen + Keys - 1) / Keys;

    E *const q_rows = static_cast<E *>(shared_memory()); // (QUERIES, ROW)
    E *const k_rows = q_rows + QUERIES * ROW;            // 2 x (Keys, ROW)
    E *const v_rows = k_rows + 2 * Keys * ROW;           // 2 x (Keys, ROW)
    const auto copy_keys = [&](int step) {
        const int to = step % 2 * Keys * ROW;
        copy_rows<E, Keys, D, THREADS>(k_rows + to, k, shape.k.position, step * Keys, shape.keys);
        copy_rows<E, Keys, D, THREADS>(v_rows + to, v, shape.v.position, step * Keys, shape.keys);
    };
    copy_rows<E, QUERIES, D, THREADS>(q_rows, q, shape.q.position, first, shape.queries);
    copy_keys(0);

    const int top = first + warp * ROWS; // the warp's first query
    E *const own_rows = q_rows + warp * ROWS * ROW;
    uint32_t a[Rows16][HOLD_Q ? D / 16 : 1][4];
    const auto load_q = [&](int r, int d) {
        load_matrices(a[r][HOLD_Q ? d : 0], own_rows + (r * 16 + lane % 16) * ROW + d * 16 + lane / 16 * 8);
    };

    float context[Rows16][D / 8][4] = {};
    float largest[Rows16][2], sum[Rows16][2] = {}; // of rows lane / 4 and lane / 4 + 8; a lane sums its own columns
#pragma unroll
    for (int r = 0; r < Rows16; r++) largest[r][0] = largest[r][1] = -INFINITE;

    for (int step = 0; step < steps; step++) {
        copies_arrived();
        sync_block(); // also: no thread still reads the other half of the memory
        if (step + 1 < steps) copy_keys(step + 1);
        if (HOLD_Q && step == 0) {
#pragma unroll
            for (int r = 0; r < Rows16; r++)
#pragma unroll
                for (int d = 0; d < D / 16; d++) load_q(r, d);
        }
        const int start = step * Keys;
        // The tile's last query sees these keys, but this warp's queries might not.
        if (top >= shape.queries || start >= past + top + ROWS) continue;
        const E *const k_tile = k_rows + step % 2 * Keys * ROW, *const v_tile = v_rows + step % 2 * Keys * ROW;

        float scores[Rows16][Keys / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            if (!HOLD_Q) {
#pragma unroll
                for (int r = 0; r < Rows16; r++) load_q(r, d);
            }
#pragma unroll
            for (int j = 0; j < Keys / 16; j++) {
                uint32_t b[4];
                load_matrices(b, k_tile + (j * 16 + lane / 16 * 8 + lane % 8) * ROW + d * 16 + lane / 8 % 2 * 8);
#pragma unroll
                for (int r = 0; r < Rows16; r++) {
                    mma<E>(scores[r][2 * j], a[r][HOLD_Q ? d : 0], b[0], b[1]);
                    mma<E>(scores[r][2 * j + 1], a[r][HOLD_Q ? d : 0], b[2], b[3]);
                }
            }
        }

        if (visible || start + Keys > past + top + 1) {
#pragma unroll
            for (int r = 0; r < Rows16; r++)
#pragma unroll
                for (int j = 0; j < Keys / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int query = top + r * 16 + lane / 4 + e / 2 * 8;
                        const int key = start + j * 8 + lane % 4 * 2 + e % 2;
                        if (key >= shape.keys || key > past + query || (visible && !visible[key])) scores[r][j][e] = -INFINITE;
                    }
        }

#pragma unroll
        for (int r = 0; r < Rows16; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float now = largest[r][half];
#pragma unroll
                for (int j = 0; j < Keys / 8; j++) now = fmaxf(now, fmaxf(scores[r][j][2 * half], scores[r][j][2 * half + 1]));
                now = fmaxf(now, shuffle_xor(now, 1));
                now = fmaxf(now, shuffle_xor(now, 2));
                // If the row has seen no key yet, every weight becomes 2^-inf.
                const float base = now == -INFINITE ? 0 : now * shape.scale;
                const float fade = exp2_fast(largest[r][half] * shape.scale - base);
                largest[r][half] = now;
                sum[r][half] *= fade;
#pragma unroll
                for (int j = 0; j < Keys / 8; j++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        scores[r][j][e] = exp2_fast(fmaf(scores[r][j][e], shape.scale, -base));
                        sum[r][half] += scores[r][j][e];
                    }
#pragma unroll
                for (int d = 0; d < D / 8; d++) {
                    context[r][d][2 * half] *= fade;
                    context[r][d][2 * half + 1] *= fade;
                }
            }

#pragma unroll
        for (int j = 0; j < Keys / 16; j++) {
            uint32_t weights[Rows16][4]; // two (16, 8) results side by side are one (16, 16) operand
#pragma unroll
            for (int r = 0; r < Rows16; r++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float(&part)[4] = scores[r][2 * j + e / 2];
                    weights[r][e] = pack<E>(part[e % 2 * 2], part[e % 2 * 2 + 1]);
                }
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t b[4];
                load_matrices_transposed(b, v_tile + (j * 16 + lane % 16) * ROW + d * 16 + lane / 16 * 8);
#pragma unroll
                for (int r = 0; r < Rows16; r++) {
                    mma<E>(context[r][2 * d], weights[r], b[0], b[1]);
                    mma<E>(context[r][2 * d + 1], weights[r], b[2], b[3]);
                }
            }
        }
    }

    // Writes go through the warp's own rows of shared memory, so that whole rows go out.
    sync_warp();
#pragma unroll
    for (int r = 0; r < Rows16; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float all = sum[r][half];
            all += shuffle_xor(all, 1);
            all += shuffle_xor(all, 2);
            const float factor = all == 0 ? 0 : 1 / all;
            E *const row = own_rows + (r * 16 + lane / 4 + half * 8) * ROW + lane % 4 * 2;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
                *reinterpret_cast<uint32_t *>(row + d * 8) =
                    pack<E>(context[r][d][2 * half] * factor, context[r][d][2 * half + 1] * factor);
        }
    sync_warp();
    for (int i = lane; i < ROWS * (D / 8); i += 32) {
        const int row = i / (D / 8), unit = i % (D / 8);
        if (top + row >= shape.queries) break;
        E *const to = out + ((static_cast<long long>(b) * shape.queries + top + row) * shape.heads + h) * D;
        reinterpret_cast<uint4 *>(to)[unit] = *reinterpret_cast<const uint4 *>(own_rows + row * ROW + unit * 8);
    }
}

#define ATTENTION(E, D, QUERIES, KEYS)                                                                                        \
    KERNEL(THREADS)                                                                                                           \
    attention_##E##_d##D##_q##QUERIES(const E *q, const E *k, const E *v, const uint8_t *padding, E *out, Shape shape) {      \
        attend<E, D, QUERIES / 16 / WARPS, KEYS>(q, k, v, padding, out, shape);                                               \
    }
// Tiles of 128 queries use each fragment of k and v twice, if the registers can hold two sets of rows; tiles of 64
// give a small problem more blocks.
#define ALL_WIDTHS(E)                                                                                                         \
    ATTENTION(E, 32, 128, 64)                                                                                                 \
    ATTENTION(E, 32, 64, 64)                                                                                                  \
    ATTENTION(E, 64, 128, 64)                                                                                                 \
    ATTENTION(E, 64, 64, 64)                                                                                                  \
    ATTENTION(E, 80, 128, 32)                                                                                                 \
    ATTENTION(E, 80, 64, 32)                                                                                                  \
    ATTENTION(E, 96, 128, 32)                                                                                                 \
    ATTENTION(E, 96, 64, 32)                                                                                                  \
    ATTENTION(E, 128, 64, 32)
ALL_WIDTHS(f16)
ALL_WIDTHS(bf16)
