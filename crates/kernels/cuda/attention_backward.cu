// The gradients of causal attention in f16 and bf16 on tensor cores (Dao 2023, "FlashAttention-2", algorithm 2, in two
// kernels, so that no sum depends on the order in which blocks run). Both compute the weights again from the saved
// logarithms of the rows' sums. With scores s = q·kᵀ, weights p, kept and scaled ones p̃ = p∘m, and dp = (do·vᵀ)∘m:
//
//   ds = p∘(dp - delta),  delta = Σ do·out of a query,  dq = scale·ds·k,  dk = scale·dsᵀ·q,  dv = p̃ᵀ·do
#include "masks.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32, OWN = WARPS * 16;

/// The tensors of a backward pass: q, do (B, H, T, D), k, v (B, H, S, D), and for each query (B, H, T) the logarithm of
/// its sum and its delta. do and the gradients are contiguous as (B, positions, H, D).
template <typename E> struct Tensors {
    const E *q, *k, *v, *grad;
    const uint8_t *padding;
    const float *log_sums, *deltas;
};

/// One tile of 64 rows, a warp owning 16 of them, against tiles of `Others` rows. If `OfKeys`, own rows are keys and
/// values, the others queries and their do, and the results dk and dv; otherwise own rows are queries, the others keys,
/// and the result is dq. In both cases the first product of own and other rows gives the scores, the second gives dp.
template <typename E, int D, int Others, bool OfKeys>
DEVICE void differentiate(const Tensors<E> &tensors, E *to_first, E *to_second, const Shape &shape, const Masks &masks) {
    constexpr int ROW = ROW_LENGTH<E, D>, QUERIES = OfKeys ? Others : OWN, KEYS = OfKeys ? OWN : Others;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    const int own_count = OfKeys ? shape.keys : shape.queries, other_count = OfKeys ? shape.queries : shape.keys;
    Place place = place_of(blockIdx.x, gridDim.x, own_count, OWN, shape);
    // The first keys are seen by the most queries.
    if (OfKeys) place.tile = (own_count + OWN - 1) / OWN - 1 - place.tile;
    const auto [tile, b, h] = place;
    const long long of_head = static_cast<long long>(b) * shape.heads + h;
    const Strides grad_strides = {static_cast<long long>(shape.queries) * shape.heads * D, D, static_cast<long long>(shape.heads) * D};
    const auto head = [b = b, h = h](const E *x, const Strides &strides) { return x + b * strides.batch + h * strides.head; };
    const E *const q = head(tensors.q, shape.q), *const k = head(tensors.k, shape.k);
    const E *const v = head(tensors.v, shape.v), *const grad = head(tensors.grad, grad_strides);
    const float *const log_sums = tensors.log_sums + of_head * shape.queries, *const deltas = tensors.deltas + of_head * shape.queries;
    const uint8_t *const padding = tensors.padding ? tensors.padding + static_cast<long long>(b) * shape.keys : nullptr;

    const int past = shape.keys - shape.queries, first = tile * OWN, top = first + warp * 16;
    // The other rows that matter: queries that see the tile's first key, or keys that the tile's last query sees.
    const int from = OfKeys ? (first > past ? (first - past) / Others * Others : 0) : 0;
    const int end = OfKeys ? shape.queries : past + min(first + OWN, shape.queries);
    const int steps = (end - from + Others - 1) / Others; // at least one

    E *const own_rows = static_cast<E *>(shared_memory());                             // (OWN, ROW): q or k
    E *const own_second = own_rows + OWN * ROW;                                        // (OWN, ROW): do or v
    E *const other_rows = own_second + OWN * ROW;                                      // 2 x (Others, ROW): k or q
    E *const other_second = other_rows + 2 * Others * ROW;                             // 2 x (Others, ROW): v or do
    float *const numbers = reinterpret_cast<float *>(other_second + 2 * Others * ROW); // 2 x 2 x (QUERIES)
    uint32_t *const words = reinterpret_cast<uint32_t *>(numbers + 4 * QUERIES);
    const Bits bits = {words, words + QUERIES * KEYS / 32};
    const auto copy_others = [&](int step) {
        const int start = from + step * Others, to = step % 2 * Others * ROW;
        copy_rows<E, Others, D, THREADS>(other_rows + to, OfKeys ? q : k, OfKeys ? shape.q.position : shape.k.position, start, other_count);
        copy_rows<E, Others, D, THREADS>(other_second + to, OfKeys ? grad : v, OfKeys ? grad_strides.position : shape.v.position, start,
                                         other_count);
    };
    // A query past the end counts as one that sees no key.
    const auto copy_numbers = [&](int buffer, int query) {
        for (int i = threadIdx.x; i < QUERIES; i += THREADS) {
            const bool there = query + i < shape.queries;
            numbers[buffer * 2 * QUERIES + i] = there ? log_sums[query + i] : INFINITE;
            numbers[buffer * 2 * QUERIES + QUERIES + i] = there ? deltas[query + i] : 0;
        }
    };
    copy_rows<E, OWN, D, THREADS>(own_rows, OfKeys ? k : q, OfKeys ? shape.k.position : shape.q.position, first, own_count);
    copy_rows<E, OWN, D, THREADS>(own_second, OfKeys ? v : grad, OfKeys ? shape.v.position : grad_strides.position, first, own_count);
    copy_others(0);
    copy_numbers(0, OfKeys ? from : first);

    if (OfKeys && padding) { // their scores are hidden, but dp meets their v
        copies_arrived();
        clear_padding<E, OWN, D, THREADS>(own_second, padding, first, own_count);
    }

    const bool masked = masks.hidden_starts || masks.threshold;
    Rows<E, D, 1, false> own = {own_rows + warp * 16 * ROW}, second = {own_second + warp * 16 * ROW};
    float found[1][D / 8][4] = {}, found_second[1][OfKeys ? D / 8 : 1][4] = {}; // dq, or dk and dv

    for (int step = 0; step < steps; step++) {
        const int start = from + step * Others;
        copies_arrived();
        if (!OfKeys && padding)
            clear_padding<E, Others, D, THREADS, 2 * Others * ROW>(other_rows + step % 2 * Others * ROW, padding, start, other_count);
        sync_block(); // also: no thread still reads the other half of the memory
        if (step + 1 < steps) {
            copy_others(step + 1);
            if (OfKeys) copy_numbers((step + 1) % 2, start + Others);
        }
        if (masked) {
            fill_bits<QUERIES, KEYS, THREADS>(bits, masks, place, OfKeys ? start : first, OfKeys ? first : start, shape);
            sync_block();
        }
        // Other warps' rows meet these, but this warp's might not.
        if (top >= own_count || (OfKeys ? start + Others - 1 + past < top : start > past + top + 15)) continue;
        const E *const others = other_rows + step % 2 * Others * ROW, *const others_second = other_second + step % 2 * Others * ROW;
        const float *const of_queries = numbers + (OfKeys ? step % 2 * 2 * QUERIES : warp * 16);

        Visible pairs = {~0u, ~0u};
        if (!OfKeys && padding) pairs = visible_keys<KEYS>(padding, start, shape.keys);

        float weights[1][Others / 8][4] = {}, grads[1][Others / 8][4] = {};
        multiply_rows<E, D, 1, false, Others>(weights, own, others);
        multiply_rows<E, D, 1, false, Others>(grads, second, others_second);
        // Of own keys, their positions; padding is at a position that no query sees.
        int own_keys[2] = {};
#pragma unroll
        for (int half = 0; OfKeys && half < 2; half++) {
            const int row = top + lane / 4 + half * 8;
            own_keys[half] = !padding || (row < own_count && padding[row]) ? row : 0x7fffffff;
        }
#pragma unroll
        for (int j = 0; j < Others / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int own_row = lane / 4 + e / 2 * 8, other = j * 8 + lane % 4 * 2 + e % 2;
                const int query = OfKeys ? other : own_row; // within `of_queries`
                const int key_at = OfKeys ? own_keys[e / 2] : start + other, query_at = OfKeys ? start + other : top + own_row;
                bool hidden = key_at > past + query_at;
                if (!OfKeys) hidden |= !((e % 2 ? pairs.odd : pairs.even) >> (j * 4 + lane % 4) & 1);
                const uint32_t *row = nullptr;
                const int key = OfKeys ? warp * 16 + own_row : other; // within the tile
                if (masked) {
                    row = bits.hidden + (OfKeys ? query : warp * 16 + query) * (KEYS / 32);
                    hidden |= is_set(row, key);
                }
                const float weight = hidden ? 0 : exp2_fast(fmaf(weights[0][j][e], shape.scale, -of_queries[query]));
                const bool dropped = masked && is_set(row + QUERIES * KEYS / 32, key);
                const float grad = dropped ? 0 : grads[0][j][e] * masks.kept;
                weights[0][j][e] = dropped ? 0 : weight;
                grads[0][j][e] = weight * (grad - of_queries[QUERIES + query]);
            }
        add_weighted_rows<E, D, 1, Others>(found, grads, others);
        if constexpr (OfKeys) add_weighted_rows<E, D, 1, Others>(found_second, weights, others_second);
    }

    const long long stride = static_cast<long long>(shape.heads) * D, at = (static_cast<long long>(b) * own_count * shape.heads + h) * D;
    float factors[1][2], factors_second[1][2];
    factors[0][0] = factors[0][1] = shape.scale * LN_2;
    factors_second[0][0] = factors_second[0][1] = masks.kept;
    write_rows<E, D, 1>(found, factors, own_rows + warp * 16 * ROW, to_first + at, stride, top, own_count);
    if constexpr (OfKeys) write_rows<E, D, 1>(found_second, factors_second, own_rows + warp * 16 * ROW, to_second + at, stride, top, own_count);
}

