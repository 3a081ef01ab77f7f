// cuBLASLt: products with an epilogue that adds a bias and applies GELU in its tanh form.
#include "driver.hpp"
#include <cstring>

using namespace cuda_on_cpu;

namespace {

enum Status { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batch = 1;
    int64_t stride = 0;
};
struct Description {
    int compute;
    int transposed[2] = {0, 0};
    uint32_t epilogue = 1;
    const void *bias = nullptr;
};
struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

template <class T> int read(T &to, const void *from, size_t size) {
    if (size != sizeof to) return INVALID_VALUE;
    memcpy(&to, from, size);
    return SUCCESS;
}

bool type_of(int number, Type &type) {
    if (number != 0 && number != 2 && number != 14) return false;
    type = number == 0 ? Type::F32 : number == 2 ? Type::F16 : Type::BF16;
    return true;
}

constexpr uint32_t PLAIN = 1, BIAS = 4, GELU = 32, GELU_BIAS = 36;

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT cublasLtCreate(void **handle) { return *handle = new int(1), SUCCESS; }
EXPORT cublasLtDestroy(void *handle) { return delete static_cast<int *>(handle), SUCCESS; }
EXPORT cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    return *layout = new Layout{type, rows, columns, ld}, SUCCESS;
}
EXPORT cublasLtMatrixLayoutSetAttribute(Layout *layout, int which, const void *value, size_t size) {
    if (which == 5) return read(layout->batch, value, size);
    if (which == 6) return read(layout->stride, value, size);
    return refuse(NOT_SUPPORTED, "cuBLASLt: attribute %d of a layout is not known here", which);
}
EXPORT cublasLtMatrixLayoutDestroy(Layout *layout) { return delete layout, SUCCESS; }
EXPORT cublasLtMatmulDescCreate(Description **description, int compute, int) {
    *description = new Description;
    (*description)->compute = compute;
    return SUCCESS;
}
EXPORT cublasLtMatmulDescSetAttribute(Description *description, int which, const void *value, size_t size) {
    int transposed_c = 0;
    switch (which) {
    case 3: return read(description->transposed[0], value, size);
    case 4: return read(description->transposed[1], value, size);
    case 5: return read(transposed_c, value, size) || transposed_c ? INVALID_VALUE : SUCCESS;
    case 7: return read(description->epilogue, value, size);
    case 8: return read(description->bias, value, size);
    default: return refuse(NOT_SUPPORTED, "cuBLASLt: attribute %d of a product is not known here", which);
    }
}
EXPORT cublasLtMatmulDescDestroy(Description *description) { return delete description, SUCCESS; }
EXPORT cublasLtMatmulPreferenceCreate(void **preference) { return *preference = new int(1), SUCCESS; }
EXPORT cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t) { return SUCCESS; }
EXPORT cublasLtMatmulPreferenceDestroy(void *preference) { return delete static_cast<int *>(preference), SUCCESS; }

EXPORT cublasLtMatmulAlgoGetHeuristic(void *, Description *description, Layout *a, Layout *b, Layout *c, Layout *d, void *, int wanted,
                                      Heuristic *results, int *found) {
    Type type;
    const uint32_t epilogue = description->epilogue;
    const bool known = epilogue == PLAIN || epilogue == BIAS || epilogue == GELU || epilogue == GELU_BIAS;
    *found = 0;
    if (!known || !type_of(a->type, type) || a->type != b->type || a->type != c->type || a->type != d->type || wanted < 1)
        return NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    *found = 1;
    return SUCCESS;
}

EXPORT cublasLtMatmul(void *, Description *description, const float *alpha, const void *a, Layout *layout_a, const void *b, Layout *layout_b,
                      const float *beta, const void *c, Layout *layout_c, void *d, Layout *layout_d, const void *algorithm, void *workspace,
                      size_t workspace_size, void *stream_handle) {
    Locked locked(lock);
    Stream *const stream = stream_of(stream_handle);
    Type type;
    if (!stream || !algorithm || !type_of(layout_a->type, type)) return INVALID_VALUE;
    if (c != d || layout_c->ld != layout_d->ld) return refuse(NOT_SUPPORTED, "cuBLASLt: a product to another place than C");
    const bool ta = description->transposed[0], tb = description->transposed[1];
    const int64_t m = static_cast<int64_t>(layout_d->rows), n = static_cast<int64_t>(layout_d->columns);
    const int64_t k = static_cast<int64_t>(ta ? layout_a->rows : layout_a->columns);
    const auto has = [](const Layout *layout, bool transposed, int64_t rows, int64_t columns) {
        if (transposed) std::swap(rows, columns);
        return static_cast<int64_t>(layout->rows) == rows && static_cast<int64_t>(layout->columns) == columns;
    };
    if (!has(layout_a, ta, m, k) || !has(layout_b, tb, k, n) || !has(layout_c, false, m, n))
        return refuse(INVALID_VALUE, "cuBLASLt: the matrices' sizes do not fit each other");
    const bool gelu = description->epilogue & GELU;
    const void *const bias = description->epilogue & BIAS ? description->bias : nullptr;
    if (description->epilogue & BIAS && !bias) return refuse(INVALID_VALUE, "cuBLASLt: an epilogue without its bias");
    if (check_capture(stream, "a product")) return EXECUTION_FAILED;
    count_on(stream, "product", std::string("cublaslt, epilogue ") + std::to_string(description->epilogue));
    const Product product = {m, n, k, ta, tb, type, a, b, d, layout_a->ld, layout_b->ld, layout_d->ld, layout_a->stride, layout_b->stride,
                             layout_d->stride, layout_d->batch, *alpha, *beta, description->compute == 77, gelu, bias};
    enqueue(stream, "cuBLASLt product", [=] {
        if (workspace && workspace_size) check_device("the workspace", workspace, workspace_size);
        multiply(product);
    });
    return SUCCESS;
}
