// What the backward pass of attention needs of each query beforehand: delta = Σ do·out, which is the sum of its weights
// times their gradients (Dao et al. 2022, "FlashAttention", appendix B.2).
#include "device.cuh"

constexpr int THREADS = 128, LANES = 8, ROWS = THREADS / LANES;

/// `grad` and `out` (B, T, H, D) -> `deltas` (B, H, T). 8 lanes share a row.
template <typename E>
DEVICE void deltas_of(const E *grad, const E *out, float *deltas, long long rows, int queries, int heads, int width) {
    const int lane = threadIdx.x % LANES;
    const long long row = static_cast<long long>(blockIdx.x) * ROWS + threadIdx.x / LANES;
    float sum = 0;
    if (row < rows) {
        const auto *const a = reinterpret_cast<const Unit<E> *>(grad + row * width), *const b = reinterpret_cast<const Unit<E> *>(out + row * width);
        for (int i = lane; i < width / Unit<E>::COUNT; i += LANES) {
            const Unit<E> x = a[i], y = b[i];
#pragma unroll
            for (int j = 0; j < Unit<E>::COUNT; j++) sum = fmaf(to_float(x.of[j]), to_float(y.of[j]), sum);
        }
    }
#pragma unroll
    for (int other = 1; other < LANES; other *= 2) sum += shuffle_xor(sum, other);
    if (row < rows && lane == 0) {
        const long long h = row % heads, t = row / heads % queries, b = row / heads / queries;
        deltas[(b * heads + h) * queries + t] = sum;
    }
}

#define DELTAS(NAME, E)                                                                                                       \
    KERNEL(THREADS) delta_##NAME(const E *grad, const E *out, float *deltas, long long rows, int queries, int heads, int width) { \
        deltas_of<E>(grad, out, deltas, rows, queries, heads, width);                                                         \
    }
DELTAS(f16, f16)
#if HAS_BF16
DELTAS(bf16, bf16)
#endif
DELTAS(f32, float)
