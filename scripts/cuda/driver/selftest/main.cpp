// A small program on the driver. Each argument is a case; the ones with a fault must end with a message.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuStreamQuery(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);
int cuEventElapsedTime_v2(float *, void *, void *);
int cuDeviceGetAttribute(int *, int, int);
int cuMemAllocAsync(uintptr_t *, size_t, void *);
int cuMemFreeAsync(uintptr_t, void *);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemcpyHtoDAsync_v2(uintptr_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uintptr_t, size_t, void *);
int cuMemcpyDtoDAsync_v2(uintptr_t, uintptr_t, size_t, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuGraphCreate();
int cublasCreate_v2(void **);
int cublasSetStream_v2(void *, void *);
int cublasGemmStridedBatchedEx(void *, int, int, int, int, int, const void *, const void *, int, int, long long, const void *, int, int,
                               long long, const void *, void *, int, int, long long, int, int, int);
}

static void *module, *stream, *other, *event;
constexpr int COUNT = 1000;

static uintptr_t numbers(void *on, size_t count = COUNT) {
    uintptr_t at;
    std::vector<float> ones(count, 1);
    cuMemAllocAsync(&at, count * 4, on);
    cuMemcpyHtoDAsync_v2(at, ones.data(), count * 4, on);
    return at;
}
static int launch(const char *name, uintptr_t x, unsigned blocks, unsigned threads, unsigned shared, void *on, int count = COUNT) {
    void *function, *parameters[] = {&x, &count};
    if (const int code = cuModuleGetFunction(&function, module, name)) return printf("not found: %d\n", code), 1;
    return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, on, parameters, nullptr);
}
static float first(uintptr_t x, void *on) {
    float value;
    cuMemcpyDtoHAsync_v2(&value, x, 4, on);
    return value;
}
static int expect(float found, float expected) {
    printf("%g, expected %g\n", found, expected);
    return found == expected ? 0 : 1;
}
/// One launch on its own memory, and the first number afterwards.
static int one(const char *name, unsigned threads, float expected, unsigned shared = 0) {
    const uintptr_t x = numbers(stream);
    if (const int code = launch(name, x, 1, threads, shared, stream)) return printf("refused: %d\n", code), 3;
    cuMemFreeAsync(numbers(stream), stream);
    const float found = first(x, stream);
    cuMemFreeAsync(x, stream);
    cuStreamSynchronize(stream);
    return expect(found, expected);
}

/// Doubles on one stream, then on another; with or without a wait.
static int two_streams(bool wait) {
    const uintptr_t x = numbers(stream);
    for (int i = 0; i < 5; i++) launch("double_all", x, 4, 256, 0, stream);
    cuEventRecord(event, stream);
    if (wait) cuStreamWaitEvent(other, event, 0);
    uintptr_t y;
    cuMemAllocAsync(&y, 4, other);
    cuMemcpyDtoDAsync_v2(y, x, 4, other);
    return expect(first(y, other), 32);
}

#include "graphs.hpp"

/// Products of many shapes and both layouts in f32 and f64, against three loops.
template <class S> static int products(int type, int compute) {
    void *handle;
    cublasCreate_v2(&handle);
    cublasSetStream_v2(handle, stream);
    const int sizes[] = {1, 2, 7, 33, 65, 130, 300};
    double largest = 0;
    for (int n = 0; n < 200; n++) {
        const auto size = [&](int of) { return sizes[(n * 2654435761u >> of) % 7]; };
        const int m = size(3), columns = size(9), k = size(15), ta = n & 1, tb = n >> 1 & 1, batch = 1 + n % 3;
        const int lda = (ta ? k : m) + n % 2, ldb = (tb ? columns : k), ldc = m + n % 3;
        const long long a_size = 1LL * lda * (ta ? m : k), b_size = 1LL * ldb * (tb ? k : columns), c_size = 1LL * ldc * columns;
        const S alpha = 1, beta = n % 4 == 0 ? 2 : 0;
        std::vector<S> a(a_size * batch), b(b_size * batch), c(c_size * batch, 1), found(c.size());
        for (size_t i = 0; i < a.size(); i++) a[i] = static_cast<S>(static_cast<int>(i * 7919 % 201) - 100) / 64;
        for (size_t i = 0; i < b.size(); i++) b[i] = static_cast<S>(static_cast<int>(i * 104729 % 203) - 101) / 64;
        uintptr_t on[3];
        const std::vector<S> *from[3] = {&a, &b, &c};
        for (int i = 0; i < 3; i++) {
            cuMemAllocAsync(&on[i], from[i]->size() * sizeof(S), stream);
            cuMemcpyHtoDAsync_v2(on[i], from[i]->data(), from[i]->size() * sizeof(S), stream);
        }
        const auto at = [&](int i) { return reinterpret_cast<void *>(on[i]); };
        cublasGemmStridedBatchedEx(handle, ta, tb, m, columns, k, &alpha, at(0), type, lda, a_size, at(1), type, ldb, b_size, &beta, at(2), type,
                                   ldc, c_size, batch, compute, 0);
        cuMemcpyDtoHAsync_v2(found.data(), on[2], found.size() * sizeof(S), stream);
        for (int e = 0; e < batch; e++)
            for (int j = 0; j < columns; j++)
                for (int i = 0; i < m; i++) {
                    double sum = beta;
                    for (int l = 0; l < k; l++)
                        sum += static_cast<double>(a[e * a_size + (ta ? l + i * lda : i + l * lda)]) * b[e * b_size + (tb ? j + l * ldb : l + j * ldb)];
                    const double error = std::fabs(found[e * c_size + j * ldc + i] - sum);
                    if (!(error <= largest)) largest = error;
                }
        for (int i = 0; i < 3; i++) cuMemFreeAsync(on[i], stream);
    }
    cuStreamSynchronize(stream);
    printf("largest error %.1e\n", largest);
    return largest < (sizeof(S) == 4 ? 1e-3 : 1e-11) ? 0 : 1;
}

