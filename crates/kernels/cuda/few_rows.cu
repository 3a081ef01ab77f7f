// Products of a few rows with a large matrix, and what stands around them in the same launch: before it the layer norm of the rows,
// after it the bias with GELU, with a residual, or with keys and values going into a cache. Decoding spends its time here, on the
// weights: each is read once.
#include "epilogues.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32;
/// The numbers of the rows that lie in shared memory at a time. At the end, 16 sums of each thread take their place.
constexpr int STAGED = 8192;
/// What they take up in floats: behind each unit of a row is a gap, so that threads of a warp write to different banks.
constexpr int STAGED_ROOM = STAGED / 4 * 5;
static_assert(WARPS * THREADS <= STAGED_ROOM, "there is room for the sums");
/// The most rows of a kernel. The mean and the factor of each row's norm lie behind those numbers, and then the sums of the block.
constexpr int MOST_ROWS = 8;
/// The units of the weight that a thread reads at once, and that are on their way while it multiplies by those before: as many as
/// its registers hold beside the sums.
template <typename E, int ROWS> constexpr int STEPS_AT_ONCE = ROWS * Unit<E>::COUNT > 32 ? 2 : 4;

/// The sizes of a product (rows, depth) · (depth, width), and what goes with it. The Rust side has the same struct.
struct FewRows {
    int rows, depth, width;
    /// The units of the weight's rows that a block reads: 2, 4 or 8.
    int lanes;
    int gelu;
    float eps;
    Append to;
};

static_assert(sizeof(FewRows) == 24 + sizeof(Append), "must match src/gpu/few_rows.rs");

/// Everything in memory that a product reads and writes. `scale` and `shift` are those of a norm of x; without one they are null, as
/// are a residual and a cache that are not there, and the number of its positions if that is in `FewRows`.
template <typename E> struct Tensors {
    const E *x, *weight, *bias, *scale, *shift, *residual;
    E *cache;
    const uint32_t *past;
    E *out;
};

/// Each group of `lanes` threads multiplies every `groups`th row of the weight, 16 bytes of it per thread. The sums of all groups are
/// added in a fixed order, which does not depend on the number of rows.
template <typename E, int ROWS> DEVICE void multiply(const Tensors<E> &in, const FewRows &of) {
    constexpr int COUNT = Unit<E>::COUNT, CHUNK = STAGED / ROWS, STEPS = STEPS_AT_ONCE<E, ROWS>;
    float *const shared = static_cast<float *>(shared_memory()), *const of_norm = shared + STAGED_ROOM;
    float *const found = of_norm + 2 * MOST_ROWS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % of.lanes;
    const int group = threadIdx.x / of.lanes, groups = THREADS / of.lanes;
    const int depth_units = of.depth / COUNT, units = of.width / COUNT, unit = blockIdx.x * of.lanes + lane;
    const bool there = unit < units;
    const Unit<E> *const column = reinterpret_cast<const Unit<E> *>(in.weight) + (there ? unit : 0);

    // Where the numbers of all rows for input k of a chunk lie.
    const auto place = [](int k) { return (k + k / COUNT) * ROWS; };
    Unit<E> ahead[STEPS];
    const auto load = [&](int first) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int k = first + s * groups + group;
            ahead[s] = column[static_cast<long long>(k < of.depth ? k : 0) * units];
        }
    };
    load(0); // these wait for nothing that is computed here
    if (in.scale && warp < of.rows) {
        const Unit<E> *const row = reinterpret_cast<const Unit<E> *>(in.x) + static_cast<long long>(warp) * depth_units;
        const Spread spread = spread_of<E>([&](int i) { return row[i]; }, of.depth, of.eps);
        if (threadIdx.x % 32 == 0) {
            of_norm[2 * warp] = spread.mean;
            of_norm[2 * warp + 1] = spread.factor;
        }
    }
    sync_block(); // means and factors are there

    float sums[ROWS][COUNT] = {};
    for (int start = 0; start < of.depth; start += CHUNK) {
        const int end = min(of.depth, start + CHUNK), count = (end - start) / COUNT;
        if (start > 0) sync_block(); // no thread reads the numbers before
        for (int i = threadIdx.x; i < ROWS * count; i += THREADS) {
            const int row = i % ROWS, at = i / ROWS, from = start / COUNT + at;
            float *const to = shared + place(at * COUNT) + row;
            if (row >= of.rows) {
#pragma unroll
                for (int j = 0; j < COUNT; j++) to[j * ROWS] = 0;
                continue;
            }
            const Unit<E> numbers = reinterpret_cast<const Unit<E> *>(in.x)[static_cast<long long>(row) * depth_units + from];
            if (in.scale) {
                const float mean = of_norm[2 * row], factor = of_norm[2 * row + 1];
                const Unit<E> scale = reinterpret_cast<const Unit<E> *>(in.scale)[from];
                const Unit<E> shift = reinterpret_cast<const Unit<E> *>(in.shift)[from];
#pragma unroll
                for (int j = 0; j < COUNT; j++)
                    to[j * ROWS] = to_float(normed<E>(numbers.of[j], {mean, factor}, scale.of[j], shift.of[j]));
            } else {
#pragma unroll
                for (int j = 0; j < COUNT; j++) to[j * ROWS] = to_float(numbers.of[j]);
            }
        }
        sync_block(); // all numbers of the chunk are there
        for (int first = start; first < end; first += STEPS * groups) {
            Unit<E> now[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; s++) now[s] = ahead[s];
            if (first + STEPS * groups < of.depth) load(first + STEPS * groups);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int k = first + s * groups + group;
                if (k >= end) continue; // past the end, `ahead` holds row 0, which may be NaN
                const float *const numbers = shared + place(k - start);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    const float weight = to_float(now[s].of[j]);
#pragma unroll
                    for (int r = 0; r < ROWS; r++) sums[r][j] = fmaf(numbers[r], weight, sums[r][j]);
                }
            }
        }
    }

    // Warp w adds number `first` + w of all threads: those of the 16 warps, and then those of each lane.
