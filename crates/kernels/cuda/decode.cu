// Causal attention for decoding: one query per head, which sees all keys. The keys of a head are split over blocks (Dao
// et al. 2023, "Flash-Decoding"), because one query alone gives too few blocks to read k and v at the full speed of the
// memory. The last block of a head to finish merges the partial results of all.
#include "tiles.cuh"

constexpr int THREADS = 128;
/// The fewest keys of a block: with fewer, merging takes longer than decoding.
constexpr int MIN_SPLIT_KEYS = 64;

/// A block's partial result over its keys, before division: [largest score, sum of weights, context (D)].
constexpr int FOUND_BEFORE_CONTEXT = 2;

/// Merges `count` partial results, `length` floats apart. Thread d computes element d of the merged context.
DEVICE void merge(const volatile float *found, int count, int length, float &largest, float &sum, float &context) {
    largest = -INFINITE, sum = 0, context = 0;
    for (int i = 0; i < count; i++) largest = fmaxf(largest, found[i * length]);
    const float base = largest == -INFINITE ? 0 : largest;
    for (int i = 0; i < count; i++) {
        const float fade = exp2_fast(found[i * length] - base);
        sum += found[i * length + 1] * fade;
        context += found[i * length + FOUND_BEFORE_CONTEXT + threadIdx.x] * fade;
    }
}

/// In each group of lanes, `D * sizeof(E) / 16` lanes read a key, 16 bytes each. A group reads `KEYS` keys at a
/// time.
///
/// With several splits, `found` (B, H, splits, 2 + D) holds the partial results, and `finished` (B, H) counts each head's
/// blocks that are done: zeros before the launch, and after it.
///
/// `past`, if it is not null, holds the number of keys before the query's own, and those behind that are not there yet: a graph is
/// launched again while the keys become more. The splits follow from the keys that are there, so that the sums have the order of a
/// launch for that number.
template <typename E, int D>
DEVICE void decode(const E *q, const E *k, const E *v, const uint8_t *padding, const uint32_t *past, E *out, float *found,
                   uint32_t *finished, const Shape &shape) {
    constexpr int UNIT = Unit<E>::COUNT, UNITS = D / UNIT, KEYS = 4;
    constexpr int LANES = UNITS <= 4 ? 4 : UNITS <= 8 ? 8 : UNITS <= 16 ? 16 : 32;
    constexpr int GROUPS = THREADS / LANES, LENGTH = FOUND_BEFORE_CONTEXT + D;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const int head = blockIdx.x / shape.splits, split = blockIdx.x % shape.splits;
    const int b = head / shape.heads, h = head % shape.heads;
    const int there = past ? static_cast<int>(min(*past, static_cast<uint32_t>(shape.keys - 1))) + 1 : shape.keys;
    const int most = min(shape.splits, (there + MIN_SPLIT_KEYS - 1) / MIN_SPLIT_KEYS);
    const int split_keys = (there + most - 1) / most, splits = (there + split_keys - 1) / split_keys;
    if (split >= splits) return; // the whole block
    const bool reads = lane < UNITS;
    const int offset = reads ? lane * UNIT : 0;
    q += b * shape.q.batch + h * shape.q.head + offset;
    k += b * shape.k.batch + h * shape.k.head + offset;
    v += b * shape.v.batch + h * shape.v.head + offset;
    const uint8_t *visible = padding ? padding + static_cast<long long>(b) * shape.keys : nullptr;

    const auto read = [&](const E *from) { return *reinterpret_cast<const Unit<E> *>(from); };
    float query[UNIT], context[UNIT] = {}, largest = -INFINITE, sum = 0;
    const Unit<E> packed = read(q);
#pragma unroll
    for (int i = 0; i < UNIT; i++) query[i] = reads ? to_float(packed.of[i]) * shape.scale : 0;

    const int end = min(there, (split + 1) * split_keys);
    // All lanes stay together, because they exchange numbers: in place of a key past the end they read the first
    // key, and hide it.
    for (int start = split * split_keys; start < end; start += GROUPS * KEYS) {
        Unit<E> keys[KEYS], values[KEYS];
        float scores[KEYS];
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const int key = start + i * GROUPS + group;
            const long long at = key < end ? key : 0;
            keys[i] = read(k + at * shape.k.position);
            values[i] = read(v + at * shape.v.position);
        }
        float now = largest;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const int key = start + i * GROUPS + group;
            scores[i] = 0;
#pragma unroll
            for (int j = 0; j < UNIT; j++) scores[i] = fmaf(query[j], to_float(keys[i].of[j]), scores[i]);
            if (!reads) scores[i] = 0; // another lane has this key
#pragma unroll
            for (int other = 1; other < LANES; other *= 2) scores[i] += shuffle_xor(scores[i], other);
            if (key >= end || (visible && !visible[key])) scores[i] = -INFINITE;
            now = fmaxf(now, scores[i]);
        }
        const float base = now == -INFINITE ? 0 : now;
        const float fade = exp2_fast(largest - base);
        largest = now;
        sum *= fade;
