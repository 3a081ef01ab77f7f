// The operations around a block's matrix products, each in one pass over memory: embeddings, layer norm, and the bias, GELU and
// residual that follow a product, with the layer norm of the sum, or with keys and values going into a cache.
#include "epilogues.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;

/// The layer norm of each row of x (rows, width), one warp per row.
template <typename E>
DEVICE void layer_norm(const E *x, const E *weight, const E *bias, E *out, long long rows, int width, float eps) {
    const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= rows) return; // the whole warp returns
    const auto load = [&](int i) { return reinterpret_cast<const Unit<E> *>(x + row * width)[i]; };
    normalize(load, weight, bias, out + row * width, width, eps);
}

/// Unit `i` of a product x, finished. `column` is the unit of the bias.
template <typename E, bool Gelu>
DEVICE Unit<E> finished(const E *x, const E *bias, const E *residual, long long i, int column) {
    const Unit<E> unit = reinterpret_cast<const Unit<E> *>(x)[i];
    float product[Unit<E>::COUNT];
#pragma unroll
    for (int j = 0; j < Unit<E>::COUNT; j++) product[j] = to_float(unit.of[j]);
    const Unit<E> *before = residual ? reinterpret_cast<const Unit<E> *>(residual) + i : nullptr;
    return finished<E, Gelu>(product, reinterpret_cast<const Unit<E> *>(bias)[column], before);
}

/// Finishes a product x (rows, width) in place.
template <typename E, bool Gelu>
DEVICE void finish(E *x, const E *bias, const E *residual, long long units, int width) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= units) return;
    const int column = i % (width / Unit<E>::COUNT);
    reinterpret_cast<Unit<E> *>(x)[i] = finished<E, Gelu>(x, bias, residual, i, column);
}

/// Finishes a product x (rows, width) in place with a residual, and writes the layer norm of each row of the result to `normed`,
/// one warp per row. A lane normalizes the units that it finished itself, so that nothing has to be waited for.
template <typename E>
DEVICE void finish_norm(E *x, const E *bias, const E *residual, const E *weight, const E *shift, E *normed, long long rows,
                        int width, float eps) {
    const int units = width / Unit<E>::COUNT;
    const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= rows) return; // the whole warp returns
    for (int column = threadIdx.x % 32; column < units; column += 32) {
        const long long i = row * units + column;
        reinterpret_cast<Unit<E> *>(x)[i] = finished<E, false>(x, bias, residual, i, column);
    }
    layer_norm(x, weight, shift, normed, rows, width, eps);
}

/// Finishes a product x (B·positions, width) with its bias: the queries in place, keys and values in the cache.
template <typename E>
DEVICE void finish_append(E *x, const E *bias, E *cache, const uint32_t *past, long long units, const Append &to) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= units) return;
    const int row_units = to.width / Unit<E>::COUNT, unit = i % row_units;
    append(finished<E, false>(x, bias, nullptr, i, unit), x, cache, past, i / row_units, unit, to);
}

/// The tables of `embed`, and the places of its rows. The Rust side has the same struct.
struct Tables {
    int width, tokens, positions;
    /// Row r has place r % places: position `first` + place, or the one that a list of positions has there.
    int places, first;
};

static_assert(sizeof(Tables) == 20, "must match src/gpu/embed.rs");

/// The vector of each row's token plus that of its position; NaN if a table has no such row.
template <typename E>
DEVICE void embed(const uint32_t *ids, const E *tokens, const E *positions, const uint32_t *list, E *out, long long units,
                  const Tables &of) {
    const int row_units = of.width / Unit<E>::COUNT;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= units) return;
    const long long row = i / row_units;
    const int unit = i % row_units, place = row % of.places;
    const uint32_t id = ids[row], position = list ? list[place] : of.first + place;
    const bool there = id < static_cast<uint32_t>(of.tokens) && position < static_cast<uint32_t>(of.positions);
    const long long token = there ? id : 0, at = there ? position : 0;
    Unit<E> sum = reinterpret_cast<const Unit<E> *>(tokens)[token * row_units + unit];
    const Unit<E> more = reinterpret_cast<const Unit<E> *>(positions)[at * row_units + unit];
#pragma unroll
    for (int j = 0; j < Unit<E>::COUNT; j++)
        sum.of[j] = from_float<E>(there ? to_float(sum.of[j]) + to_float(more.of[j]) : INFINITE - INFINITE);
    reinterpret_cast<Unit<E> *>(out)[i] = sum;
}

#define LAYERS(NAME, E)                                                                                                    \
    KERNEL(THREADS)                                                                                                        \
    layer_norm_##NAME(const E *x, const E *weight, const E *bias, E *out, long long rows, int width, float eps) {          \
        layer_norm<E>(x, weight, bias, out, rows, width, eps);                                                             \
    }                                                                                                                      \
    KERNEL(THREADS) finish_##NAME(E *x, const E *bias, const E *residual, long long units, int width) {                    \
        finish<E, false>(x, bias, residual, units, width);                                                                 \
    }                                                                                                                      \
    KERNEL(THREADS) finish_gelu_##NAME(E *x, const E *bias, const E *residual, long long units, int width) {               \
        finish<E, true>(x, bias, residual, units, width);                                                                  \
    }                                                                                                                      \
    KERNEL(THREADS)                                                                                                        \
    finish_norm_##NAME(E *x, const E *bias, const E *residual, const E *weight, const E *shift, E *normed,                 \
                       long long rows, int width, float eps) {                                                             \
        finish_norm<E>(x, bias, residual, weight, shift, normed, rows, width, eps);                                        \
    }                                                                                                                      \
    KERNEL(THREADS)                                                                                                        \
    finish_append_##NAME(E *x, const E *bias, E *cache, const uint32_t *past, long long units, Append to) {                \
        finish_append<E>(x, bias, cache, past, units, to);                                                                 \
    }                                                                                                                      \
    KERNEL(THREADS)                                                                                                        \
    embed_##NAME(const uint32_t *ids, const E *tokens, const E *positions, const uint32_t *list, E *out, long long units,  \
                 Tables of) {                                                                                              \
        embed<E>(ids, tokens, positions, list, out, units, of);                                                            \
    }
LAYERS(f16, f16)
#if HAS_BF16
LAYERS(bf16, bf16)
#endif
LAYERS(f32, float)