#pragma unroll
    for (int first = 0; first < ROWS * COUNT; first += WARPS) {
        sync_block(); // no thread reads what lies there
#pragma unroll
        for (int w = 0; w < WARPS && first + w < ROWS * COUNT; w++)
            shared[w * THREADS + threadIdx.x] = sums[(first + w) / COUNT][(first + w) % COUNT];
        sync_block(); // the numbers of all threads are there: (WARPS, THREADS)
        if (first + warp >= ROWS * COUNT) continue;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shared[warp * THREADS + w * 32 + threadIdx.x % 32];
        for (int other = 16; other >= of.lanes; other /= 2) sum += shuffle_xor(sum, other);
        if (threadIdx.x % 32 < of.lanes) found[(first + warp) * of.lanes + lane] = sum;
    }
    sync_block(); // the sums are there: (ROWS, COUNT, lanes)
    const int row = group;
    if (row >= of.rows || !there) return;
    float product[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; j++) product[j] = found[(row * COUNT + j) * of.lanes + lane];
    const long long i = static_cast<long long>(row) * units + unit;
    const Unit<E> bias = reinterpret_cast<const Unit<E> *>(in.bias)[unit];
    const Unit<E> *const before = in.residual ? reinterpret_cast<const Unit<E> *>(in.residual) + i : nullptr;
    const Unit<E> y = of.gelu ? finished<E, true>(product, bias, before) : finished<E, false>(product, bias, before);
    if (in.cache) append(y, in.out, in.cache, in.past, row, unit, of.to);
    else reinterpret_cast<Unit<E> *>(in.out)[i] = y;
}

#define PRODUCT(NAME, E, ROWS)                                                                                             \
    KERNEL(THREADS, 1)                                                                                                     \
    product_of_##ROWS##_##NAME(const E *x, const E *weight, const E *bias, const E *scale, const E *shift,                 \
                               const E *residual, E *cache, const uint32_t *past, E *out, FewRows of) {                    \
        static_assert(ROWS <= MOST_ROWS && STAGED / ROWS % (THREADS / 2 * STEPS_AT_ONCE<E, ROWS>) == 0, "whole steps");    \
        multiply<E, ROWS>({x, weight, bias, scale, shift, residual, cache, past, out}, of);                                 \
    }
#define ALL_ROWS(NAME, E)                                                                                                  \
    PRODUCT(NAME, E, 1)                                                                                                    \
    PRODUCT(NAME, E, 8)
ALL_ROWS(f16, f16)
#if HAS_BF16
ALL_ROWS(bf16, bf16)
#endif
ALL_ROWS(f32, float)
