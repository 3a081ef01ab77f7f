// CUDA's 8-bit floating-point type with 4 bits of exponent: no infinity, one NaN, 448 at most.
#pragma once
#include "half.hpp"

enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8_storage_t = unsigned char;

namespace cuda_on_cpu {
inline float e4m3_to_f32(uint8_t bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    float size = exponent == 15 && fraction == 7 ? NAN
                 : exponent == 0                 ? std::ldexp(static_cast<float>(fraction), -9)
                                                 : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    return bits >> 7 ? -size : size;
}
/// To nearest, ties to even; what is too large becomes 448.
inline uint8_t f32_to_e4m3(float x) {
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    if (x != x) return sign | 0x7f;
    const float size = std::fabs(x);
    if (size >= 448) return sign | 0x7e;
    int exponent;
    std::frexp(size, &exponent);
    const int place = size < 0x1p-6f ? -9 : exponent - 4;
    const int units = static_cast<int>(std::nearbyint(std::ldexp(size, -place)));
    return static_cast<uint8_t>(sign | (place == -9 ? units : (place + 9) * 8 + units));
}
} // namespace cuda_on_cpu

struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float x) : __x(cuda_on_cpu::f32_to_e4m3(x)) {}
    explicit __nv_fp8_e4m3(double x) : __x(cuda_on_cpu::f32_to_e4m3(cuda_on_cpu::f64_to_odd_f32(x))) {}
    explicit __nv_fp8_e4m3(__half x) : __nv_fp8_e4m3(float(x)) {}
    explicit __nv_fp8_e4m3(__nv_bfloat16 x) : __nv_fp8_e4m3(float(x)) {}
    template <class T, cuda_on_cpu::if_integral<T> = 0> explicit __nv_fp8_e4m3(T x) : __nv_fp8_e4m3(static_cast<float>(x)) {}
    explicit operator float() const { return cuda_on_cpu::e4m3_to_f32(__x); }
    explicit operator double() const { return cuda_on_cpu::e4m3_to_f32(__x); }
    explicit operator __half() const { return cuda_on_cpu::e4m3_to_f32(__x); }
    explicit operator __nv_bfloat16() const { return cuda_on_cpu::e4m3_to_f32(__x); }
};

inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t) {
    return {cuda_on_cpu::f32_to_f16(cuda_on_cpu::e4m3_to_f32(x))};
}
