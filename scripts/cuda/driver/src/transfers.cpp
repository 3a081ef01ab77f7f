// The driver's functions: memory, copies, streams, events.
#include "driver.hpp"
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

using namespace cuda_on_cpu;

namespace {

enum Code { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400, NOT_READY = 600 };
using Time = std::chrono::steady_clock::time_point;

struct Event {
    Point point;
    /// In place of the point, if a stream recorded it while it captured.
    CapturedPoint captured;
    Time time;
    bool recorded = false, timed = true;
};

/// Memory of the host that is pinned, by its start: copies from and to it run when the stream gets there.
auto &pinned = *new std::map<uintptr_t, size_t>;
bool is_pinned(const void *at, size_t size) {
    const auto address = reinterpret_cast<uintptr_t>(at);
    auto found = pinned.upper_bound(address);
    if (found == pinned.begin()) return false;
    --found;
    return address + size <= found->first + found->second;
}

void *pointer(uintptr_t at) { return reinterpret_cast<void *>(at); }

std::string sized(const char *what, size_t size) { return std::string(what) + " of " + std::to_string(size) + " bytes"; }

/// A sum that changes if the bytes do.
uint64_t sum_of(const void *at, size_t size) {
    uint64_t sum = size;
    const auto *const bytes = static_cast<const unsigned char *>(at);
    for (size_t i = 0; i < size; i++) sum = sum * 0x100000001b3 ^ bytes[i];
    return sum;
}

/// Whether a point is reached, for whoever asks again until it is: each answer brings it closer.
int answer(Point point) {
    if (is_done(point)) return SUCCESS;
    run_some();
    return NOT_READY;
}

#define STREAM(HANDLE)                                                                                                 \
    Locked locked(lock);                                                                                               \
    Stream *const stream = stream_of(HANDLE);                                                                          \
    if (!stream) return refuse(INVALID_HANDLE, "%s: a stream that is not there", __func__)
/// A stream that takes an operation, which it may capture.
#define OPERATION(HANDLE)                                                                                              \
    STREAM(HANDLE);                                                                                                    \
    if (const int code = check_capture(stream, __func__)) return code
/// A call that no thread may make while it captures.
#define UNSAFE                                                                                                         \
    Locked locked(lock);                                                                                               \
    if (const int code = check_unsafe(__func__)) return code

/// The host can ask for no event that a stream recorded while it captured.
int check_event(void *handle) {
    CapturedPoint &captured = static_cast<Event *>(handle)->captured;
    return captured.capture ? end_for(captured, CAPTURED_EVENT, "the host asks for an event of a capture") : SUCCESS;
}

/// What a graph would copy from or to at each launch, long after this call.
int not_pinned(Stream *stream) { return invalidate(stream, CAPTURE_UNSUPPORTED, "a capture of a copy of host memory that is not pinned"); }

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT cuMemAllocAsync(uintptr_t *result, size_t size, void *handle) {
    OPERATION(handle);
    if (size == 0) return refuse(INVALID_VALUE, "an allocation of 0 bytes");
    if (stream->capture) {
        *result = allocate_in_graph(stream, size);
        count_on(stream, "memory", "allocate", size);
        return *result ? SUCCESS : OUT_OF_MEMORY;
    }
    const uintptr_t start = reserve_memory(size);
    if (!start) return OUT_OF_MEMORY;
    *result = start;
    count("memory", "allocate", size);
    enqueue(stream, sized("allocate", size), [=] { make_usable(start); });
    return SUCCESS;
}
EXPORT cuMemFreeAsync(uintptr_t start, void *handle) {
    OPERATION(handle);
    if (stream->capture) return count_on(stream, "memory", "free"), free_in_graph(stream, start);
    if (int code; frees_of_graph(start, code)) {
        if (!code) enqueue(stream, "free", [=] { make_unusable(start, true); });
        return code;
    }
    if (!starts_allocation(start, true))
        return refuse(INVALID_VALUE, "cuMemFreeAsync of %p, which is no allocation, or freed", pointer(start));
    count("memory", "free");
    enqueue(stream, "free", [=] { make_unusable(start); });
    return SUCCESS;
}
EXPORT cuMemAlloc_v2(uintptr_t *result, size_t size) {
    UNSAFE;
    if (size == 0) return refuse(INVALID_VALUE, "an allocation of 0 bytes");
    *result = reserve_memory(size);
    if (!*result) return OUT_OF_MEMORY;
    count("memory", "allocate", size);
    make_usable(*result);
    return SUCCESS;
}
EXPORT cuMemFree_v2(uintptr_t start) {
    UNSAFE;
    if (int code; frees_of_graph(start, code)) {
        run_everything();
        if (!code) make_unusable(start, true);
        return code;
    }
    if (!starts_allocation(start, true)) return refuse(INVALID_VALUE, "cuMemFree of %p, which is no allocation, or freed", pointer(start));
    run_everything(); // it waits for all that may use the memory
    count("memory", "free");
    make_unusable(start);
    return SUCCESS;
}
EXPORT cuMemGetInfo_v2(size_t *free, size_t *total) {
    Locked locked(lock);
    return *free = free_memory(), *total = ALL_MEMORY, SUCCESS;
}
EXPORT cuMemHostAlloc(void **result, size_t size, unsigned) {
    UNSAFE;
    *result = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!*result) return OUT_OF_MEMORY;
    pinned[reinterpret_cast<uintptr_t>(*result)] = size;
    return SUCCESS;
}
EXPORT cuMemFreeHost(void *at) {
    UNSAFE;
    if (!pinned.erase(reinterpret_cast<uintptr_t>(at))) return INVALID_VALUE;
    // It is not given back: a copy that is still under way would write to what others got.
    return SUCCESS;
}

