// The parts of the driver, and what they know of each other.
#pragma once
#include "../include/cuda_on_cpu/worker.hpp"
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cuda_on_cpu {

// report.cpp: settings, what is counted, and the end of a program that does what a GPU would punish.

struct Settings {
    uint64_t seed;
    /// Threads of the processor that run blocks.
    unsigned workers;
    unsigned devices;
    unsigned capability;
    /// How large the GPU says that it is, by which programs choose their kernels.
    unsigned multiprocessors, l2;
    /// Host memory that is not pinned is also read and written late, which CUDA does not do.
    bool late;
};
const Settings &settings();

/// What is being run, for messages: a launch, a copy, a product.
extern thread_local std::string running;
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// A call that is refused with an error that the program sees.
int refuse(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void count(const char *kind, const std::string &name, size_t bytes = 0);
/// The seconds that an operation of this name took since it began.
double seconds_now();
void count_time(const std::string &name, double since);
void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

/// The numbers of a seed.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d) {}
    uint64_t next() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return state * 0x2545f4914f6cdd1d >> 16;
    }
    unsigned below(unsigned end) { return static_cast<unsigned>(next() % end); }
};

// memory.cpp: device memory between guards.

/// The address of an allocation, which can be used once `make_usable` runs; 0 if there is no memory.
uintptr_t reserve_memory(size_t size);
void make_usable(uintptr_t start);
/// `again` says that a graph will make it usable once more: its address stays.
void make_unusable(uintptr_t start, bool again = false);
/// Gives up an address that nothing will make usable any more.
void forget_memory(uintptr_t start);
/// Whether an allocation starts here that has not been freed by the host.
bool starts_allocation(uintptr_t start, bool mark_freed);
bool is_device(const void *at);
/// Ends the program unless all these bytes are in one allocation that can be used now. A length of 0 may be at its end.
void check_device(const char *what, const void *at, size_t size);
/// What lies at an address, for messages.
std::string describe(uintptr_t at);
/// Looks for changed bytes around what is still there.
void check_all_borders();
constexpr int POISON = 0xff;
/// The bytes of the GPU, and those of them that are not allocated.
constexpr size_t ALL_MEMORY = size_t{80} << 30;
size_t free_memory();

// streams.cpp: queues that run late.

/// The lock of all that the driver knows.
extern std::recursive_mutex lock;
using Locked = std::lock_guard<std::recursive_mutex>;

struct Stream;
/// The state of a stream after its operation of this number.
struct Point {
    Stream *stream = nullptr;
    uint64_t number = 0;
};
struct Operation {
    std::string name;
    std::function<void()> run;
    std::vector<Point> after;
};
struct Capture;
struct Stream {
    unsigned id;
    /// Whether it waits for the default stream, and that for it.
    bool blocking;
    std::deque<Operation> queue;
    uint64_t added = 0, done = 0;
    /// What records its operations in place of running them, and the nodes there that its next one follows.
    std::shared_ptr<Capture> capture = nullptr;
    std::vector<size_t> last = {};
};
Stream *make_stream(bool blocking);
/// The stream of a handle, or null if there is none. 0 and 1 are the default stream, 2 that of the thread.
Stream *stream_of(void *handle);
bool forget_stream(void *handle);
Point enqueue(Stream *stream, std::string name, std::function<void()> run, std::vector<Point> after = {});
/// Runs one operation of a stream that the seed chooses.
void run_some();
void run_until(Point point);
void run_stream(Stream *stream);
void run_everything();
bool is_done(Point point);
bool is_default(const Stream *stream);

// graphs.cpp: streams whose operations are recorded, and graphs of them.

enum CaptureCode {
    ILLEGAL_STATE = 401,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED,
    CAPTURE_MERGE,
    CAPTURE_UNMATCHED,
    CAPTURE_UNJOINED,
    CAPTURE_ISOLATION,
    CAPTURE_IMPLICIT,
    CAPTURED_EVENT,
    CAPTURE_WRONG_THREAD,
};
/// A point of a capture, for an event.
struct CapturedPoint {
    std::shared_ptr<Capture> capture = nullptr;
    std::vector<size_t> nodes = {};
};
/// Why no operation may be added to a stream: 0, or the error of a call that does. What CUDA punishes so ends the capture.
int check_capture(Stream *stream, const char *call);
/// The error of a call that is unsafe while this thread captures; one that concerns all streams also disturbs others' captures.
int check_unsafe(const char *call, bool of_all = false);
/// Ends the capture of a stream, and of a point: returns the code.
int invalidate(Stream *stream, int code, const char *why);
int end_for(const CapturedPoint &point, int code, const char *why);
/// Whether a stream that captures may go on after `point`, or the stream joins the capture of the event.
int wait_in_capture(Stream *stream, const CapturedPoint &point);
/// A stream that goes away: a capture that it is part of has failed, and one that began on it is over.
void leave_capture(Stream *stream);
void record_node(Stream *stream, std::string name, std::function<void()> run);
/// Memory of a graph: an allocation node, and the error of freeing an address by a node or by the host.
uintptr_t allocate_in_graph(Stream *stream, size_t size);
int free_in_graph(Stream *stream, uintptr_t start);
/// What the host frees of a graph's memory: true if it is one's, with the error.
bool frees_of_graph(uintptr_t start, int &code);
/// Counts a call by its kind, or as captured.
void count_on(const Stream *stream, const char *kind, const std::string &name, size_t bytes = 0);

// threads.cpp and blocks.cpp: blocks of threads on this processor.

struct Launch {
    const Kernel *kernel;
    uint3 blocks, threads;
    unsigned shared;
    uint64_t seed;
    void **parameters;
};
/// Runs one block on this thread of the processor.
void run_block(const Launch &launch, unsigned block);
/// Calls `task` for 0 to `count` - 1, on several threads of the processor if that is worth it.
void in_parallel(size_t count, bool worthwhile, const std::function<void(size_t)> &task);
/// Makes faults end the program with a message, on this thread too.
void watch_faults();

// modules.cpp

struct Function {
    const Kernel *kernel;
    unsigned allowed_shared = 48 << 10;
};
int load_module(const char *image, void **module);
Function *function_of(void *module, const char *name);

// gemm.cpp

enum class Type { F32, F64, F16, BF16 };
size_t size_of(Type type);
/// Matrices in columns, as in BLAS: C (m, n) = alpha · op(A) (m, k) · op(B) (k, n) + beta · C, then the bias of each row, then
/// GELU.
struct Product {
    int64_t m, n, k;
    bool transposed_a, transposed_b;
    Type type;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc, stride_a, stride_b, stride_c, batch;
    double alpha, beta;
    bool tf32 = false, gelu = false;
    const void *bias = nullptr;
};
void multiply(const Product &product);

} // namespace cuda_on_cpu
