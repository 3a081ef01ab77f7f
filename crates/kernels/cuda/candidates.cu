// What the choice of the next token needs of each row of logits, so that the host need not copy all of them: one block for each row.
#include "philox.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / 32;
/// The bits of a digit of the selection, and the values that a digit has.
constexpr int DIGIT = 11, BINS = 1 << DIGIT;
static_assert(BINS == 2 * THREADS, "a thread has two bins");
/// The words of a row's result before the tokens that are listed.
constexpr int HEADER = 8;

/// What is looked for. The Rust side has the same struct.
struct Search {
    /// 1 / temperature, if tokens are drawn or weights summed
    double rate;
    uint32_t seed[2];
    int width, listed;
    /// The words of each row in `rows`: its place among the draws, and a bit for each token that is penalized; 0, 1 or all of them.
    int row_words;
    float penalty;
    int draws, sums;
};

static_assert(sizeof(Search) == 40, "must match src/gpu/token_search.rs");

struct Shared {
    double sums[WARPS];
    uint64_t greatest[WARPS];
    uint32_t bins[BINS], scan[THREADS];
    /// The bin that the selection goes into, and the number of keys above it and in it.
    uint32_t bin, above, inside;
    /// The number of tokens listed.
    uint32_t written;
};

static_assert(sizeof(Shared) == 12816, "must match src/gpu/token_search.rs");

/// Combines the numbers of all threads, always in the same order. All threads get the result.
template <typename T, typename Both> DEVICE T combine(T x, T *parts, Both both) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2) x = both(x, shuffle_xor(x, other));
    sync_block(); // no thread still reads the parts of an earlier call
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    sync_block();
    x = parts[0];
    for (int i = 1; i < WARPS; i++) x = both(x, parts[i]);
    return x;
}

