// What follows a product or a layer's sum: bias, GELU and residual, the layer norm of a row, and the place of keys and values in a
// cache.
#pragma once
#include "device.cuh"

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2) x += shuffle_xor(x, other);
    return x;
}

/// What a layer norm takes from a row, and what it multiplies the rest by: 1 / sqrt(variance + eps).
struct Spread {
    float mean, factor;
};

/// The spread of a row of `width`, by one warp. The variance is computed from the centered values: E[x²] - E[x]² loses its digits if
/// the mean is large compared with the spread. A lane reads units lane, lane + 32, and so on, by `load`.
template <typename E, typename Load> DEVICE Spread spread_of(const Load &load, int width, float eps) {
    constexpr int COUNT = Unit<E>::COUNT;
    const int lane = threadIdx.x % 32, units = width / COUNT;
    float sum = 0;
    for (int i = lane; i < units; i += 32) {
        const Unit<E> unit = load(i);
#pragma unroll
        for (int j = 0; j < COUNT; j++) sum += to_float(unit.of[j]);
    }
    const float mean = warp_sum(sum) / width;
    float squares = 0;
    for (int i = lane; i < units; i += 32) {
        const Unit<E> unit = load(i);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const float centered = to_float(unit.of[j]) - mean;
            squares = fmaf(centered, centered, squares);
        }
    }
    return {mean, 1 / sqrtf(warp_sum(squares) / width + eps)};
}

/// (x - mean) / sqrt(variance + eps) * weight + bias for a number of a row.
template <typename E> DEVICE E normed(E x, const Spread &of, E weight, E bias) {
    return from_float<E>(fmaf((to_float(x) - of.mean) * of.factor, to_float(weight), to_float(bias)));
}

/// `normed` for a row x of `width`, by one warp.
template <typename E, typename Load>
DEVICE void normalize(const Load &load, const E *weight, const E *bias, E *out, int width, float eps) {
    constexpr int COUNT = Unit<E>::COUNT;
    const int lane = threadIdx.x % 32, units = width / COUNT;
    const Spread of = spread_of<E>(load, width, eps);
    for (int i = lane; i < units; i += 32) {
        Unit<E> unit = load(i);
        const Unit<E> scale = reinterpret_cast<const Unit<E> *>(weight)[i], shift = reinterpret_cast<const Unit<E> *>(bias)[i];
#pragma unroll
        for (int j = 0; j < COUNT; j++) unit.of[j] = normed<E>(unit.of[j], of, scale.of[j], shift.of[j]);
        reinterpret_cast<Unit<E> *>(out)[i] = unit;
    }
}

/// GELU in its tanh form as x·σ(z), z = 2·sqrt(2/π)·(x + 0.044715·x³): this form loses no digits for negative x.
DEVICE float gelu(float x) {
    constexpr float SLOPE = 1.5957691216057308f * 1.4426950408889634f; // the slope of z, times log2(e)
    const float z = fmaf(x * x * x, 0.044715f, x) * SLOPE;
    return x / (1 + exp2_fast(-z));
}

/// A unit of a product in f32, finished: product + bias, the GELU of that, or residual + product + bias.
template <typename E, bool Gelu>
DEVICE Unit<E> finished(const float (&product)[Unit<E>::COUNT], const Unit<E> &bias, const Unit<E> *residual) {
    Unit<E> before, out;
    if (residual) before = *residual;
#pragma unroll
    for (int j = 0; j < Unit<E>::COUNT; j++) {
        float y = product[j] + to_float(bias.of[j]);
        if (Gelu) y = gelu(y);
        if (residual) y += to_float(before.of[j]);
        out.of[j] = from_float<E>(y);
    }
    return out;
}

/// Where the columns of a product (B·positions, width) from `queries` on go: into a cache (B, heads, capacity, dim), behind `past`
/// positions. The Rust side has the same struct.
struct Append {
    int width, queries, dim, heads, capacity, past, positions;
};

static_assert(sizeof(Append) == 28, "must match src/gpu/finish_append.rs");

/// Writes a unit of a row of a product: to the product itself if it is of the queries, otherwise to the cache. `past`, if it is not
/// null, holds the number that counts in place of that of `to`, since a graph is launched again while the cache grows; what has no room is
/// left out.
template <typename E>
DEVICE void append(const Unit<E> &y, E *x, E *cache, const uint32_t *past, long long row, int unit, const Append &to) {
    const int column = unit * Unit<E>::COUNT - to.queries;
    if (column < 0) {
        *reinterpret_cast<Unit<E> *>(x + row * to.width + unit * Unit<E>::COUNT) = y;
        return;
    }
    const long long text = row / to.positions, head = text * to.heads + column / to.dim; // of all texts
    const uint32_t place = (past ? *past : to.past) + static_cast<uint32_t>(row - text * to.positions);
    if (place >= static_cast<uint32_t>(to.capacity)) return;
    const long long position = head * to.capacity + place;
    *reinterpret_cast<Unit<E> *>(cache + position * to.dim + column % to.dim) = y;
}
