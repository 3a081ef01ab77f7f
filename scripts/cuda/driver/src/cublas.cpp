// cuBLAS: handles and products of matrices in columns.
#include "driver.hpp"

using namespace cuda_on_cpu;

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
struct Handle {
    void *stream = nullptr;
};

/// cudaDataType_t.
bool type_of(int number, Type &type) {
    switch (number) {
    case 0: type = Type::F32; return true;
    case 1: type = Type::F64; return true;
    case 2: type = Type::F16; return true;
    case 14: type = Type::BF16; return true;
    default: return false;
    }
}

const char *name_of(Type type) {
    return type == Type::F32 ? "f32" : type == Type::F64 ? "f64" : type == Type::F16 ? "f16" : "bf16";
}

int add(Handle *handle, const Product &product) {
    Locked locked(lock);
    if (!handle) return NOT_INITIALIZED;
    Stream *const stream = stream_of(handle->stream);
    if (!stream) return refuse(INVALID_VALUE, "cuBLAS: a stream that is not there");
    if (product.m < 0 || product.n < 0 || product.k < 0 || product.batch < 0) return refuse(INVALID_VALUE, "cuBLAS: a negative size");
    if (product.m == 0 || product.n == 0 || product.batch == 0) return SUCCESS;
    if (check_capture(stream, "a product")) return EXECUTION_FAILED;
    count_on(stream, "product", std::string("cublas ") + name_of(product.type));
    char name[160];
    snprintf(name, sizeof name, "cuBLAS product %s of m %lld n %lld k %lld batch %lld", name_of(product.type), (long long)product.m,
             (long long)product.n, (long long)product.k, (long long)product.batch);
    enqueue(stream, name, [=] { multiply(product); });
    return SUCCESS;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT cublasCreate_v2(Handle **handle) { return *handle = new Handle, SUCCESS; }
EXPORT cublasDestroy_v2(Handle *handle) { return delete handle, SUCCESS; }
EXPORT cublasSetStream_v2(Handle *handle, void *stream) { return handle->stream = stream, SUCCESS; }
EXPORT cublasSetWorkspace_v2(Handle *, void *, size_t) { return SUCCESS; }
EXPORT cublasSetMathMode(Handle *, int) { return SUCCESS; }

EXPORT cublasGemmStridedBatchedEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a,
                                  int lda, long long stride_a, const void *b, int type_b, int ldb, long long stride_b, const void *beta,
                                  void *c, int type_c, int ldc, long long stride_c, int batch, int compute, int) {
    Type type;
    if (type_a != type_b || type_a != type_c || !type_of(type_a, type))
        return refuse(NOT_SUPPORTED, "cuBLAS: a product of types %d, %d and %d", type_a, type_b, type_c);
    // The factors' type follows from that of the sums: CUBLAS_COMPUTE_16F, _64F, or one of f32.
    const auto factor = [&](const void *at) -> double {
        if (compute == 64 || compute == 65) return static_cast<float>(*static_cast<const _Float16 *>(at));
        if (compute == 70 || compute == 71) return *static_cast<const double *>(at);
        return *static_cast<const float *>(at);
    };
    const bool tf32 = compute == 77;
    return add(handle, {m, n, k, op_a != 0, op_b != 0, type, a, b, c, lda, ldb, ldc, stride_a, stride_b, stride_c, batch, factor(alpha),
                        factor(beta), tf32});
}
EXPORT cublasGemmEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda,
                    const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc, int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c, ldc, 0, 1,
                                      compute, algorithm);
}
EXPORT cublasDgemmStridedBatched(Handle *handle, int op_a, int op_b, int m, int n, int k, const double *alpha, const double *a, int lda,
                                 long long stride_a, const double *b, int ldb, long long stride_b, const double *beta, double *c, int ldc,
                                 long long stride_c, int batch) {
    return add(handle, {m, n, k, op_a != 0, op_b != 0, Type::F64, a, b, c, lda, ldb, ldc, stride_a, stride_b, stride_c, batch, *alpha, *beta});
}
EXPORT cublasSgemmStridedBatched(Handle *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a, int lda,
                                 long long stride_a, const float *b, int ldb, long long stride_b, const float *beta, float *c, int ldc,
                                 long long stride_c, int batch) {
    return add(handle, {m, n, k, op_a != 0, op_b != 0, Type::F32, a, b, c, lda, ldb, ldc, stride_a, stride_b, stride_c, batch, *alpha, *beta});
}
EXPORT cublasSgemm_v2(Handle *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b,
                      int ldb, const float *beta, float *c, int ldc) {
    return cublasSgemmStridedBatched(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
EXPORT cublasDgemm_v2(Handle *handle, int op_a, int op_b, int m, int n, int k, const double *alpha, const double *a, int lda,
                      const double *b, int ldb, const double *beta, double *c, int ldc) {
    return cublasDgemmStridedBatched(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
