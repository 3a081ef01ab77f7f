// CUDA's language for a C++ compiler: what nvcc knows by itself. The stand-in for nvcc includes it before each file.
#pragma once
#define CUDA_ON_CPU 1
#include "bits.hpp"
#include "fp8.hpp"
#include "half.hpp"
#include "math.hpp"
#include "registration.hpp"
#include "tensor_cores.hpp"
#include "vectors.hpp"
#include "warps.hpp"
#include "worker.hpp"
#include <cassert>
#include <climits>
#include <cstdio>
#include <cstdlib>

#define threadIdx (cuda_on_cpu_worker.thread)
#define blockIdx (cuda_on_cpu_worker.block)
#define blockDim (cuda_on_cpu_worker.threads)
#define gridDim (cuda_on_cpu_worker.blocks)
#define warpSize 32
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __align__(n) alignas(n)
#define __ldg(at) (*(at))
#define __CUDA_ARCH__ (CUDA_ON_CPU_CAPABILITY * 10)
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDA_VERSION 13000

#undef assert
#define assert(holds) ((holds) ? void() : cuda_on_cpu_fail("an assertion of a kernel does not hold: " #holds))

namespace cuda_on_cpu {
/// A `__shared__` array without a size: the memory of the size given at launch.
template <class T> inline T *dynamic_shared() { return static_cast<T *>(cuda_on_cpu_worker.shared); }
} // namespace cuda_on_cpu
