// The operations around a block's matrix products, each in one pass over memory: layer norm, and the bias, GELU and
// residual that follow a product.
#include "device.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2) x += shuffle_xor(x, other);
    return x;
}

/// (x - mean) / sqrt(variance + eps) * weight + bias for each row of x (rows, width), one warp per row. The variance is
/// computed from the centered values: E[x²] - E[x]² loses its digits if the mean is large compared with the spread.
template <typename E>
DEVICE void layer_norm(const E *x, const E *weight, const E *bias, E *out, long long rows, int width, float eps) {
    constexpr int COUNT = Unit<E>::COUNT;
    const int lane = threadIdx.x % 32, units = width / COUNT;
    const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= rows) return; // the whole warp returns
    const auto *from = reinterpret_cast<const Unit<E> *>(x + row * width);
    float sum = 0;
    for (int i = lane; i < units; i += 32) {
        const Unit<E> unit = from[i];
#pragma unroll
        for (int j = 0; j < COUNT; j++) sum += to_float(unit.of[j]);
    }
    const float mean = warp_sum(sum) / width;
    float squares = 0;
    for (int i = lane; i < units; i += 32) {
        const Unit<E> unit = from[i];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const float centered = to_float(unit.of[j]) - mean;
            squares = fmaf(centered, centered, squares);
        }
    }
    const float factor = 1 / sqrtf(warp_sum(squares) / width + eps);
    for (int i = lane; i < units; i += 32) {
        Unit<E> unit = from[i];
        const Unit<E> scale = reinterpret_cast<const Unit<E> *>(weight)[i], shift = reinterpret_cast<const Unit<E> *>(bias)[i];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const float normed = (to_float(unit.of[j]) - mean) * factor;
            unit.of[j] = from_float<E>(fmaf(normed, to_float(scale.of[j]), to_float(shift.of[j])));
        }
        reinterpret_cast<Unit<E> *>(out + row * width)[i] = unit;
    }
}

/// GELU in its tanh form as x·σ(z), z = 2·sqrt(2/π)·(x + 0.044715·x³): this form loses no digits for negative x.
DEVICE float gelu(float x) {
    constexpr float SLOPE = 1.5957691216057308f * 1.4426950408889634f; // the slope of z, times log2(e)
    const float z = fmaf(x * x * x, 0.044715f, x) * SLOPE;
    return x / (1 + exp2_fast(-z));
}

/// Finishes a product x (rows, width) in place: x + bias, the GELU of that, or residual + x + bias.
template <typename E, bool Gelu>
DEVICE void finish(E *x, const E *bias, const E *residual, long long units, int width) {
    constexpr int COUNT = Unit<E>::COUNT;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= units) return;
    Unit<E> unit = reinterpret_cast<Unit<E> *>(x)[i];
    const Unit<E> shift = reinterpret_cast<const Unit<E> *>(bias)[i % (width / COUNT)];
    Unit<E> before;
    if (residual) before = reinterpret_cast<const Unit<E> *>(residual)[i];
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        float y = to_float(unit.of[j]) + to_float(shift.of[j]);
        if (Gelu) y = gelu(y);
        if (residual) y += to_float(before.of[j]);
        unit.of[j] = from_float<E>(y);
    }
    reinterpret_cast<Unit<E> *>(x)[i] = unit;
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
    }
LAYERS(f16, f16)
#if HAS_BF16
LAYERS(bf16, bf16)
#endif
LAYERS(f32, float)
