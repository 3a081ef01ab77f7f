// Causal attention in f32 with plain multiply-adds: the tensor cores would round to 10 bits. The tiles of queries are
// as in attention.cu, with one tile of keys at a time.
#include "device.cuh"

constexpr int THREADS = 128, QUERIES = 64, KEYS = 32;
/// A thread works on 4 queries. 8 threads share them, and each takes every eighth key or pair of columns.
constexpr int ACROSS = 8, OWN = QUERIES / (THREADS / ACROSS);
constexpr int WEIGHT_ROW = KEYS + 4;

DEVICE float4 four(const float *from) { return *reinterpret_cast<const float4 *>(from); }
DEVICE float dot(float4 a, float4 b, float c) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, c)))); }

template <int D>
DEVICE void attend(const float *q, const float *k, const float *v, const uint8_t *padding, float *out, const Shape &shape) {
    constexpr int ROW = ROW_LENGTH<float, D>, PAIRS = D / 2 / ACROSS;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS * OWN;

    const auto [tile, b, h] = place_of(blockIdx.x, gridDim.x, QUERIES, shape);
    q += b * shape.q.batch + h * shape.q.head;
    k += b * shape.k.batch + h * shape.k.head;
    v += b * shape.v.batch + h * shape.v.head;
    const uint8_t *visible = padding ? padding + static_cast<long long>(b) * shape.keys : nullptr;

    const int past = shape.keys - shape.queries, first = tile * QUERIES, top = first + down;
    const int seen = past + min(first + QUERIES, shape.queries); // keys that the tile's last query sees

    float *const q_rows = static_cast<float *>(shared_memory()); // (QUERIES, ROW)
    float *const k_rows = q_rows + QUERIES * ROW;                // (KEYS, ROW)
    float *const v_rows = k_rows + KEYS * ROW;                   // (KEYS, ROW)
    float *const weights = v_rows + KEYS * ROW;                  // (QUERIES, WEIGHT_ROW)
    copy_rows<float, QUERIES, D, THREADS>(q_rows, q, shape.q.position, first, shape.queries);

    float context[OWN][PAIRS][2] = {}, largest[OWN], sum[OWN] = {};
#pragma unroll
    for (int i = 0; i < OWN; i++) largest[i] = -INFINITE;

    for (int start = 0; start < seen; start += KEYS) {
        sync_block(); // no thread still reads the previous keys
        copy_rows<float, KEYS, D, THREADS>(k_rows, k, shape.k.position, start, shape.keys);
        copy_rows<float, KEYS, D, THREADS>(v_rows, v, shape.v.position, start, shape.keys);
        copies_arrived();
        sync_block();

        float scores[OWN][KEYS / ACROSS] = {};
#pragma unroll 4
        for (int d = 0; d < D; d += 4) {
            float4 rows[OWN];
#pragma unroll
            for (int i = 0; i < OWN; i++) rows[i] = four(q_rows + (down + i) * ROW + d);
#pragma unroll
            for (int j = 0; j < KEYS / ACROSS; j++) {
                const float4 key = four(k_rows + (j * ACROSS + across) * ROW + d);
#pragma unroll
                for (int i = 0; i < OWN; i++) scores[i][j] = dot(rows[i], key, scores[i][j]);
            }
        }

#pragma unroll
        for (int i = 0; i < OWN; i++) {
            float now = largest[i];
#pragma unroll
            for (int j = 0; j < KEYS / ACROSS; j++) {
                const int key = start + j * ACROSS + across;
                const bool hidden = key >= shape.keys || key > past + top + i || (visible && !visible[key]);
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
            for (int j = 0; j < KEYS / ACROSS; j++) {
                const float weight = exp2_fast(scores[i][j] - base);
                sum[i] += weight;
                weights[(down + i) * WEIGHT_ROW + j * ACROSS + across] = weight;
            }
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                context[i][p][0] *= fade;
                context[i][p][1] *= fade;
            }
        }
        sync_warp(); // the 8 threads that share queries are in one warp

#pragma unroll 1
        for (int key = 0; key < KEYS; key += 4) {
            float of_key[OWN][4];
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const float4 row = four(weights + (down + i) * WEIGHT_ROW + key);
                of_key[i][0] = row.x, of_key[i][1] = row.y, of_key[i][2] = row.z, of_key[i][3] = row.w;
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int p = 0; p < PAIRS; p++) {
                    const float2 value = *reinterpret_cast<const float2 *>(v_rows + (key + j) * ROW + (p * ACROSS + across) * 2);
#pragma unroll
                    for (int i = 0; i < OWN; i++) {
                        context[i][p][0] = fmaf(of_key[i][j], value.x, context[i][p][0]);
                        context[i][p][1] = fmaf(of_key[i][j], value.y, context[i][p][1]);
                    }
                }
        }
    }

#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float all = sum[i];
#pragma unroll
        for (int other = 1; other < ACROSS; other *= 2) all += shuffle_xor(all, other);
        if (top + i >= shape.queries) continue;
        const float factor = all == 0 ? 0 : 1 / all;
        float *const to = out + ((static_cast<long long>(b) * shape.queries + top + i) * shape.heads + h) * D;
#pragma unroll
        for (int p = 0; p < PAIRS; p++)
            *reinterpret_cast<float2 *>(to + (p * ACROSS + across) * 2) =
                float2{context[i][p][0] * factor, context[i][p][1] * factor};
    }
}

#define ATTENTION(D)                                                                                                       \
    KERNEL(THREADS)                                                                                                        \
    attention_f32_d##D##_q64(const float *q, const float *k, const float *v, const uint8_t *padding, float *out, Shape shape) { \
        attend<D>(q, k, v, padding, out, shape);                                                                           \
    }
ATTENTION(32)
ATTENTION(64)
ATTENTION(80)
ATTENTION(96)
ATTENTION(128)
