// Cases of graphs, for main.cpp: captures that are right, and ones with a fault each.
#pragma once

extern "C" {
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuStreamIsCapturing(void *, int *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *);
int cuGraphDestroy(void *);
int cuCtxSynchronize();
int cuMemAlloc_v2(uintptr_t *, size_t);
int cuEventSynchronize(void *);
int cuStreamDestroy_v2(void *);
}

/// The graph of what `work` adds to the stream, in the thread's own mode; the first error.
template <class Work> static int capture(void **executable, Work work, unsigned long long flags = 0, int mode = 1) {
    void *graph;
    if (const int code = cuStreamBeginCapture_v2(stream, mode)) return code;
    const int of_work = work(), of_end = cuStreamEndCapture(stream, &graph);
    if (of_work) return of_work;
    return of_end ? of_end : cuGraphInstantiateWithFlags(executable, graph, flags);
}
static int refused(int code) { return printf("refused: %d\n", code), code; }
/// The code of the first call, and that the capture has ended with it.
template <class Work> static int ends_capture(Work work) {
    void *graph;
    cuStreamBeginCapture_v2(stream, 1);
    const int code = work(), of_end = cuStreamEndCapture(stream, &graph);
    return printf("refused: %d, at the end: %d\n", code, of_end), code && of_end == 901 ? code : 0;
}

