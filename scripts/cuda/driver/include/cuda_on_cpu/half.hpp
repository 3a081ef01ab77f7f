// CUDA's 16-bit floating-point types. Each operation is computed in f32 and rounded to nearest, ties to even.
#pragma once
#include "bits.hpp"
#include "vectors.hpp"
#include <cmath>
#include <type_traits>

namespace cuda_on_cpu {
inline float f16_to_f32(uint16_t bits) {
#if defined(__F16C__)
    using Eight = short __attribute__((vector_size(16)));
    return __builtin_ia32_vcvtph2ps(Eight{static_cast<short>(bits)})[0];
#else
    return static_cast<float>(bits_as<_Float16>(bits));
#endif
}
inline uint16_t f32_to_f16(float x) {
    if (x != x) return 0x7fff;
#if defined(__F16C__)
    using Four = float __attribute__((vector_size(16)));
    return static_cast<uint16_t>(__builtin_ia32_vcvtps2ph(Four{x}, 0)[0]);
#else
    return bits_as<uint16_t>(static_cast<_Float16>(x));
#endif
}
inline float bf16_to_f32(uint16_t bits) { return bits_as<float>(static_cast<uint32_t>(bits) << 16); }
inline uint16_t f32_to_bf16(float x) {
    if (x != x) return 0x7fff;
    const uint32_t bits = bits_as<uint32_t>(x);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
/// Rounds once, from f64 to the nearest f32 in the direction that keeps a tie from arising (round to odd).
inline float f64_to_odd_f32(double x) {
    const float near = static_cast<float>(x);
    if (static_cast<double>(near) == x || !std::isfinite(near)) return near;
    const float other = std::nextafterf(near, near < x ? INFINITY : -INFINITY);
    return bits_as<uint32_t>(near) & 1 ? near : other;
}
template <class T> using if_integral = std::enable_if_t<std::is_integral_v<T>, int>;
} // namespace cuda_on_cpu

struct __half_raw {
    unsigned short x;
};
struct __nv_bfloat16_raw {
    unsigned short x;
};

#define CUDA_ON_CPU_HALF(NAME, RAW, TO_F32, FROM_F32)                                                                  \
    struct alignas(2) NAME {                                                                                           \
        uint16_t bits;                                                                                                 \
        NAME() = default;                                                                                              \
        NAME(RAW raw) : bits(raw.x) {}                                                                                 \
        NAME(float x) : bits(cuda_on_cpu::FROM_F32(x)) {}                                                              \
        NAME(double x) : bits(cuda_on_cpu::FROM_F32(cuda_on_cpu::f64_to_odd_f32(x))) {}                                \
        template <class T, cuda_on_cpu::if_integral<T> = 0> NAME(T x) : NAME(static_cast<double>(x)) {}                \
        operator float() const { return cuda_on_cpu::TO_F32(bits); }                                                   \
        operator RAW() const { return {bits}; }                                                                        \
        template <class T, cuda_on_cpu::if_integral<T> = 0> operator T() const {                                       \
            return static_cast<T>(static_cast<float>(*this));                                                          \
        }                                                                                                              \
        NAME operator-() const { return RAW{static_cast<uint16_t>(bits ^ 0x8000)}; }                                   \
        NAME operator+() const { return *this; }                                                                       \
        NAME &operator+=(NAME y) { return *this = NAME(float(*this) + float(y)); }                                     \
        NAME &operator-=(NAME y) { return *this = NAME(float(*this) - float(y)); }                                     \
        NAME &operator*=(NAME y) { return *this = NAME(float(*this) * float(y)); }                                     \
        NAME &operator/=(NAME y) { return *this = NAME(float(*this) / float(y)); }                                     \
    };                                                                                                                 \
    inline NAME operator+(NAME x, NAME y) { return x += y; }                                                           \
    inline NAME operator-(NAME x, NAME y) { return x -= y; }                                                           \
    inline NAME operator*(NAME x, NAME y) { return x *= y; }                                                           \
    inline NAME operator/(NAME x, NAME y) { return x /= y; }                                                           \
    inline bool operator==(NAME x, NAME y) { return float(x) == float(y); }                                            \
    inline bool operator!=(NAME x, NAME y) { return float(x) != float(y); }                                            \
    inline bool operator<(NAME x, NAME y) { return float(x) < float(y); }                                              \
    inline bool operator>(NAME x, NAME y) { return float(x) > float(y); }                                              \
    inline bool operator<=(NAME x, NAME y) { return float(x) <= float(y); }                                            \
    inline bool operator>=(NAME x, NAME y) { return float(x) >= float(y); }                                            \
    inline bool __hisnan(NAME x) { return float(x) != float(x); }                                                      \
    inline bool __hisinf(NAME x) { return std::isinf(float(x)); }                                                      \
    inline NAME __habs(NAME x) { return RAW{static_cast<uint16_t>(x.bits & 0x7fff)}; }                                 \
    inline NAME __hneg(NAME x) { return -x; }                                                                          \
    inline NAME __hadd(NAME x, NAME y) { return x + y; }                                                               \
    inline NAME __hsub(NAME x, NAME y) { return x - y; }                                                               \
    inline NAME __hmul(NAME x, NAME y) { return x * y; }                                                               \
    inline NAME __hdiv(NAME x, NAME y) { return x / y; }                                                               \
    inline NAME __hfma(NAME x, NAME y, NAME z) { return NAME(double(float(x)) * float(y) + float(z)); }                \
    inline NAME __hmax(NAME x, NAME y) { return NAME(fmaxf(x, y)); }                                                   \
    inline NAME __hmin(NAME x, NAME y) { return NAME(fminf(x, y)); }                                                   \
    inline NAME __hmax_nan(NAME x, NAME y) { return __hisnan(x) ? x : __hisnan(y) ? y : __hmax(x, y); }                \
    inline NAME __hmin_nan(NAME x, NAME y) { return __hisnan(x) ? x : __hisnan(y) ? y : __hmin(x, y); }                \
    inline bool __heq(NAME x, NAME y) { return x == y; }                                                               \
    inline bool __hne(NAME x, NAME y) { return x != y; }                                                               \
    inline bool __hlt(NAME x, NAME y) { return x < y; }                                                                \
    inline bool __hgt(NAME x, NAME y) { return x > y; }                                                                \
    inline NAME hsqrt(NAME x) { return NAME(sqrtf(x)); }                                                               \
    inline NAME hrsqrt(NAME x) { return NAME(1 / sqrtf(x)); }                                                          \
    inline NAME hsin(NAME x) { return NAME(sinf(x)); }                                                                 \
    inline NAME hcos(NAME x) { return NAME(cosf(x)); }                                                                 \
    inline NAME hexp(NAME x) { return NAME(expf(x)); }                                                                 \
    inline NAME hlog(NAME x) { return NAME(logf(x)); }                                                                 \
    inline NAME hceil(NAME x) { return NAME(ceilf(x)); }                                                               \
    inline NAME hfloor(NAME x) { return NAME(floorf(x)); }
CUDA_ON_CPU_HALF(__half, __half_raw, f16_to_f32, f32_to_f16)
CUDA_ON_CPU_HALF(__nv_bfloat16, __nv_bfloat16_raw, bf16_to_f32, f32_to_bf16)
#undef CUDA_ON_CPU_HALF

using half = __half;
using nv_bfloat16 = __nv_bfloat16;

inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline __half __double2half(double x) { return x; }
inline float __half2float(__half x) { return x; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short x) { return __half_raw{x}; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16_raw{x}; }

#define CUDA_ON_CPU_PAIR(NAME, E)                                                                                      \
    struct alignas(4) NAME {                                                                                           \
        E x, y;                                                                                                        \
    };                                                                                                                 \
    inline NAME __hadd2(NAME a, NAME b) { return {a.x + b.x, a.y + b.y}; }                                             \
    inline NAME __hsub2(NAME a, NAME b) { return {a.x - b.x, a.y - b.y}; }                                             \
    inline NAME __hmul2(NAME a, NAME b) { return {a.x * b.x, a.y * b.y}; }                                             \
    inline NAME __hfma2(NAME a, NAME b, NAME c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }             \
    inline NAME make_##NAME(E x, E y) { return {x, y}; }
CUDA_ON_CPU_PAIR(half2, __half)
CUDA_ON_CPU_PAIR(nv_bfloat162, __nv_bfloat16)
#undef CUDA_ON_CPU_PAIR
using __half2 = half2;
using __nv_bfloat162 = nv_bfloat162;

inline float2 __half22float2(half2 x) { return {x.x, x.y}; }
inline half2 __float22half2_rn(float2 x) { return {x.x, x.y}; }
inline half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline half2 __half2half2(__half x) { return {x, x}; }
inline half2 __float2half2_rn(float x) { return {x, x}; }
inline __half __low2half(half2 x) { return x.x; }
inline __half __high2half(half2 x) { return x.y; }
inline float __low2float(half2 x) { return x.x; }
inline float __high2float(half2 x) { return x.y; }
