// Matrix products for cuBLAS and cuBLASLt: panels of both matrices are unpacked to f32 (or f64) and multiplied tile by tile.
#include "driver.hpp"
#include "../include/cuda_on_cpu/half.hpp"
#include <algorithm>
#include <cmath>

namespace cuda_on_cpu {

size_t size_of(Type type) { return type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2; }

namespace {

#if defined(__AVX512F__)
constexpr int VECTOR = 64, VECTORS = 2, COLUMNS = 8;
#else
constexpr int VECTOR = 32, VECTORS = 2, COLUMNS = 6;
#endif
template <class S> constexpr int ROWS = VECTOR / sizeof(S) * VECTORS;
constexpr int64_t DEPTH = 256, TILE_ROWS = 128, TILE_COLUMNS = 192;

struct F16 {
    uint16_t bits;
    operator float() const { return f16_to_f32(bits); }
    static F16 from(float x) { return {f32_to_f16(x)}; }
};
struct Bf16 {
    uint16_t bits;
    operator float() const { return bf16_to_f32(bits); }
    static Bf16 from(float x) { return {f32_to_bf16(x)}; }
};
template <class E, class S> E rounded(S x) {
    if constexpr (std::is_floating_point_v<E>) return static_cast<E>(x);
    else return E::from(static_cast<float>(x));
}

/// Rounds to the 10 bits of TF32.
float to_tf32(float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    return x != x ? x : bits_as<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

/// `count` lines of `width` numbers, in the order in which the tile reads them: `width` of each step of depth. What is past
/// the end is 0.
template <class E, class S>
void pack(const E *from, int64_t line, int64_t step, int64_t lines, int64_t depth, int width, bool tf32, S *to) {
    for (int64_t first = 0; first < lines; first += width) {
        const int there = static_cast<int>(std::min<int64_t>(width, lines - first));
        for (int64_t k = 0; k < depth; k++, to += width) {
            const E *const at = from + first * line + k * step;
            if (line == 1)
                for (int i = 0; i < there; i++) to[i] = at[i];
            else
                for (int i = 0; i < there; i++) to[i] = at[i * line];
            for (int i = there; i < width; i++) to[i] = 0;
            if constexpr (std::is_same_v<S, float>)
                if (tf32)
                    for (int i = 0; i < there; i++) to[i] = to_tf32(to[i]);
        }
    }
}

/// sums (COLUMNS, ROWS) += a panel · a panel.
template <class S> void multiply_panels(const S *a, const S *b, int64_t depth, S *sums) {
    typedef S Vector __attribute__((vector_size(VECTOR), aligned(sizeof(S))));
    constexpr int LENGTH = VECTOR / sizeof(S);
    Vector total[COLUMNS][VECTORS] = {};
    for (int64_t k = 0; k < depth; k++, a += ROWS<S>, b += COLUMNS)
        for (int j = 0; j < COLUMNS; j++)
            for (int v = 0; v < VECTORS; v++) total[j][v] += *reinterpret_cast<const Vector *>(a + v * LENGTH) * b[j];
    for (int j = 0; j < COLUMNS; j++)
        for (int v = 0; v < VECTORS; v++) *reinterpret_cast<Vector *>(sums + j * ROWS<S> + v * LENGTH) += total[j][v];
}

template <class S> S gelu(S x) {
    const S inner = S(0.7978845608028654) * (x + S(0.044715) * x * x * x);
    return S(0.5) * x * (1 + std::tanh(inner));
}

/// A tile of C of at most TILE_ROWS · TILE_COLUMNS.
template <class E, class S> void multiply_tile(const Product &p, int64_t batch, int64_t row, int64_t column) {
    thread_local std::vector<S> storage;
    constexpr int64_t A = TILE_ROWS * DEPTH, B = TILE_COLUMNS * DEPTH, C = (TILE_ROWS + 2 * ROWS<S>) * (TILE_COLUMNS + COLUMNS);
    storage.resize(A + B + C + 4096);
    S *const a = storage.data(), *const b = a + A + ROWS<S> * DEPTH / 64, *const sums = b + B + 64;
    const int64_t rows = std::min(TILE_ROWS, p.m - row), columns = std::min(TILE_COLUMNS, p.n - column);
    const int64_t down = (rows + ROWS<S> - 1) / ROWS<S>, across = (columns + COLUMNS - 1) / COLUMNS;
    std::fill(sums, sums + down * across * ROWS<S> * COLUMNS, S(0));
    const E *const from_a = static_cast<const E *>(p.a) + batch * p.stride_a + (p.transposed_a ? row * p.lda : row);
    const E *const from_b = static_cast<const E *>(p.b) + batch * p.stride_b + (p.transposed_b ? column : column * p.ldb);
    const int64_t line_a = p.transposed_a ? p.lda : 1, step_a = p.transposed_a ? 1 : p.lda;
    const int64_t line_b = p.transposed_b ? 1 : p.ldb, step_b = p.transposed_b ? p.ldb : 1;
    for (int64_t k = 0; k < p.k; k += DEPTH) {
        const int64_t depth = std::min(DEPTH, p.k - k);
        pack(from_a + k * step_a, line_a, step_a, rows, depth, ROWS<S>, p.tf32, a);
        pack(from_b + k * step_b, line_b, step_b, columns, depth, COLUMNS, p.tf32, b);
        for (int64_t j = 0; j < across; j++)
            for (int64_t i = 0; i < down; i++)
                multiply_panels(a + i * ROWS<S> * depth, b + j * COLUMNS * depth, depth, sums + (j * down + i) * ROWS<S> * COLUMNS);
    }
    const S alpha = static_cast<S>(p.alpha), beta = static_cast<S>(p.beta);
    const E *const bias = static_cast<const E *>(p.bias);
    for (int64_t j = 0; j < columns; j++) {
        E *const to = static_cast<E *>(p.c) + batch * p.stride_c + (column + j) * p.ldc + row;
        for (int64_t i = 0; i < rows; i++) {
            const S sum = sums[(j / COLUMNS * down + i / ROWS<S>) * ROWS<S> * COLUMNS + j % COLUMNS * ROWS<S> + i % ROWS<S>];
            S x = alpha * sum;
            if (beta != 0) x += beta * static_cast<S>(to[i]);
            if (bias) x += static_cast<S>(bias[row + i]);
            to[i] = rounded<E>(p.gelu ? gelu(x) : x);
        }
    }
}

template <class E, class S> void multiply_all(const Product &p) {
    const int64_t down = (p.m + TILE_ROWS - 1) / TILE_ROWS, across = (p.n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const bool worthwhile = p.m * p.n * std::max<int64_t>(p.k, 1) * p.batch > 100000;
    in_parallel(static_cast<size_t>(down * across * p.batch), worthwhile, [&](size_t i) {
        const int64_t tile = static_cast<int64_t>(i) % (down * across), batch = static_cast<int64_t>(i) / (down * across);
        multiply_tile<E, S>(p, batch, tile % down * TILE_ROWS, tile / down * TILE_COLUMNS);
    });
}

/// Ends the program unless a matrix of columns lies in memory that can be used.
void check_matrix(const char *what, const Product &p, const void *at, int64_t rows, int64_t columns, int64_t ld, int64_t stride) {
    if (rows == 0 || columns == 0) return;
    if (ld < rows) fail("%s: columns of %lld, but %lld rows", what, static_cast<long long>(ld), static_cast<long long>(rows));
    const int64_t last = (p.batch - 1) * std::max<int64_t>(stride, 0) + (columns - 1) * ld + rows;
    check_device(what, at, static_cast<size_t>(last) * size_of(p.type));
    if (reinterpret_cast<uintptr_t>(at) % size_of(p.type) != 0) fail("%s is not aligned to its type", what);
}

} // namespace

void multiply(const Product &p) {
    check_matrix("matrix A", p, p.a, p.transposed_a ? p.k : p.m, p.transposed_a ? p.m : p.k, p.lda, p.stride_a);
    check_matrix("matrix B", p, p.b, p.transposed_b ? p.n : p.k, p.transposed_b ? p.k : p.n, p.ldb, p.stride_b);
    check_matrix("matrix C", p, p.c, p.m, p.n, p.ldc, p.stride_c);
    if (p.bias) check_device("the bias", p.bias, static_cast<size_t>(p.m) * size_of(p.type));
    switch (p.type) {
    case Type::F32: return multiply_all<float, float>(p);
    case Type::F64: return multiply_all<double, double>(p);
    case Type::F16: return multiply_all<F16, float>(p);
    case Type::BF16: return multiply_all<Bf16, float>(p);
    }
}

} // namespace cuda_on_cpu
