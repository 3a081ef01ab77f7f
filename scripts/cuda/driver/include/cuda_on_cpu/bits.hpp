// Numbers as their bits, and integer instructions.
#pragma once
#include <cstdint>
#include <cstring>

namespace cuda_on_cpu {
template <class To, class From> inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace cuda_on_cpu

inline unsigned __float_as_uint(float x) { return cuda_on_cpu::bits_as<unsigned>(x); }
inline int __float_as_int(float x) { return cuda_on_cpu::bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return cuda_on_cpu::bits_as<float>(x); }
inline float __int_as_float(int x) { return cuda_on_cpu::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_on_cpu::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_on_cpu::bits_as<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}

/// Products of four signed bytes each, added to c.
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
    return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}
/// Differences of four signed bytes, which saturate.
inline unsigned __vsubss4(unsigned a, unsigned b) {
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        int difference = static_cast<int8_t>(a >> 8 * i) - static_cast<int8_t>(b >> 8 * i);
        difference = difference < -128 ? -128 : difference > 127 ? 127 : difference;
        result |= static_cast<unsigned>(difference & 255) << 8 * i;
    }
    return result;
}
inline unsigned __vsub4(unsigned a, unsigned b) {
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= ((a >> 8 * i) - (b >> 8 * i) & 255u) << 8 * i;
    return result;
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        if ((a >> 8 * i & 255) == (b >> 8 * i & 255)) result |= 255u << 8 * i;
    return result;
}
inline unsigned __vcmpne4(unsigned a, unsigned b) { return ~__vcmpeq4(a, b); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= static_cast<unsigned>(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return result;
}