EXPORT cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t size, void *handle) {
    OPERATION(handle);
    if (is_device(from)) return refuse(INVALID_VALUE, "a copy from the host of %p, which is device memory", from);
    if (size == 0) return SUCCESS;
    if (stream->capture && !is_pinned(from, size)) return not_pinned(stream);
    count_on(stream, "copy", "host to device", size);
    if (stream->capture) { // the host may change it between two launches
        enqueue(stream, sized("copy to the device", size), [=] {
            check_device("the target", pointer(to), size);
            memcpy(pointer(to), from, size);
        });
        return SUCCESS;
    }
    if (is_pinned(from, size) || settings().late) {
        const uint64_t sum = sum_of(from, size);
        enqueue(stream, sized("copy to the device", size), [=] {
            check_device("the target", pointer(to), size);
            if (sum_of(from, size) != sum) fail("the host changed its memory before it was copied");
            memcpy(pointer(to), from, size);
        });
        return SUCCESS;
    }
    // Of memory that is not pinned, CUDA makes a copy before the call returns.
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char *>(from), static_cast<const char *>(from) + size);
    enqueue(stream, sized("copy to the device", size), [=] {
        check_device("the target", pointer(to), size);
        memcpy(pointer(to), staged->data(), size);
    });
    return SUCCESS;
}
EXPORT cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t size) {
    {
        UNSAFE;
    }
    if (const int code = cuMemcpyHtoDAsync_v2(to, from, size, nullptr)) return code;
    Locked locked(lock);
    run_stream(stream_of(nullptr));
    return SUCCESS;
}
EXPORT cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t size, void *handle) {
    OPERATION(handle);
    if (is_device(to)) return refuse(INVALID_VALUE, "a copy to the host at %p, which is device memory", to);
    if (size == 0) return SUCCESS;
    if (stream->capture && !is_pinned(to, size)) return not_pinned(stream);
    count_on(stream, "copy", "device to host", size);
    const bool late = is_pinned(to, size) || settings().late;
    // Whoever reads it too early finds this.
    if (late && !stream->capture) memset(to, POISON, size);
    const Point point = enqueue(stream, sized("copy to the host", size), [=] {
        check_device("the source", pointer(from), size);
        memcpy(to, pointer(from), size);
    });
    // To memory that is not pinned, CUDA returns after the copy.
    if (!late) run_until(point);
    return SUCCESS;
}
EXPORT cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t size) {
    {
        UNSAFE;
    }
    if (const int code = cuMemcpyDtoHAsync_v2(to, from, size, nullptr)) return code;
    Locked locked(lock);
    run_stream(stream_of(nullptr));
    return SUCCESS;
}
EXPORT cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t size, void *handle) {
    OPERATION(handle);
    if (size == 0) return SUCCESS;
    count_on(stream, "copy", "device to device", size);
    enqueue(stream, sized("copy on the device", size), [=] {
        check_device("the target", pointer(to), size);
        check_device("the source", pointer(from), size);
        if (to < from + size && from < to + size) fail("a copy whose source and target overlap");
        memcpy(pointer(to), pointer(from), size);
    });
    return SUCCESS;
}
EXPORT cuMemcpyPeerAsync(uintptr_t to, void *, uintptr_t from, void *, size_t size, void *handle) {
    return cuMemcpyDtoDAsync_v2(to, from, size, handle);
}
EXPORT cuMemsetD8Async(uintptr_t to, unsigned char value, size_t size, void *handle) {
    OPERATION(handle);
    if (size == 0) return SUCCESS;
    count_on(stream, "memory", "set", size);
    enqueue(stream, sized("set", size), [=] {
        check_device("the target", pointer(to), size);
        memset(pointer(to), value, size);
    });
    return SUCCESS;
}

