// What hides keys and drops weights, beyond the causal rule.
#pragma once
#include "philox.cuh"
#include "tiles.cuh"

/// Keys hidden from single queries, and dropout. The Rust side has the same struct.
struct Masks {
    /// The keys hidden from query i of head h are `hidden_keys` from `hidden_starts[h·T + i]` to the next start; null
    /// if nothing is hidden. They are the same in every row of the batch.
    const int *hidden_starts, *hidden_keys;
    /// The key and the stream of the generator: `dropout.rs`.
    uint32_t seed[2], stream[2];
    /// A weight is dropped if its word is below this; 0 if none is.
    uint32_t threshold;
    /// Weights that stay are multiplied by this.
    float kept;
    /// Of the layer's heads, the first that is here, and how many there are in all.
    int first_head, all_heads;
};

static_assert(sizeof(Masks) == 48 && __builtin_offsetof(Masks, threshold) == 32, "must match src/attention/cuda/plan.rs");

/// The masks of a tile as bits, one word for 32 keys of a query: (queries, keys / 32) words each.
struct Bits {
    uint32_t *hidden, *dropped;
};

/// Fills the bits of `Queries` queries and `Keys` keys, by all `Threads` threads of a block. `first_key` is a multiple
/// of 32. Nothing is there to be read before a `sync_block`.
template <int Queries, int Keys, int Threads>
DEVICE void fill_bits(const Bits &bits, const Masks &masks, const Place &place, int first_query, int first_key, const Shape &shape) {
    constexpr int WORDS = Keys / 32;
    for (int i = threadIdx.x; i < Queries * WORDS; i += Threads) {
        const int query = first_query + i / WORDS, first = first_key + i % WORDS * 32;
        uint32_t hidden = 0, dropped = 0;
        if (query < shape.queries) {
            if (masks.hidden_starts) {
                const int row = place.h * shape.queries + query;
                for (int n = masks.hidden_starts[row]; n < masks.hidden_starts[row + 1]; n++) {
                    const int key = masks.hidden_keys[n] - first;
                    if (key >= 0 && key < 32) hidden |= 1u << key;
                }
            }
            if (masks.threshold) {
                const uint32_t head = static_cast<uint32_t>(place.b) * masks.all_heads + masks.first_head + place.h;
                for (int group = 0; group < 8; group++) {
                    uint32_t words[4] = {static_cast<uint32_t>(first) / 4 + group, head * shape.queries + query, masks.stream[0],
                                         masks.stream[1]};
                    philox(words, masks.seed[0], masks.seed[1]);
#pragma unroll
                    for (int j = 0; j < 4; j++) dropped |= static_cast<uint32_t>(words[j] < masks.threshold) << (group * 4 + j);
                }
            }
        }
        bits.hidden[i] = hidden;
        bits.dropped[i] = dropped;
    }
}

/// Whether the bit of `key` in a row of words is set.
DEVICE bool is_set(const uint32_t *words, int key) { return words[key / 32] >> key % 32 & 1; }

/// Which of `Keys` keys from `start` on are not padding, as a warp's lanes need them: a pair of neighboring keys has the
/// same bit of `even` and `odd`.
struct Visible {
    uint32_t even, odd;
};
template <int Keys> DEVICE Visible visible_keys(const uint8_t *padding, int start, int end) {
    static_assert(Keys <= 64, "a lane takes two keys");
    const int pair = threadIdx.x % 32 * 2, key = start + pair;
    const bool even = pair < Keys && key < end && padding[key], odd = pair < Keys && key + 1 < end && padding[key + 1];
    return {lanes_where(even), lanes_where(odd)};
}