static int run(const std::string &name) {
    if (name == "products") return products<float>(0, 68) + products<double>(1, 70);
    if (name == "double_all") {
        const uintptr_t x = numbers(stream);
        launch("double_all", x, 4, 256, 0, stream);
        return expect(first(x, stream), 2);
    }
    if (name == "declared_shared") return one("declared_shared", 128, 128);
    if (name == "copies_to_array") return one("copies_to_array", 128, 128);
    if (name == "block_sum") return one("block_sum", 128, 128);
    if (name == "warp_sum") return one("warp_sum", 32, 32);
    if (name == "counts") return one("counts", 512, 513);
    if (name == "halves") return one("halves", 1, 1);
    if (name == "two_streams") return two_streams(true);
    if (name == "no_wait") return two_streams(false);
    if (name == "threads") {
        std::vector<std::thread> threads;
        static int failed;
        for (int i = 0; i < 4; i++)
            threads.emplace_back([i] {
                void *context;
                cuDevicePrimaryCtxRetain(&context, 0);
                cuCtxSetCurrent(context);
                for (int n = 0; n < 50; n++) {
                    const uintptr_t x = numbers(reinterpret_cast<void *>(2), 40000);
                    launch("double_all", x, 160, 256, 0, reinterpret_cast<void *>(2), 40000);
                    if (first(x, reinterpret_cast<void *>(2)) != 2) failed = 1;
                    cuMemFreeAsync(x, reinterpret_cast<void *>(2));
                }
            });
        for (auto &thread : threads) thread.join();
        return failed;
    }
    if (name == "polls") {
        void *pinned;
        cuMemHostAlloc(&pinned, 4, 0);
        for (const bool of_event : {true, false}) {
            const uintptr_t x = numbers(stream);
            launch("double_all", x, 4, 256, 0, stream);
            cuMemcpyDtoHAsync_v2(pinned, x, 4, stream);
            cuEventRecord(event, stream);
            const auto asked = [&] { return of_event ? cuEventQuery(event) : cuStreamQuery(stream); };
            for (int times = 0; asked() == 600; times++)
                if (times == 1000) return printf("it never ends\n"), 1;
            if (*static_cast<float *>(pinned) != 2) return printf("it ended too early\n"), 1;
        }
        return 0;
    }
    if (name == "many_threads") {
        constexpr int THREADS = 80;
        static std::atomic<int> there, failed;
        std::vector<std::thread> threads;
        for (int i = 0; i < THREADS; i++)
            threads.emplace_back([] {
                void *context;
                cuDevicePrimaryCtxRetain(&context, 0);
                cuCtxSetCurrent(context);
                const uintptr_t x = numbers(reinterpret_cast<void *>(2));
                launch("block_sum", x, 1, 128, 0, reinterpret_cast<void *>(2));
                if (first(x, reinterpret_cast<void *>(2)) != 128) failed++;
                for (there++; there < THREADS;) std::this_thread::yield();
            });
        for (auto &thread : threads) thread.join();
        return failed;
    }
    if (name == "too_much_memory") {
        uintptr_t x;
        const int code = cuMemAllocAsync(&x, size_t{81} << 30, stream);
        printf("refused: %d\n", code);
        return code;
    }
    if (name == "time_of_untimed") {
        void *untimed;
        float milliseconds;
        cuEventCreate(&untimed, 2);
        cuEventRecord(event, stream);
        cuEventRecord(untimed, stream);
        cuStreamSynchronize(stream);
        return cuEventElapsedTime_v2(&milliseconds, event, untimed);
    }
    if (name == "bounds_before") return launch("bounds_before", numbers(stream), 1, 128, 0, stream);
    if (name == "no_blocks") return launch("double_all", numbers(stream), 0, 256, 0, stream);
    if (name == "too_many_threads") return launch("double_all", numbers(stream), 1, 2048, 0, stream);
    if (name == "beyond_launch_bounds") return launch("block_sum", numbers(stream), 1, 256, 0, stream);
    if (name == "too_much_shared") return launch("past_dynamic", numbers(stream), 1, 32, 49 << 10, stream);
    if (name == "use_after_free") {
        const uintptr_t x = numbers(stream);
        cuMemFreeAsync(x, stream);
        launch("double_all", x, 4, 256, 0, stream);
        return cuStreamSynchronize(stream);
    }
    if (name == "freed_on_another_stream") {
        const uintptr_t x = numbers(stream);
        cuStreamSynchronize(stream);
        launch("double_all", x, 4, 256, 0, stream);
        cuMemFreeAsync(x, other);
        cuStreamSynchronize(other);
        return cuStreamSynchronize(stream);
    }
    if (name == "double_free") {
        const uintptr_t x = numbers(stream);
        return cuMemFreeAsync(x, stream) ? 4 : cuMemFreeAsync(x, stream);
    }
    if (name == "uninitialized") {
        uintptr_t x;
        cuMemAllocAsync(&x, 4, stream);
        const float found = first(x, stream);
        printf("%g\n", found);
        return std::isnan(found) ? 3 : 0;
    }
    if (name == "copy_too_long") {
        std::vector<float> more(COUNT + 1);
        return cuMemcpyDtoHAsync_v2(more.data(), numbers(stream), more.size() * 4, stream);
    }
    if (name == "wrong_direction") {
        float value = 0;
        return cuMemcpyHtoDAsync_v2(reinterpret_cast<uintptr_t>(&value), &value, 4, stream) ? 3 : cuStreamSynchronize(stream);
    }
    if (name == "host_pointer") {
        std::vector<float> host(COUNT);
        launch("double_all", reinterpret_cast<uintptr_t>(host.data()), 4, 256, 0, stream);
        return cuStreamSynchronize(stream);
    }
    if (name == "pinned_changed") {
        void *pinned;
        cuMemHostAlloc(&pinned, 4 * COUNT, 0);
        memset(pinned, 0, 4 * COUNT);
        cuMemcpyHtoDAsync_v2(numbers(stream), pinned, 4 * COUNT, stream);
        static_cast<float *>(pinned)[5] = 7;
        return cuStreamSynchronize(stream);
    }
    if (name == "pinned_read_early") {
        void *pinned;
        cuMemHostAlloc(&pinned, 4, 0);
        cuMemcpyDtoHAsync_v2(pinned, numbers(stream), 4, stream);
        printf("%g\n", *static_cast<float *>(pinned));
        return *static_cast<float *>(pinned) == 1 ? 0 : 3;
    }
    if (name.find("graph") == 0) return graphs(name);
    if (name == "missing_function") return cuGraphCreate();
    if (name == "no_kernel") return launch("nothing", numbers(stream), 1, 1, 0, stream);
    // A kernel of that name, whose fault must end the program or give another sum.
    const unsigned shared = name == "past_dynamic" ? 128 : 0, threads = name.find("barrier") != std::string::npos || name == "past_shared" || name.find("cop") == 0 ? 128 : 32;
    return one(name.c_str(), threads, 128, shared);
}

int main(int count, char **words) {
    if (count != 2) return 2;
    void *context;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    if (words[1] == std::string("limits")) { // of shared memory for a block and a multiprocessor, and of its threads
        int block, all, threads;
        cuDeviceGetAttribute(&block, 97, 0), cuDeviceGetAttribute(&all, 81, 0), cuDeviceGetAttribute(&threads, 39, 0);
        return printf("%d %d %d\n", block, all, threads), 3;
    }
    cuStreamCreate(&stream, 1);
    cuStreamCreate(&other, 1);
    cuEventCreate(&event, 0);
    if (cuModuleLoadData(&module, "cuda-on-cpu selftest\n")) return 2;
    return run(words[1]);
}