DEVICE uint64_t greatest_of_all(uint64_t x, Shared &shared) {
    return combine(x, shared.greatest, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

/// The bits of a number so that they have its order; -0 is below 0.
DEVICE uint32_t in_order(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

/// A number and the id of its token as one key; of equal numbers, the lower id has the greater one.
DEVICE uint64_t key_of(float x, int id) { return static_cast<uint64_t>(in_order(x)) << 32 | ~static_cast<uint32_t>(id); }

DEVICE float number_of(uint64_t key) {
    const uint32_t bits = key >> 32;
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffff : ~bits);
}

DEVICE uint32_t id_of(uint64_t key) { return ~static_cast<uint32_t>(key); }

/// The logits of a row after the repetition penalty (Keskar et al. 2019).
struct Row {
    const float *logits;
    /// A bit for each token, or null
    const uint32_t *penalized;
    float penalty;

    DEVICE float operator()(int id) const {
        const float x = logits[id];
        if (!penalized || !(penalized[id / 32] >> id % 32 & 1)) return x;
        return x > 0 ? x / penalty : multiply_rounded(x, penalty);
    }
};

/// How early a token arrives, as the negative logarithm of the time: the Gumbel-max trick (Maddison et al. 2014). The token's random number
/// u is `random` + 1/2 in units of 2^-52, and its time -ln u / exp(score). For tokens that can be among the first two, the error is below 2e-5.
DEVICE float earliness(float score, uint64_t random) {
    constexpr uint64_t ALL = 1ull << 52;
    const bool upper = random >= ALL / 2;
    // u or, above 1/2, 1 - u, which then has more digits
    const float part = (static_cast<float>(upper ? ALL - 1 - random : random) + 0.5f) * (1.0f / ALL);
    return score - logf(upper ? -log1pf(-part) : -logf(part));
}

/// The token that arrives first, and how much earlier than the second, as a difference of logarithms. Tokens 2·i and 2·i + 1 take
/// two words each of Philox at the counter (i, place).
DEVICE void draw(const Row &row, float highest, uint32_t place, const Search &of, Shared &shared, uint32_t *found) {
    uint64_t first = 0, second = 0;
    for (int pair = threadIdx.x; 2 * pair < of.width; pair += THREADS) {
        uint32_t words[4] = {static_cast<uint32_t>(pair), place, 0, 0};
        philox(words, of.seed[0], of.seed[1]);
        for (int i = 0; i < 2 && 2 * pair + i < of.width; i++) {
            const int id = 2 * pair + i;
            const uint64_t random = static_cast<uint64_t>(words[2 * i + 1]) << 20 | words[2 * i] >> 12;
            const float score = (row(id) - highest) * static_cast<float>(of.rate);
            const uint64_t key = key_of(earliness(score, random), id);
            second = key > first ? first : key > second ? key : second;
            first = key > first ? key : first;
        }
    }
    const uint64_t best = greatest_of_all(first, shared);
    second = greatest_of_all(first == best ? second : first, shared);
    if (threadIdx.x > 0) return;
    found[4] = id_of(best);
    found[5] = __float_as_uint(second ? number_of(best) - number_of(second) : INFINITE);
}

/// The sum of the weights exp((logit - highest) / temperature).
DEVICE void sum_weights(const Row &row, float highest, const Search &of, Shared &shared, uint32_t *found) {
    double sum = 0;
    for (int id = threadIdx.x; id < of.width; id += THREADS) sum += exp((static_cast<double>(row(id)) - highest) * of.rate);
    sum = combine(sum, shared.sums, [](double a, double b) { return a + b; });
    if (threadIdx.x > 0) return;
    const uint64_t bits = __double_as_longlong(sum);
    found[6] = bits, found[7] = bits >> 32;
}

/// Finds the bin that holds the `wanted`th key, counted from the last bin down.
DEVICE void find_bin(uint32_t wanted, Shared &shared) {
    const int last = BINS - 1 - 2 * threadIdx.x;
    const uint32_t upper = shared.bins[last], both = upper + shared.bins[last - 1];
    uint32_t *const scan = shared.scan;
    scan[threadIdx.x] = both;
    sync_block();
    for (int step = 1; step < THREADS; step *= 2) {
        const uint32_t more = static_cast<int>(threadIdx.x) >= step ? scan[threadIdx.x - step] : 0;
        sync_block(); // all have read
        scan[threadIdx.x] += more;
        sync_block(); // all have written
    }
    const uint32_t above = scan[threadIdx.x] - both;
    if (above < wanted && wanted <= above + both) {
        const bool in_upper = wanted <= above + upper;
        shared.bin = in_upper ? last : last - 1;
        shared.above = in_upper ? above : above + upper;
        shared.inside = in_upper ? upper : both - upper;
    }
    sync_block();
}

/// Lists the tokens with the `of.listed` highest logits, in any order: a radix selection from the highest digit of the keys on (Alabi et
/// al. 2012), until all keys that share the digits found so far are among them.
DEVICE void list(const Row &row, const Search &of, Shared &shared, uint32_t *found) {
    uint64_t digits = 0, mask = 0; // the digits found so far
    uint32_t wanted = of.listed;
    for (int top = 64; top > 0; top -= DIGIT) {
        const int shift = top > DIGIT ? top - DIGIT : 0;
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) shared.bins[bin] = 0;
        sync_block();
        for (int first = 0; first < of.width; first += THREADS) {
            const int id = first + threadIdx.x;
            const uint64_t key = id < of.width ? key_of(row(id), id) : 0;
            const bool counts = id < of.width && (key & mask) == digits;
            const uint32_t bin = counts ? key >> shift & (BINS - 1) & ((1ull << (top - shift)) - 1) : BINS;
            // One lane adds for all with the same bin: most logits share a few.
            const uint32_t lanes = lanes_like(bin);
            if (counts && __ffs(lanes) - 1 == static_cast<int>(threadIdx.x % 32)) add_atomically(&shared.bins[bin], __popc(lanes));
        }
        sync_block();
        find_bin(wanted, shared);
        digits |= static_cast<uint64_t>(shared.bin) << shift;
        mask |= ((1ull << (top - shift)) - 1) << shift;
        wanted -= shared.above;
        if (shared.inside == wanted) break;
    }
    if (threadIdx.x == 0) shared.written = 0;
    sync_block();
    for (int id = threadIdx.x; id < of.width; id += THREADS) {
        const float logit = row(id);
        if ((key_of(logit, id) & mask) < digits) continue;
        const uint32_t at = HEADER + 2 * add_atomically(&shared.written, 1);
        found[at] = id, found[at + 1] = __float_as_uint(logit);
    }
}

/// logits (rows, width) -> found (rows, HEADER + 2·listed): the lowest id whose logit is not finite, or 2^32 - 1, and its logit; the id
/// of the highest logit, and this; the token drawn and its lead; the sum of the weights in two words; ids and logits that are listed.
KERNEL(THREADS) candidates_f32(const float *logits, const uint32_t *rows, uint32_t *found, Search of) {
    Shared &shared = *static_cast<Shared *>(shared_memory());
    const uint32_t *const own = rows + static_cast<long long>(blockIdx.x) * of.row_words;
    const Row row = {logits + static_cast<long long>(blockIdx.x) * of.width, of.row_words > 1 ? own + 1 : nullptr, of.penalty};
    found += static_cast<long long>(blockIdx.x) * (HEADER + 2 * of.listed);
    uint64_t best = 0, bad = 0;
    for (int id = threadIdx.x; id < of.width; id += THREADS) {
        const float logit = row(id);
        const uint64_t key = key_of(logit == 0 ? 0 : logit, id); // 0 is not above -0
        best = key > best ? key : best;
        // The logits of a thread come in the order of their ids.
        if (!(fabsf(logit) < INFINITE) && !bad) bad = static_cast<uint64_t>(~static_cast<uint32_t>(id)) << 32 | __float_as_uint(logit);
    }
    best = greatest_of_all(best, shared);
    bad = greatest_of_all(bad, shared);
    const float highest = number_of(best);
    if (threadIdx.x == 0) {
        found[0] = ~static_cast<uint32_t>(bad >> 32), found[1] = bad;
        found[2] = id_of(best), found[3] = __float_as_uint(highest);
    }
    if (of.draws) draw(row, highest, own[0], of, shared, found);
    if (of.sums) sum_weights(row, highest, of, shared, found);
    if (of.listed > 0) list(row, of, shared, found);
}
