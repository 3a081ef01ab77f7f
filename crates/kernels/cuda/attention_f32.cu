// Causal attention in f32 with plain multiply-adds: the tensor cores would round to 10 bits. The tiles of queries are
// as in attention.cu, with one tile of keys at a time.
#include "f32.cuh"

/// The fewest blocks that a multiprocessor has to hold at once: as many as the registers suffice for.
constexpr int blocks_at_once(int d) { return d == 32 ? 4 : d <= 80 ? 3 : 2; }

template <int D, bool Masked>
DEVICE void attend(const float *q, const float *k, const float *v, const uint8_t *padding, float *out, float *log_sums,
                   const Shape &shape, const Masks &masks) {
    constexpr int ROW = ROW_LENGTH<float, D>, PAIRS = D / 2 / ACROSS;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS * EACH;

    const Place place = place_of(blockIdx.x, gridDim.x, shape.queries, OWN, shape);
    const auto [tile, b, h] = place;
    q += b * shape.q.batch + h * shape.q.head;
    k += b * shape.k.batch + h * shape.k.head;
    v += b * shape.v.batch + h * shape.v.head;
    const uint8_t *visible = padding ? padding + static_cast<long long>(b) * shape.keys : nullptr;

    const int past = shape.keys - shape.queries, first = tile * OWN, top = first + down;
    const int seen = past + min(first + OWN, shape.queries); // keys that the tile's last query sees

    float *const q_rows = static_cast<float *>(shared_memory()); // (OWN, ROW)
    float *const k_rows = q_rows + OWN * ROW;                    // (OTHERS, ROW)
    float *const v_rows = k_rows + OTHERS * ROW;                 // (OTHERS, ROW)
    float *const weights = v_rows + OTHERS * ROW;                // (OWN, WEIGHT_ROW)
    uint32_t *const words = reinterpret_cast<uint32_t *>(weights + OWN * WEIGHT_ROW);
    const Bits bits = {words, words + OWN}; // of `Masked` kernels, with one word for the keys of a step
    copy_rows<float, OWN, D, THREADS>(q_rows, q, shape.q.position, first, shape.queries);

    float context[EACH][PAIRS][2] = {}, largest[EACH], sum[EACH] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) largest[i] = -INFINITE;

    for (int start = 0; start < seen; start += OTHERS) {
        sync_block(); // no thread still reads the previous keys
        copy_rows<float, OTHERS, D, THREADS>(k_rows, k, shape.k.position, start, shape.keys);
        copy_rows<float, OTHERS, D, THREADS>(v_rows, v, shape.v.position, start, shape.keys);
        if (Masked) fill_bits<OWN, OTHERS, THREADS>(bits, masks, place, first, start, shape);
        copies_arrived();
        if (visible) clear_padding<float, OTHERS, D, THREADS>(v_rows, visible, start, shape.keys);
        sync_block();

        float scores[EACH][OTHERS / ACROSS] = {};
        multiply_rows<D>(scores, q_rows, k_rows);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float now = largest[i];
#pragma unroll
            for (int j = 0; j < OTHERS / ACROSS; j++) {
                const int key = start + j * ACROSS + across;
                bool hidden = key > past + top + i || (visible && (key >= shape.keys || !visible[key]));
                if (Masked) hidden |= is_set(bits.hidden + down + i, j * ACROSS + across);
                scores[i][j] = hidden ? -INFINITE : scores[i][j] * shape.scale;
                now = fmaxf(now, scores[i][j]);
            }
#pragma unroll
            for (int other = 1; other < ACROSS; other *= 2) now = fmaxf(now, shuffle_xor(now, other));
            // If the row has seen no key yet, every weight becomes 2^-inf.
            const float base = now == -INFINITE ? 0 : now;
            const float fade = exp2_fast(largest[i] - base);
            largest[i] = now;
            sum[i] *= fade;
#pragma unroll
            for (int j = 0; j < OTHERS / ACROSS; j++) {
                const float weight = exp2_fast(scores[i][j] - base);
                sum[i] += weight;
                // Dropped weights count in the sum, but add no value.
                const bool dropped = Masked && is_set(bits.dropped + down + i, j * ACROSS + across);
                weights[(down + i) * WEIGHT_ROW + j * ACROSS + across] = dropped ? 0 : weight;
            }
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                context[i][p][0] *= fade;
                context[i][p][1] *= fade;
            }
        }
        sync_warp(); // the 8 threads that share queries are in one warp
        add_weighted_rows<D>(context, weights, v_rows);
    }

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float all = sum[i];
#pragma unroll
        for (int other = 1; other < ACROSS; other *= 2) all += shuffle_xor(all, other);
        const int query = top + i;
        if (query >= shape.queries) continue;
        const float factor = all == 0 ? 0 : (Masked ? masks.kept : 1) / all;
        write_row<D>(out + ((static_cast<long long>(b) * shape.queries + query) * shape.heads + h) * D, context[i], factor);
        if (log_sums && across == 0)
            // Of a row that sees no key, every weight becomes 2^-inf in the backward pass.
            log_sums[(static_cast<long long>(b) * shape.heads + h) * shape.queries + query] =
                all == 0 ? INFINITE : largest[i] + log2_fast(all);
    }
}

#define ATTENTION(D)                                                                                                          \
    KERNEL(THREADS, blocks_at_once(D))                                                                                          \
    attention_f32_d##D##_q64(const float *q, const float *k, const float *v, const uint8_t *padding, float *out,              \
                             float *log_sums, Shape shape) {                                                                  \
        attend<D, false>(q, k, v, padding, out, log_sums, shape, {});                                                         \
    }                                                                                                                         \
    KERNEL(THREADS, blocks_at_once(D))                                                                                          \
    attention_masked_f32_d##D(const float *q, const float *k, const float *v, const uint8_t *padding, float *out,             \
                              float *log_sums, Shape shape, Masks masks) {                                                    \
        attend<D, true>(q, k, v, padding, out, log_sums, shape, masks);                                                       \
    }
ATTENTION(32)
ATTENTION(64)
ATTENTION(80)
ATTENTION(96)
ATTENTION(128)