EXPORT cuStreamCreate(void **result, unsigned flags) {
    Locked locked(lock);
    return *result = make_stream(!(flags & 1)), SUCCESS;
}
EXPORT cuStreamDestroy_v2(void *handle) {
    Locked locked(lock);
    return forget_stream(handle) ? SUCCESS : INVALID_HANDLE;
}
EXPORT cuStreamSynchronize(void *handle) {
    OPERATION(handle);
    if (stream->capture) return invalidate(stream, CAPTURE_UNSUPPORTED, "a wait of the host for a stream that captures");
    count("sync", "stream");
    run_stream(stream);
    return SUCCESS;
}
EXPORT cuStreamQuery(void *handle) {
    OPERATION(handle);
    if (stream->capture) return invalidate(stream, CAPTURE_UNSUPPORTED, "cuStreamQuery of a stream that captures");
    return answer({stream, stream->added});
}
EXPORT cuStreamWaitEvent(void *handle, void *event_handle, unsigned flags) {
    OPERATION(handle);
    if (flags) return refuse(INVALID_VALUE, "cuStreamWaitEvent with the flags %u, which are not known here", flags);
    const Event &event = *static_cast<Event *>(event_handle);
    count_on(stream, "event", "wait");
    if (event.recorded && (stream->capture || event.captured.capture)) return wait_in_capture(stream, event.captured);
    if (event.recorded) enqueue(stream, "wait for an event", nullptr, {event.point});
    return SUCCESS;
}

EXPORT cuEventCreate(void **result, unsigned flags) {
    Event *const event = new Event;
    event->timed = !(flags & 2); // CU_EVENT_DISABLE_TIMING
    return *result = event, SUCCESS;
}
EXPORT cuEventDestroy_v2(void *) { return SUCCESS; } // streams may still refer to it
EXPORT cuEventRecord(void *event_handle, void *handle) {
    OPERATION(handle);
    Event *const event = static_cast<Event *>(event_handle);
    count_on(stream, "event", "record");
    event->captured = {stream->capture, stream->last};
    event->recorded = true;
    if (stream->capture) return SUCCESS;
    event->point = enqueue(stream, "record an event", [=] { event->time = std::chrono::steady_clock::now(); });
    return SUCCESS;
}
EXPORT cuEventSynchronize(void *event_handle) {
    Locked locked(lock);
    if (const int code = check_event(event_handle)) return code;
    count("sync", "event");
    run_until(static_cast<Event *>(event_handle)->point);
    return SUCCESS;
}
EXPORT cuEventQuery(void *event_handle) {
    Locked locked(lock);
    if (const int code = check_event(event_handle)) return code;
    return answer(static_cast<Event *>(event_handle)->point);
}
EXPORT cuEventElapsedTime_v2(float *milliseconds, void *from_handle, void *to_handle) {
    Locked locked(lock);
    const Event &from = *static_cast<Event *>(from_handle), &to = *static_cast<Event *>(to_handle);
    if (!from.recorded || !to.recorded) return INVALID_HANDLE;
    for (void *event : {from_handle, to_handle})
        if (const int code = check_event(event)) return code;
    if (!from.timed || !to.timed) return refuse(INVALID_HANDLE, "the time of an event that takes none");
    if (!is_done(from.point) || !is_done(to.point)) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(to.time - from.time).count();
    return SUCCESS;
}
EXPORT cuEventElapsedTime(float *milliseconds, void *from, void *to) { return cuEventElapsedTime_v2(milliseconds, from, to); }
