// The driver's functions: devices, contexts, modules, launches.
#include "driver.hpp"
#include <cstring>

using namespace cuda_on_cpu;

namespace {

enum Code { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500 };

struct Context {
    int device;
};
Context *context_of(int device) {
    static auto &all = *new std::vector<Context *>;
    while (all.size() <= static_cast<size_t>(device)) all.push_back(new Context{static_cast<int>(all.size())});
    return all[device];
}
thread_local Context *current = nullptr;

bool is_device_number(int device) { return device >= 0 && static_cast<unsigned>(device) < settings().devices; }

constexpr unsigned MOST_THREADS = 1024;

/// What a GPU of a compute capability has: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
struct Limits {
    unsigned shared_kib, shared_kib_of_all, threads_of_all;
};
/// KiB of shared memory of a block and of a multiprocessor, and the threads of a multiprocessor.
Limits limits_of(unsigned capability) {
    switch (capability) {
    case 75: return {64, 64, 1024};
    case 80: return {163, 164, 2048};
    case 86: case 89: case 120: case 121: return {99, 100, 1536};
    case 87: return {163, 164, 1536};
    default: return {227, 228, 2048};
    }
}

/// CUdevice_attribute, as of an H100.
int attribute(int which, int *value) {
    const unsigned capability = settings().capability;
    const Limits limits = limits_of(capability);
    switch (which) {
    case 1: *value = MOST_THREADS; return SUCCESS;              // MAX_THREADS_PER_BLOCK
    case 2: case 3: *value = 1024; return SUCCESS;              // MAX_BLOCK_DIM_X, Y
    case 4: *value = 64; return SUCCESS;                        // MAX_BLOCK_DIM_Z
    case 5: *value = 0x7fffffff; return SUCCESS;                // MAX_GRID_DIM_X
    case 6: case 7: *value = 65535; return SUCCESS;             // MAX_GRID_DIM_Y, Z
    case 8: *value = 48 << 10; return SUCCESS;                  // MAX_SHARED_MEMORY_PER_BLOCK
    case 10: *value = 32; return SUCCESS;                       // WARP_SIZE
    case 12: *value = 65536; return SUCCESS;                    // MAX_REGISTERS_PER_BLOCK
    case 16: *value = static_cast<int>(settings().multiprocessors); return SUCCESS; // MULTIPROCESSOR_COUNT
    case 38: *value = static_cast<int>(settings().l2); return SUCCESS; // L2_CACHE_SIZE
    case 39: *value = static_cast<int>(limits.threads_of_all); return SUCCESS; // MAX_THREADS_PER_MULTIPROCESSOR
    case 75: *value = capability / 10; return SUCCESS;          // COMPUTE_CAPABILITY_MAJOR
    case 76: *value = capability % 10; return SUCCESS;          // COMPUTE_CAPABILITY_MINOR
    case 81: *value = static_cast<int>(limits.shared_kib_of_all) << 10; return SUCCESS; // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    case 97: *value = static_cast<int>(limits.shared_kib) << 10; return SUCCESS; // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    case 115: *value = 1; return SUCCESS;                       // MEMORY_POOLS_SUPPORTED
    default: return refuse(INVALID_VALUE, "device attribute %d is not known here", which);
    }
}

/// What a GPU would refuse about a launch.
int check_launch(const Function &function, uint3 blocks, uint3 threads, unsigned shared) {
    const Kernel &kernel = *function.kernel;
    const size_t count = static_cast<size_t>(threads.x) * threads.y * threads.z;
    if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return refuse(INVALID_VALUE, "%s: a grid without blocks", kernel.name);
    if (blocks.x > 0x7fffffff || blocks.y > 65535 || blocks.z > 65535)
        return refuse(INVALID_VALUE, "%s: a grid of %u x %u x %u blocks", kernel.name, blocks.x, blocks.y, blocks.z);
    if (static_cast<uint64_t>(blocks.x) * blocks.y * blocks.z > 0xffffffff)
        return refuse(INVALID_VALUE, "%s: more blocks than this driver counts", kernel.name);
    if (count == 0 || count > MOST_THREADS || threads.z > 64)
        return refuse(INVALID_VALUE, "%s: blocks of %u x %u x %u threads", kernel.name, threads.x, threads.y, threads.z);
    if (kernel.most_threads && count > kernel.most_threads)
        return refuse(INVALID_VALUE, "%s: blocks of %zu threads, but it is compiled for %u", kernel.name, count, kernel.most_threads);
    if (shared > function.allowed_shared)
        return refuse(INVALID_VALUE, "%s: %u bytes of shared memory, but %u are allowed", kernel.name, shared, function.allowed_shared);
    return SUCCESS;
}

/// The parameters, copied when the launch is added, as CUDA does.
struct Parameters {
    std::vector<char> bytes;
    std::vector<void *> at;
    Parameters(const Kernel &kernel, void **from) {
        size_t size = 0;
        for (unsigned i = 0; i < kernel.count; i++) size += (kernel.parameters[i].size + 15) / 16 * 16;
        bytes.resize(size + 16);
        char *next = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(bytes.data()) + 15) / 16 * 16);
        for (unsigned i = 0; i < kernel.count; i++) {
            memcpy(next, from[i], kernel.parameters[i].size);
            at.push_back(next);
            next += (kernel.parameters[i].size + 15) / 16 * 16;
        }
    }
    /// Pointers are null or lie in memory that can be used now.
    void check(const Kernel &kernel) const {
        for (unsigned i = 0; i < kernel.count; i++) {
            if (!kernel.parameters[i].pointer) continue;
            const void *pointer;
            memcpy(&pointer, at[i], sizeof pointer);
            char what[40];
            snprintf(what, sizeof what, "parameter %u", i);
            if (pointer) check_device(what, pointer, 0);
        }
    }
};

