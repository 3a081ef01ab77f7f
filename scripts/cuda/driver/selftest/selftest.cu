// Kernels that are right, and kernels with one fault each, for selftest/main.cpp.
#include <cuda_fp16.h>

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
extern "C" __global__ void counts(float *x, int count) { atomicAdd(x, 1.f); }
extern "C" __global__ void halves(float *x, int count) {
    __half a = __float2half(x[0]), b = a * a;
    x[0] = __half2float(b);
}
