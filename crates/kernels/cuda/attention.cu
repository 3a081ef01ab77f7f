// Causal attention in f16 and bf16 on tensor cores, in the manner of FlashAttention-2 (Dao 2023, "FlashAttention-2:
// Faster Attention with Better Parallelism and Work Partitioning", algorithm 1): a block walks a tile of queries
// through the keys that it sees, with an online softmax (Milakov and Gimelshein 2018), and never holds anything of
// size (T, S).
#include "masks.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;
/// The fewest blocks that a multiprocessor has to hold at once: as many as its shared memory has room for, if the
/// registers then suffice. Of tiles of 64 queries and D 64, only 9.0 has room for a fourth.
constexpr int blocks_at_once(int d, int queries) {
#if CAPABILITY < 80
    return d == 32 ? 2 : 1;
#else
    return queries == 128 ? 2 : d == 64 ? (CAPABILITY < 90 ? 3 : 4) : d == 128 ? 3 : 4;
#endif
}

/// One tile of `WARPS * 16 * Groups` queries of one head, `Keys` keys at a time. A warp owns `16 * Groups` queries and
/// reads each fragment of k and v once for all of them. `Masked` kernels also know hidden keys and dropout. If
/// `log_sums` (B, H, T) is not null, it gets the base-2 logarithm of each row's sum of weights before division.
template <typename E, int D, int Groups, int Keys, bool Masked>
DEVICE void attend(const E *q, const E *k, const E *v, const uint8_t *padding, E *out, float *log_sums, const Shape &shape,
                   const Masks &masks) {
    constexpr int ROWS = 16 * Groups, QUERIES = WARPS * ROWS, ROW = ROW_LENGTH<E, D>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    const Place place = place_of(blockIdx.x, gridDim.x, shape.queries, QUERIES, shape);
    const auto [tile, b, h] = place;
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
    uint32_t *const words = reinterpret_cast<uint32_t *>(v_rows + 2 * Keys * ROW);
    const Bits bits = {words, words + QUERIES * Keys / 32}; // of `Masked` kernels
    const auto copy_keys = [&](int step) {
        const int to = step % 2 * Keys * ROW;
        copy_rows<E, Keys, D, THREADS>(k_rows + to, k, shape.k.position, step * Keys, shape.keys);
        copy_rows<E, Keys, D, THREADS>(v_rows + to, v, shape.v.position, step * Keys, shape.keys);
    };
    copy_rows<E, QUERIES, D, THREADS>(q_rows, q, shape.q.position, first, shape.queries);
    copy_keys(0);

    const int top = first + warp * ROWS; // the warp's first query
    E *const own_rows = q_rows + warp * ROWS * ROW;
    Rows<E, D, Groups, D <= 64> queries = {own_rows}; // with wider heads no registers are left to hold them

    float context[Groups][D / 8][4] = {};
    float largest[Groups][2], sum[Groups][2] = {}; // of rows lane / 4 and lane / 4 + 8; a lane sums its own columns
#pragma unroll
    for (int g = 0; g < Groups; g++) largest[g][0] = largest[g][1] = -INFINITE;

    for (int step = 0; step < steps; step++) {
        const int start = step * Keys;
        copies_arrived();
        if (visible) clear_padding<E, Keys, D, THREADS>(v_rows + step % 2 * Keys * ROW, visible, start, shape.keys);
        sync_block(); // also: no thread still reads the other half of the memory
        if (step + 1 < steps) copy_keys(step + 1);
        if (Masked) {
            fill_bits<QUERIES, Keys, THREADS>(bits, masks, place, first, start, shape);
            sync_block();
        }
        if (step == 0) queries.hold();
        // The tile's last query sees these keys, but this warp's queries might not.
        if (top >= shape.queries || start >= past + top + ROWS) continue;
        const E *const k_tile = k_rows + step % 2 * Keys * ROW, *const v_tile = v_rows + step % 2 * Keys * ROW;
        Visible pairs = {~0u, ~0u};
        if (visible) pairs = visible_keys<Keys>(visible, start, shape.keys);

        float scores[Groups][Keys / 8][4] = {};
        multiply_rows<E, D, Groups, D <= 64, Keys>(scores, queries, k_tile);

        if (Masked || visible || start + Keys > past + top + 1) {
#pragma unroll
            for (int g = 0; g < Groups; g++)
#pragma unroll
                for (int j = 0; j < Keys / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int row = g * 16 + lane / 4 + e / 2 * 8, column = j * 8 + lane % 4 * 2 + e % 2;
                        bool hidden = start + column > past + top + row;
                        hidden |= !((e % 2 ? pairs.odd : pairs.even) >> (j * 4 + lane % 4) & 1);
                        if (Masked) hidden |= is_set(bits.hidden + (warp * ROWS + row) * (Keys / 32), column);
                        if (hidden) scores[g][j][e] = -INFINITE;
                    }
        }

#pragma unroll
        for (int g = 0; g < Groups; g++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float now = largest[g][half];
#pragma unroll
                for (int j = 0; j < Keys / 8; j++) now = fmaxf(now, fmaxf(scores[g][j][2 * half], scores[g][j][2 * half + 1]));
                now = fmaxf(now, shuffle_xor(now, 1));
                now = fmaxf(now, shuffle_xor(now, 2));
                // If the row has seen no key yet, every weight becomes 2^-inf.
                const float base = now == -INFINITE ? 0 : now * shape.scale;
                const float fade = exp2_fast(largest[g][half] * shape.scale - base);
                largest[g][half] = now;
                sum[g][half] *= fade;
#pragma unroll
                for (int j = 0; j < Keys / 8; j++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        scores[g][j][e] = exp2_fast(fmaf(scores[g][j][e], shape.scale, -base));
                        sum[g][half] += scores[g][j][e];
                    }
#pragma unroll
                for (int d = 0; d < D / 8; d++) {
                    context[g][d][2 * half] *= fade;
                    context[g][d][2 * half + 1] *= fade;
                }
            }
        if (Masked && masks.threshold) { // dropped weights count in the sum, but add no value
#pragma unroll
            for (int g = 0; g < Groups; g++)
#pragma unroll
                for (int j = 0; j < Keys / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int row = warp * ROWS + g * 16 + lane / 4 + e / 2 * 8;
                        if (is_set(bits.dropped + row * (Keys / 32), j * 8 + lane % 4 * 2 + e % 2)) scores[g][j][e] = 0;
                    }
        }
        add_weighted_rows<E, D, Groups, Keys>(context, scores, v_tile);
    }

    float factors[Groups][2];
#pragma unroll
    for (int g = 0; g < Groups; g++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float all = sum[g][half];
            all += shuffle_xor(all, 1);
            all += shuffle_xor(all, 2);
            factors[g][half] = all == 0 ? 0 : (Masked ? masks.kept : 1) / all;
            const int row = top + g * 16 + lane / 4 + half * 8;
            if (log_sums && lane % 4 == 0 && row < shape.queries)
                // Of a row that sees no key, every weight becomes 2^-inf in the backward pass.
                log_sums[(static_cast<long long>(b) * shape.heads + h) * shape.queries + row] =
                    all == 0 ? INFINITE : fmaf(largest[g][half], shape.scale, log2_fast(all));
        }
    const long long stride = static_cast<long long>(shape.heads) * D;
    write_rows<E, D, Groups>(context, factors, own_rows, out + (static_cast<long long>(b) * shape.queries * shape.heads + h) * D,
                             stride, top, shape.queries);
}

