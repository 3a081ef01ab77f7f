// CUDA's vector types.
#pragma once

#define CUDA_ON_CPU_VECTORS(T, NAME, A2, A4)                                                                           \
    struct NAME##1 { T x; };                                                                                           \
    struct alignas(A2) NAME##2 { T x, y; };                                                                            \
    struct alignas(A4) NAME##4 { T x, y, z, w; };                                                                      \
    inline NAME##1 make_##NAME##1(T x) { return {x}; }                                                                 \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                                         \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_ON_CPU_VECTORS(signed char, char, 2, 4)
CUDA_ON_CPU_VECTORS(unsigned char, uchar, 2, 4)
CUDA_ON_CPU_VECTORS(short, short, 4, 8)
CUDA_ON_CPU_VECTORS(unsigned short, ushort, 4, 8)
CUDA_ON_CPU_VECTORS(int, int, 8, 16)
CUDA_ON_CPU_VECTORS(unsigned, uint, 8, 16)
CUDA_ON_CPU_VECTORS(long, long, 16, 16)
CUDA_ON_CPU_VECTORS(unsigned long, ulong, 16, 16)
CUDA_ON_CPU_VECTORS(long long, longlong, 16, 16)
CUDA_ON_CPU_VECTORS(unsigned long long, ulonglong, 16, 16)
CUDA_ON_CPU_VECTORS(float, float, 8, 16)
CUDA_ON_CPU_VECTORS(double, double, 16, 16)
#undef CUDA_ON_CPU_VECTORS
struct float3 {
    float x, y, z;
};
struct int3 {
    int x, y, z;
};
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
