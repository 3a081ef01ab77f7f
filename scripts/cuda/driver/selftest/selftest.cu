// Kernels that are right, and kernels with one fault each, for selftest/main.cpp.
#include <cuda_fp16.h>
#include <cuda_on_cpu/tensor_cores.hpp>

extern "C" __global__ void double_all(float *x, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) x[i] *= 2;
}
extern "C" __global__ void past_the_end(float *x, int count) { x[blockIdx.x * blockDim.x + threadIdx.x + count] = 1; }
extern "C" __global__ void before_the_start(float *x, int count) { x[-4096 - (int)threadIdx.x - count] = 1; }
extern "C" __global__ void just_past_the_end(float *x, int count) { x[count] = 1; }
extern "C" __global__ void misaligned(float *x, int count) {
    float4 v = *reinterpret_cast<float4 *>(x + 1);
    x[0] = v.x + count;
}

// The sum of a block through shared memory; `past` reads beyond it, and the others leave out a barrier.
template <int FAULT> __device__ void sum(float *x, int count) {
    __shared__ float parts[128];
    parts[threadIdx.x] = x[threadIdx.x];
    if (FAULT != 1) __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        if (FAULT != 2) __syncthreads();
    }
    if (FAULT == 3) parts[count + 4096] = 0;
    if (threadIdx.x == 0) x[0] = parts[0];
}
extern "C" __global__ void __launch_bounds__(128) block_sum(float *x, int count) { sum<0>(x, count); }
extern "C" __global__ void no_first_barrier(float *x, int count) { sum<1>(x, count); }
extern "C" __global__ void no_barrier_in_loop(float *x, int count) { sum<2>(x, count); }
extern "C" __global__ void past_shared(float *x, int count) { sum<3>(x, count); }

extern "C" __global__ void warp_sum(float *x, int count) {
    float own = x[threadIdx.x];
    for (int other = 16; other > 0; other /= 2) own += __shfl_xor_sync(0xffffffff, own, other);
    if (threadIdx.x == 0) x[0] = own;
}
extern "C" __global__ void not_in_mask(float *x, int count) { x[0] = __shfl_xor_sync(0xffff, x[threadIdx.x], 1); }
extern "C" __global__ void waits_forever(float *x, int count) {
    if (threadIdx.x < 16) __syncthreads();
    else x[0] = __shfl_xor_sync(0xffffffff, x[threadIdx.x], 1);
}
extern "C" __global__ void past_dynamic(float *x, int count) {
    extern __shared__ float memory[];
    memory[threadIdx.x] = 1;
    x[threadIdx.x] = memory[threadIdx.x + 4096];
}
extern "C" __global__ void assertion(float *x, int count) { assert(count < 0); }
extern "C" __global__ void divides_by_zero(float *x, int count) { x[0] = static_cast<float>(7 / (count - 1000)); }
extern "C" __launch_bounds__(64) __global__ void bounds_before(float *x, int count) { x[0] = 1; }
// The sum of a block, in shared variables whose declarations say more than a type.
extern "C" __global__ void declared_shared(float *x, int count) {
    __shared__ __align__(64) float parts[128];
    static __shared__ float total;
    parts[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        total = reinterpret_cast<uintptr_t>(parts) % 64 == 0 ? 0 : 1;
        for (float part : parts) total += part;
    }
    __syncthreads();
    if (threadIdx.x == 64) x[0] = total;
}
// The same through cp.async, into an array of a fixed size; `FAULT` copies to an address that is not aligned, or past the array.
template <int FAULT> __device__ void copied_sum(float *x, int count) {
    __shared__ __align__(16) float parts[128];
    if (threadIdx.x < 32 - (FAULT == 1)) cuda_on_cpu::cp_async_16(parts + 4 * threadIdx.x + (FAULT == 1) + (FAULT == 2) * count, x + 4 * threadIdx.x);
    cuda_on_cpu::cp_async_wait_all();
    __syncthreads();
    if (threadIdx.x == 0) {
        x[0] = 0;
        for (float part : parts) x[0] += part;
    }
}
extern "C" __global__ void copies_to_array(float *x, int count) { copied_sum<0>(x, count); }
extern "C" __global__ void misaligned_copy(float *x, int count) { copied_sum<1>(x, count); }
extern "C" __global__ void copy_past_array(float *x, int count) { copied_sum<2>(x, count); }
extern "C" __global__ void counts(float *x, int count) { atomicAdd(x, 1.f); }
extern "C" __global__ void halves(float *x, int count) {
    __half a = __float2half(x[0]), b = a * a;
    x[0] = __half2float(b);
}