void run_launch(const Kernel &kernel, const Parameters &parameters, uint3 blocks, uint3 threads, unsigned shared) {
    static uint64_t launches = 0;
    parameters.check(kernel);
    const uint64_t seed = settings().seed * 1000003 + ++launches;
    const Launch launch = {&kernel, blocks, threads, shared, seed, const_cast<void **>(parameters.at.data())};
    const size_t count = static_cast<size_t>(blocks.x) * blocks.y * blocks.z;
    // An order that any block may lead: a step that has no divisor in common with their number.
    Random random(seed);
    size_t step = count / 2 + random.next() % (count / 2 + 1) | 1;
    const auto divisor = [](size_t a, size_t b) {
        while (b) a %= b, std::swap(a, b);
        return a;
    };
    while (divisor(count, step) != 1) step += 2;
    const size_t first = random.next() % count;
    const size_t all_threads = count * threads.x * threads.y * threads.z;
    in_parallel(count, all_threads > 4096, [&](size_t i) {
        run_block(launch, static_cast<unsigned>((first + static_cast<unsigned __int128>(i) * step) % count));
    });
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT cuInit(unsigned) {
    watch_faults();
    return SUCCESS;
}
EXPORT cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
EXPORT cuDeviceGetCount(int *count) { return *count = static_cast<int>(settings().devices), SUCCESS; }
EXPORT cuDeviceGet(int *device, int ordinal) {
    if (!is_device_number(ordinal)) return INVALID_DEVICE;
    return *device = ordinal, SUCCESS;
}
EXPORT cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "processor (cuda-on-cpu)"), SUCCESS; }
EXPORT cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = ALL_MEMORY, SUCCESS; }
EXPORT cuDeviceGetUuid(char *uuid, int device) { return memset(uuid, device, 16), SUCCESS; }
EXPORT cuDeviceGetAttribute(int *value, int which, int device) {
    if (!is_device_number(device)) return INVALID_DEVICE;
    return attribute(which, value);
}
EXPORT cuDeviceGetDefaultMemPool(void **pool, int device) {
    if (!is_device_number(device)) return INVALID_DEVICE;
    return *pool = context_of(device), SUCCESS;
}
EXPORT cuMemPoolSetAttribute(void *pool, int, void *value) { return pool && value ? SUCCESS : INVALID_VALUE; }
EXPORT cuDevicePrimaryCtxRetain(void **context, int device) {
    if (!is_device_number(device)) return INVALID_DEVICE;
    Locked locked(lock);
    return *context = context_of(device), SUCCESS;
}
EXPORT cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
EXPORT cuCtxGetCurrent(void **context) { return *context = current, SUCCESS; }
EXPORT cuCtxSetCurrent(void *context) { return current = static_cast<Context *>(context), SUCCESS; }
EXPORT cuCtxDestroy_v2(void *) { return SUCCESS; }
EXPORT cuCtxGetDevice(int *device) {
    if (!current) return INVALID_CONTEXT;
    return *device = current->device, SUCCESS;
}
EXPORT cuCtxSynchronize() {
    Locked locked(lock);
    if (const int code = check_unsafe("cuCtxSynchronize", true)) return code;
    count("sync", "context");
    run_everything();
    return SUCCESS;
}

