// The GPU instructions of device.cuh as functions of the driver that runs launches on the processor (scripts/cuda/driver).
#pragma once

DEVICE float exp2_fast(float x) { return exp2f(x); }
DEVICE float log2_fast(float x) { return log2f(x); }

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(f16 x) { return cuda_on_cpu::f16_to_f32(x.bits); }
DEVICE float to_float(bf16 x) { return cuda_on_cpu::bf16_to_f32(x.bits); }

template <typename E> DEVICE E from_float(float x);
template <> DEVICE float from_float(float x) { return x; }
template <> DEVICE f16 from_float(float x) { return {cuda_on_cpu::f32_to_f16(x)}; }
template <> DEVICE bf16 from_float(float x) { return {cuda_on_cpu::f32_to_bf16(x)}; }

template <typename E> DEVICE uint32_t pack(float low, float high) {
    return from_float<E>(low).bits | static_cast<uint32_t>(from_float<E>(high).bits) << 16;
}

template <typename E> constexpr bool IS_BF16 = false;
template <> constexpr bool IS_BF16<bf16> = true;

template <typename E> DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t b[2] = {b0, b1};
#if CAPABILITY >= 80
    cuda_on_cpu::mma<IS_BF16<E>, 16>(c, a, b);
#else
    cuda_on_cpu::mma<IS_BF16<E>, 8>(c, a, b);
    cuda_on_cpu::mma<IS_BF16<E>, 8>(c, a + 2, b + 1);
#endif
}

DEVICE void load_matrices(uint32_t (&r)[4], const void *row) { cuda_on_cpu::ldmatrix(r, row, false); }
DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void *row) { cuda_on_cpu::ldmatrix(r, row, true); }

DEVICE void copy_16_bytes(void *shared, const void *global, bool there) {
    cuda_on_cpu::cp_async_16(shared, global, there ? 16 : 0);
    if (CAPABILITY < 80) cuda_on_cpu::cp_async_wait_all();
}
DEVICE void copies_arrived() { cuda_on_cpu::cp_async_wait_all(); }