#pragma unroll
        for (int j = 0; j < UNIT; j++) context[j] *= fade;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const float weight = exp2_fast(scores[i] - base);
            sum += weight;
            if (scores[i] == -INFINITE) continue; // a weight of 0 times NaN would be NaN
#pragma unroll
            for (int j = 0; j < UNIT; j++) context[j] = fmaf(weight, to_float(values[i].of[j]), context[j]);
        }
    }

    float *const shared = static_cast<float *>(shared_memory()); // (GROUPS, LENGTH)
    float *const own = shared + group * LENGTH;
    if (lane == 0) {
        own[0] = largest;
        own[1] = sum;
    }
    if (reads) {
#pragma unroll
        for (int j = 0; j < UNIT; j++) own[FOUND_BEFORE_CONTEXT + offset + j] = context[j];
    }
    sync_block();
    float all = 0, total = 0, merged = 0;
    const auto write = [&] { out[static_cast<long long>(head) * D + threadIdx.x] = from_float<E>(total == 0 ? 0 : merged / total); };
    if (threadIdx.x < D) merge(shared, GROUPS, LENGTH, all, total, merged);
    if (splits == 1) {
        if (threadIdx.x < D) write();
        return;
    }
    float *const of_block = found + static_cast<long long>(blockIdx.x) * LENGTH;
    if (threadIdx.x == 0) {
        of_block[0] = all;
        of_block[1] = total;
    }
    if (threadIdx.x < D) of_block[FOUND_BEFORE_CONTEXT + threadIdx.x] = merged;
    memory_fence(); // whoever sees this block counted also sees what it found
    sync_block();
    uint32_t *const last = reinterpret_cast<uint32_t *>(shared);
    if (threadIdx.x == 0) *last = add_atomically(finished + head, 1) == static_cast<uint32_t>(splits) - 1;
    sync_block();
    if (!*last) return;
    memory_fence();
    if (threadIdx.x == 0) finished[head] = 0;
    if (threadIdx.x >= D) return;
    merge(found + static_cast<long long>(head) * shape.splits * LENGTH, splits, LENGTH, all, total, merged);
    write();
}

#define DECODE(NAME, E, D)                                                                                             \
    KERNEL(THREADS)                                                                                                    \
    decode_##NAME##_d##D(const E *q, const E *k, const E *v, const uint8_t *padding, const uint32_t *past, E *out,     \
                         float *found, uint32_t *finished, Shape shape) {                                              \
        decode<E, D>(q, k, v, padding, past, out, found, finished, shape);                                             \
    }
#define ALL_WIDTHS(NAME, E)                                                                                            \
    DECODE(NAME, E, 32)                                                                                                \
    DECODE(NAME, E, 64)                                                                                                \
    DECODE(NAME, E, 80)                                                                                                \
    DECODE(NAME, E, 96)                                                                                                \
    DECODE(NAME, E, 128)
ALL_WIDTHS(f16, f16)
#if HAS_BF16
ALL_WIDTHS(bf16, bf16)
#endif
ALL_WIDTHS(f32, float)