#define ATTENTION(E, D, QUERIES, KEYS)                                                                                        \
    KERNEL(THREADS, blocks_at_once(D, QUERIES))                                                                               \
    attention_##E##_d##D##_q##QUERIES(const E *q, const E *k, const E *v, const uint8_t *padding, E *out, float *log_sums,    \
                                      Shape shape) {                                                                          \
        attend<E, D, QUERIES / 16 / WARPS, KEYS, false>(q, k, v, padding, out, log_sums, shape, {});                          \
    }
#define MASKED(E, D, KEYS)                                                                                                    \
    KERNEL(THREADS, CAPABILITY < 80 ? 1 : D < 96 ? 3 : 2)                                                                     \
    attention_masked_##E##_d##D(const E *q, const E *k, const E *v, const uint8_t *padding, E *out, float *log_sums,          \
                                Shape shape, Masks masks) {                                                                   \
        attend<E, D, 1, KEYS, true>(q, k, v, padding, out, log_sums, shape, masks);                                           \
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
    ATTENTION(E, 128, 64, 32)                                                                                                 \
    MASKED(E, 32, 64)                                                                                                         \
    MASKED(E, 64, 64)                                                                                                         \
    MASKED(E, 80, 32)                                                                                                         \
    MASKED(E, 96, 32)                                                                                                         \
    MASKED(E, 128, 32)
ALL_WIDTHS(f16)
#if HAS_BF16
ALL_WIDTHS(bf16)
#endif