/// How many rows a tile meets at a time: as many as the registers suffice for.
template <int D> static constexpr int OTHERS = CAPABILITY >= 80 && D <= 64 ? 64 : 32;

#define GRADIENTS(E, D)                                                                                                       \
    KERNEL(THREADS, CAPABILITY < 80 ? 1 : CAPABILITY < 90 ? 2 : 3)                                                            \
    gradient_of_queries_##E##_d##D(const E *q, const E *k, const E *v, const uint8_t *padding, const E *grad,                 \
                                   const float *log_sums, const float *deltas, E *dq, Shape shape, Masks masks) {             \
        differentiate<E, D, OTHERS<D>, false>({q, k, v, grad, padding, log_sums, deltas}, dq, nullptr, shape, masks);            \
    }                                                                                                                         \
    KERNEL(THREADS, CAPABILITY < 80 ? 1 : 2)                                                                                  \
    gradient_of_keys_##E##_d##D(const E *q, const E *k, const E *v, const uint8_t *padding, const E *grad,                    \
                                const float *log_sums, const float *deltas, E *dk, E *dv, Shape shape, Masks masks) {         \
        differentiate<E, D, OTHERS<D>, true>({q, k, v, grad, padding, log_sums, deltas}, dk, dv, shape, masks);                  \
    }
// Before 8.0, a block's shared memory has no room for D 128.
#define ALL_WIDTHS(E)                                                                                                         \
    GRADIENTS(E, 32)                                                                                                      \
    GRADIENTS(E, 64)                                                                                                      \
    GRADIENTS(E, 80)                                                                                                      \
    GRADIENTS(E, 96)
ALL_WIDTHS(f16)
#if CAPABILITY >= 80
ALL_WIDTHS(bf16)
GRADIENTS(f16, 128)
GRADIENTS(bf16, 128)
#endif
