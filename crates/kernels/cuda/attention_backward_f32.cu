// The gradients of causal attention in f32: attention_backward.cu with plain multiply-adds, one tile of other rows at a
// time.
#include "f32.cuh"

/// One tile of 64 rows against tiles of 32 others. If `OfKeys`, own rows are keys and values, the others queries and
/// their do, and the results dk and dv; otherwise own rows are queries, the others keys, and the result is dq.
template <int D, bool OfKeys>
DEVICE void differentiate(const float *q, const float *k, const float *v, const uint8_t *padding, const float *grad,
                          const float *log_sums, const float *deltas, float *to_first, float *to_second, const Shape &shape,
                          const Masks &masks) {
    constexpr int ROW = ROW_LENGTH<float, D>, PAIRS = D / 2 / ACROSS;
    constexpr int QUERIES = OfKeys ? OTHERS : OWN, KEYS = OfKeys ? OWN : OTHERS;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS * EACH;

    const int own_count = OfKeys ? shape.keys : shape.queries, other_count = OfKeys ? shape.queries : shape.keys;
    Place place = place_of(blockIdx.x, gridDim.x, own_count, OWN, shape);
    // The first keys are seen by the most queries.
    if (OfKeys) place.tile = (own_count + OWN - 1) / OWN - 1 - place.tile;
    const auto [tile, b, h] = place;
    const long long of_head = static_cast<long long>(b) * shape.heads + h, stride = static_cast<long long>(shape.heads) * D;
    q += b * shape.q.batch + h * shape.q.head;
    k += b * shape.k.batch + h * shape.k.head;
    v += b * shape.v.batch + h * shape.v.head;
    grad += (b * static_cast<long long>(shape.queries) * shape.heads + h) * D;
    log_sums += of_head * shape.queries;
    deltas += of_head * shape.queries;
    if (padding) padding += static_cast<long long>(b) * shape.keys;

    const int past = shape.keys - shape.queries, first = tile * OWN, top = first + down;
    // The other rows that matter: queries that see the tile's first key, or keys that the tile's last query sees.
    const int from = OfKeys ? (first > past ? (first - past) / OTHERS * OTHERS : 0) : 0;
    const int end = OfKeys ? shape.queries : past + min(first + OWN, shape.queries);

    float *const own_rows = static_cast<float *>(shared_memory()); // (OWN, ROW): q or k
    float *const own_second = own_rows + OWN * ROW;                // (OWN, ROW): do or v
    float *const other_rows = own_second + OWN * ROW;              // (OTHERS, ROW): k or q
    float *const other_second = other_rows + OTHERS * ROW;         // (OTHERS, ROW): v or do
    float *const weights = other_second + OTHERS * ROW;            // (OWN, WEIGHT_ROW): what multiplies other_second
    float *const grads = weights + OWN * WEIGHT_ROW;               // (OWN, WEIGHT_ROW): what multiplies other_rows
    float *const numbers = grads + OWN * WEIGHT_ROW;               // 2 x (QUERIES)
    uint32_t *const words = reinterpret_cast<uint32_t *>(numbers + 2 * QUERIES);
    const Bits bits = {words, words + QUERIES * KEYS / 32};
    const auto copy_numbers = [&](int query) {
        for (int i = threadIdx.x; i < QUERIES; i += THREADS) {
            const bool there = query + i < shape.queries; // a query past the end counts as one that sees no key
            numbers[i] = there ? log_sums[query + i] : INFINITE;
            numbers[QUERIES + i] = there ? deltas[query + i] : 0;
        }
    };
    copy_rows<float, OWN, D, THREADS>(own_rows, OfKeys ? k : q, OfKeys ? shape.k.position : shape.q.position, first, own_count);
    copy_rows<float, OWN, D, THREADS>(own_second, OfKeys ? v : grad, OfKeys ? shape.v.position : stride, first, own_count);
    if (!OfKeys) copy_numbers(first);

    const bool masked = masks.hidden_starts || masks.threshold;
    float found[EACH][PAIRS][2] = {}, found_second[EACH][OfKeys ? PAIRS : 1][2] = {}; // dq, or dk and dv
    for (int start = from; start < end; start += OTHERS) {
        sync_block(); // no thread still reads the previous rows
        copy_rows<float, OTHERS, D, THREADS>(other_rows, OfKeys ? q : k, OfKeys ? shape.q.position : shape.k.position, start, other_count);
        copy_rows<float, OTHERS, D, THREADS>(other_second, OfKeys ? grad : v, OfKeys ? stride : shape.v.position, start, other_count);
        if (OfKeys) copy_numbers(start);
        if (masked) fill_bits<QUERIES, KEYS, THREADS>(bits, masks, place, OfKeys ? start : first, OfKeys ? first : start, shape);
        copies_arrived();
        if (!OfKeys && padding) clear_padding<float, OTHERS, D, THREADS, OTHERS * ROW>(other_rows, padding, start, other_count);
        sync_block();

        float scores[EACH][OTHERS / ACROSS] = {}, products[EACH][OTHERS / ACROSS] = {};
        multiply_rows<D>(scores, own_rows, other_rows);
        multiply_rows<D>(products, own_second, other_second);
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < OTHERS / ACROSS; j++) {
                const int other = j * ACROSS + across, query = OfKeys ? other : down + i, key = OfKeys ? down + i : other;
                const int key_at = (OfKeys ? first : start) + key, query_at = (OfKeys ? start : first) + query;
                bool hidden = key_at > past + query_at || (padding && (key_at >= shape.keys || !padding[key_at]));
                bool dropped = false;
                if (masked) {
                    const uint32_t *const row = bits.hidden + query * (KEYS / 32);
                    hidden |= is_set(row, key);
                    dropped = is_set(row + QUERIES * KEYS / 32, key);
                }
                const float weight = hidden ? 0 : exp2_fast(fmaf(scores[i][j], shape.scale, -numbers[query]));
                // Of padding among own keys, dp may be NaN: no register is left to clear their v.
                const float product = dropped || (OfKeys && hidden) ? 0 : products[i][j] * masks.kept;
                const int at = (down + i) * WEIGHT_ROW + other;
                if (OfKeys) weights[at] = dropped ? 0 : weight;
                grads[at] = weight * (product - numbers[QUERIES + query]);
            }
        sync_warp(); // the 8 threads that share rows are in one warp
        add_weighted_rows<D>(found, grads, other_rows);
        if constexpr (OfKeys) add_weighted_rows<D>(found_second, weights, other_second);
    }

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (top + i >= own_count) continue;
        const long long at = (static_cast<long long>(b) * own_count + top + i) * stride + h * D;
        write_row<D>(to_first + at, found[i], shape.scale * LN_2);
        if constexpr (OfKeys) write_row<D>(to_second + at, found_second[i], masks.kept);
    }
}

#define GRADIENTS(D)                                                                                                          \
    KERNEL(THREADS, D == 32 ? 3 : 2)                                                                                          \
    gradient_of_queries_f32_d##D(const float *q, const float *k, const float *v, const uint8_t *padding, const float *grad,   \
                                 const float *log_sums, const float *deltas, float *dq, Shape shape, Masks masks) {           \
        differentiate<D, false>(q, k, v, padding, grad, log_sums, deltas, dq, nullptr, shape, masks);                         \
    }                                                                                                                         \
    KERNEL(THREADS, D == 32 ? 3 : 2)                                                                                          \
    gradient_of_keys_f32_d##D(const float *q, const float *k, const float *v, const uint8_t *padding, const float *grad,      \
                              const float *log_sums, const float *deltas, float *dk, float *dv, Shape shape, Masks masks) {   \
        differentiate<D, true>(q, k, v, padding, grad, log_sums, deltas, dk, dv, shape, masks);                               \
    }
GRADIENTS(32)
GRADIENTS(64)
GRADIENTS(80)
GRADIENTS(96)
GRADIENTS(128)