static int graphs(const std::string &name) {
    void *graph = nullptr;
    const uintptr_t x = numbers(stream);
    cuStreamSynchronize(stream);
    if (name == "graph") { // doubles in each launch, through memory of its own, and with work of the stream in between
        const auto work = [&] {
            uintptr_t y;
            int code = cuMemAllocAsync(&y, 4 * COUNT, stream);
            code |= cuMemcpyDtoDAsync_v2(y, x, 4 * COUNT, stream) | launch("double_all", y, 4, 256, 0, stream);
            return code | cuMemcpyDtoDAsync_v2(x, y, 4 * COUNT, stream) | cuMemFreeAsync(y, stream);
        };
        if (const int code = capture(&graph, work)) return refused(code);
        if (first(x, stream) != 1) return printf("the capture ran\n"), 1;
        for (int i = 0; i < 3; i++) {
            cuGraphLaunch(graph, stream);
            launch("double_all", x, 4, 256, 0, stream);
        }
        cuGraphExecDestroy(graph); // the launches still run
        return expect(first(x, stream), 64);
    }
    if (name == "graph_fork") { // another stream joins the capture, and is waited for
        const auto work = [&] {
            int code = launch("double_all", x, 4, 256, 0, stream) | cuEventRecord(event, stream) | cuStreamWaitEvent(other, event, 0);
            code |= launch("double_all", x, 4, 256, 0, other) | cuEventRecord(event, other) | cuStreamWaitEvent(stream, event, 0);
            return code | launch("double_all", x, 4, 256, 0, stream);
        };
        if (const int code = capture(&graph, work)) return refused(code);
        return cuGraphLaunch(graph, stream) ? 1 : expect(first(x, stream), 8);
    }
    if (name == "graph_race") { // which of two streams writes last is left open
        const auto work = [&] {
            int code = cuEventRecord(event, stream) | cuStreamWaitEvent(other, event, 0) | launch("double_all", x, 4, 256, 0, stream);
            code |= launch("counts", x, 1, 32, 0, other) | cuEventRecord(event, other);
            return code | cuStreamWaitEvent(stream, event, 0);
        };
        return capture(&graph, work) || cuGraphLaunch(graph, stream) ? 1 : expect(first(x, stream), 34);
    }
    if (name == "graph_pinned") { // the copy reads what the host has written before each launch
        void *pinned;
        cuMemHostAlloc(&pinned, 4, 0);
        float *const value = static_cast<float *>(pinned);
        if (const int code = capture(&graph, [&] { return cuMemcpyHtoDAsync_v2(x, pinned, 4, stream); })) return refused(code);
        *value = 3, cuGraphLaunch(graph, stream);
        if (first(x, stream) != 3) return 1;
        *value = 5, cuGraphLaunch(graph, stream);
        return expect(first(x, stream), 5);
    }
    if (name == "graph_memory") { // what a launch leaves is the host's to free, or the next launch's
        uintptr_t y = 0;
        const auto work = [&] { return cuMemAllocAsync(&y, 4, stream) | cuMemcpyDtoDAsync_v2(y, x, 4, stream); };
        if (const int code = capture(&graph, work)) return refused(code);
        for (int i = 0; i < 2; i++)
            if (cuGraphLaunch(graph, stream) || first(y, stream) != 1 || cuMemFreeAsync(y, stream)) return 1;
        if (const int code = capture(&graph, work, 1)) return refused(code);
        return cuGraphLaunch(graph, stream) || cuGraphLaunch(graph, stream) ? 1 : expect(first(y, stream), 1);
    }
    if (name == "graph_relaxed") { // calls that are unsafe are this thread's to judge
        uintptr_t y = 0;
        if (const int code = capture(&graph, [&] { return cuMemAlloc_v2(&y, 4); }, 0, 2)) return refused(code);
        int status;
        return cuStreamIsCapturing(stream, &status) || status ? 1 : cuGraphLaunch(graph, stream);
    }
    if (name == "graph_leak") { // nobody frees what the first launch allocated
        uintptr_t y;
        if (capture(&graph, [&] { return cuMemAllocAsync(&y, 4, stream); })) return 1;
        return cuGraphLaunch(graph, stream) ? 1 : refused(cuGraphLaunch(graph, stream));
    }
    if (name == "graph_leak_in_part") { // the refused launch allocates nothing
        uintptr_t y, z;
        if (capture(&graph, [&] { return cuMemAllocAsync(&y, 4, stream) | cuMemAllocAsync(&z, 4, stream); })) return 1;
        if (cuGraphLaunch(graph, stream)) return 1;
        const uintptr_t one = y < z ? y : z;
        if (cuMemFreeAsync(one, stream) || !cuGraphLaunch(graph, stream)) return 0;
        return refused(cuMemFreeAsync(one, stream));
    }
    if (name == "graph_uninitialized") { // its memory is new in each launch
        uintptr_t y;
        const auto work = [&] {
            return cuMemAllocAsync(&y, 4, stream) | cuMemcpyDtoDAsync_v2(x, y, 4, stream) | cuMemcpyDtoDAsync_v2(y, x + 4, 4, stream) | cuMemFreeAsync(y, stream);
        };
        if (capture(&graph, work) || cuGraphLaunch(graph, stream) || cuGraphLaunch(graph, stream)) return 1;
        const float found = first(x, stream);
        return printf("%g\n", found), std::isnan(found) ? 3 : 0;
    }
    if (name == "graph_frees_outside") return ends_capture([&] { return cuMemFreeAsync(x, stream); });
    if (name == "graph_freed_memory") { // a launch after the host has freed what the graph reads
        if (capture(&graph, [&] { return launch("double_all", x, 4, 256, 0, stream); })) return 1;
        return cuMemFreeAsync(x, stream) ? 1 : cuGraphLaunch(graph, stream) ? 1 : cuStreamSynchronize(stream);
    }
    if (name == "graph_used_outside") { // the host reads memory that the graph has freed
        uintptr_t y;
        if (capture(&graph, [&] { return cuMemAllocAsync(&y, 4, stream) | cuMemFreeAsync(y, stream); })) return 1;
        return cuGraphLaunch(graph, stream) ? 1 : first(y, stream) == 0;
    }
    if (name == "graph_waits") return ends_capture([&] { return cuStreamSynchronize(stream); });
    if (name == "graph_waits_for_all") return ends_capture([&] { return cuCtxSynchronize(); });
    if (name == "graph_asks") return ends_capture([&] { return cuStreamQuery(stream); });
    if (name == "graph_allocates") {
        uintptr_t y;
        return ends_capture([&] { return cuMemAlloc_v2(&y, 4); });
    }
    if (name == "graph_module") return ends_capture([&] { return cuModuleLoadData(&module, "cuda-on-cpu selftest\n"); });
    if (name == "graph_pageable") {
        float value = 1;
        return ends_capture([&] { return cuMemcpyHtoDAsync_v2(x, &value, 4, stream); });
    }
    if (name == "graph_reads_back") {
        float value;
        return ends_capture([&] { return cuMemcpyDtoHAsync_v2(&value, x, 4, stream); });
    }
    if (name == "graph_event_outside") {
        cuEventRecord(event, other);
        return ends_capture([&] { return cuStreamWaitEvent(stream, event, 0); });
    }
    if (name == "graph_event_asked") {
        cuStreamBeginCapture_v2(stream, 1);
        cuEventRecord(event, stream);
        return refused(cuEventSynchronize(event));
    }
    if (name == "graph_default_stream") { // which waits for all streams that block
        void *blocking;
        cuStreamCreate(&blocking, 0);
        cuStreamBeginCapture_v2(blocking, 1);
        return refused(launch("double_all", x, 4, 256, 0, nullptr));
    }
    if (name == "graph_of_default_stream") return refused(cuStreamBeginCapture_v2(nullptr, 1));
    if (name == "graph_merge") {
        cuStreamBeginCapture_v2(other, 1);
        cuEventRecord(event, other);
        return ends_capture([&] { return cuStreamWaitEvent(stream, event, 0); });
    }
    if (name == "graph_not_joined") {
        const auto work = [&] {
            return cuEventRecord(event, stream) | cuStreamWaitEvent(other, event, 0) | launch("double_all", x, 4, 256, 0, other);
        };
        return refused(capture(&graph, work));
    }
    if (name == "graph_other_thread") {
        int code = 0;
        cuStreamBeginCapture_v2(stream, 1);
        std::thread([&] { code = cuStreamEndCapture(stream, &graph); }).join();
        return refused(code);
    }
    if (name == "graph_other_stream") {
        cuStreamBeginCapture_v2(stream, 1);
        cuEventRecord(event, stream);
        cuStreamWaitEvent(other, event, 0);
        return refused(cuStreamEndCapture(other, &graph));
    }
    if (name == "graph_stream_destroyed") { // one that has joined the capture
        void *joins;
        cuStreamCreate(&joins, 1);
        cuStreamBeginCapture_v2(stream, 1);
        if (cuEventRecord(event, stream) || cuStreamWaitEvent(joins, event, 0) || cuStreamDestroy_v2(joins)) return 0;
        return refused(cuStreamEndCapture(stream, &graph));
    }
    if (name == "graph_origin_destroyed") { // nothing captures any more
        void *origin;
        uintptr_t y;
        cuStreamCreate(&origin, 1);
        return cuStreamBeginCapture_v2(origin, 0) || cuStreamDestroy_v2(origin) || cuMemAlloc_v2(&y, 4);
    }
    if (name == "graph_twice") return cuStreamBeginCapture_v2(stream, 1) ? 0 : refused(cuStreamBeginCapture_v2(stream, 1));
    if (name == "graph_not_begun") return refused(cuStreamEndCapture(stream, &graph));
    if (name == "graph_not_there") return refused(cuGraphLaunch(event, stream));
    return printf("no case %s\n", name.c_str()), 0;
}