EXPORT cuModuleLoadData(void **module, const void *image) {
    Locked locked(lock);
    if (const int code = check_unsafe("cuModuleLoadData")) return code;
    return load_module(static_cast<const char *>(image), module);
}
EXPORT cuModuleLoad(void **module, const char *file) {
    FILE *const opened = fopen(file, "r");
    if (!opened) return 301;
    char image[4096] = {};
    const size_t size = fread(image, 1, sizeof image - 1, opened);
    fclose(opened);
    return size ? cuModuleLoadData(module, image) : 200;
}
EXPORT cuModuleUnload(void *) { return SUCCESS; }
EXPORT cuModuleGetFunction(void **function, void *module, const char *name) {
    Locked locked(lock);
    *function = function_of(module, name);
    return *function ? SUCCESS : NOT_FOUND;
}
EXPORT cuFuncSetAttribute(void *handle, int which, int value) {
    Locked locked(lock);
    Function &function = *static_cast<Function *>(handle);
    if (which != 8) return SUCCESS; // others are hints
    int most = 0;
    attribute(97, &most);
    if (value < 0 || value > most)
        return refuse(INVALID_VALUE, "%s: %d bytes of shared memory are asked for, but a block has %d at most", function.kernel->name, value, most);
    function.allowed_shared = static_cast<unsigned>(value);
    return SUCCESS;
}

EXPORT cuLaunchKernel(void *handle, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared, void *stream_handle, void **parameters, void **extra) {
    Locked locked(lock);
    if (!handle) return INVALID_HANDLE;
    if (!current) return refuse(INVALID_CONTEXT, "a launch in a thread without a context");
    Stream *const stream = stream_of(stream_handle);
    if (!stream) return refuse(INVALID_HANDLE, "a launch on a stream that is not there");
    if (const int code = check_capture(stream, "a launch")) return code;
    if (extra) return refuse(INVALID_VALUE, "a launch with `extra` is not known here");
    const Function &function = *static_cast<Function *>(handle);
    const Kernel &kernel = *function.kernel;
    const uint3 blocks = {blocks_x, blocks_y, blocks_z}, threads = {threads_x, threads_y, threads_z};
    if (const int code = check_launch(function, blocks, threads, shared)) return code;
    if (kernel.count && !parameters) return refuse(INVALID_VALUE, "%s: a launch without parameters", kernel.name);
    count_on(stream, "launch", kernel.name);
    auto copied = std::make_shared<const Parameters>(kernel, parameters);
    char name[300];
    snprintf(name, sizeof name, "%s<<<(%u, %u, %u), (%u, %u, %u), %u>>>", kernel.name, blocks.x, blocks.y, blocks.z, threads.x, threads.y,
             threads.z, shared);
    enqueue(stream, name, [=, &kernel] { run_launch(kernel, *copied, blocks, threads, shared); });
    return SUCCESS;
}

EXPORT cuGetErrorString(int code, const char **text) {
    switch (code) {
    case SUCCESS: *text = "no error"; break;
    case INVALID_VALUE: *text = "invalid argument"; break;
    case 2: *text = "out of memory"; break;
    case INVALID_DEVICE: *text = "invalid device ordinal"; break;
    case INVALID_CONTEXT: *text = "invalid device context"; break;
    case INVALID_HANDLE: *text = "invalid resource handle"; break;
    case NOT_FOUND: *text = "named symbol not found"; break;
    case ILLEGAL_STATE: *text = "the operation cannot be performed in the present state"; break;
    case CAPTURE_UNSUPPORTED: *text = "operation not permitted when stream is capturing"; break;
    case CAPTURE_INVALIDATED: *text = "operation failed due to a previous error during capture"; break;
    case CAPTURE_MERGE: *text = "operation would result in a merge of separate capture sequences"; break;
    case CAPTURE_UNMATCHED: *text = "capture was not ended in the same stream as it began"; break;
    case CAPTURE_UNJOINED: *text = "capturing stream has unjoined work"; break;
    case CAPTURE_ISOLATION: *text = "dependency created on uncaptured work in another stream"; break;
    case CAPTURE_IMPLICIT: *text = "operation would make the legacy stream depend on a capturing blocking stream"; break;
    case CAPTURED_EVENT: *text = "operation not permitted on an event last recorded in a capturing stream"; break;
    case CAPTURE_WRONG_THREAD: *text = "attempt to terminate a thread-local capture sequence from another thread"; break;
    default: *text = "an error of cuda-on-cpu; its message is on standard error"; break;
    }
    return SUCCESS;
}
EXPORT cuGetErrorName(int, const char **text) { return *text = "CUDA_ERROR", SUCCESS; }
EXPORT cuProfilerStart() { return SUCCESS; }
EXPORT cuProfilerStop() { return SUCCESS; }
