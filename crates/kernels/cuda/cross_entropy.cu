// Cross-entropy of rows of logits, and their gradients in place.
#include "device.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

/// Combines the numbers of all threads of the block: with `max`, or with a sum. All threads get the result.
template <bool Max> DEVICE float combine(float x) {
    float *const parts = static_cast<float *>(shared_memory()); // (WARPS)
    const auto both = [](float a, float b) { return Max ? fmaxf(a, b) : a + b; };
#pragma unroll
    for (int other = 16; other > 0; other /= 2) x = both(x, shuffle_xor(x, other));
    sync_block(); // no thread still reads the parts of an earlier call
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    sync_block();
    x = parts[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) x = both(x, parts[i]);
    return x;
}

/// One block for each row of `logits` (rows, width). `losses` (rows) gets log Σ exp(x) - x[target], in nats. If
/// `gradients` is not 0, the row becomes softmax(x) - onehot(target).
template <typename E>
DEVICE void cross_entropy(E *logits, const uint32_t *targets, float *losses, int width, int gradients) {
    E *const row = logits + static_cast<long long>(blockIdx.x) * width;
    float largest = -INFINITE, sum = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) largest = fmaxf(largest, to_float(row[i]));
    largest = combine<true>(largest);
    for (int i = threadIdx.x; i < width; i += THREADS) sum += exp2_fast((to_float(row[i]) - largest) * LOG2_E);
    sum = combine<false>(sum);
    const int target = static_cast<int>(targets[blockIdx.x]);
    // First the difference: a large maximum would take digits from the logarithm.
    if (threadIdx.x == 0) losses[blockIdx.x] = fmaf(log2_fast(sum), LN_2, largest - to_float(row[target]));
    sync_block(); // the logit of the target has been read
    if (!gradients) return;
    const float factor = 1 / sum;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const float weight = exp2_fast((to_float(row[i]) - largest) * LOG2_E) * factor;
        row[i] = from_float<E>(i == target ? weight - 1 : weight);
    }
}

#define CROSS_ENTROPY(NAME, E)                                                                                                \
    KERNEL(THREADS)                                                                                                           \
    cross_entropy_##NAME(E *logits, const uint32_t *targets, float *losses, int width, int gradients) {                       \
        cross_entropy<E>(logits, targets, losses, width, gradients);                                                          \
    }
CROSS_ENTROPY(f16, f16)
#if HAS_BF16
CROSS_ENTROPY(bf16, bf16)
#endif
CROSS_ENTROPY(f32, float)
