// Streams that capture, and graphs: operations that are recorded once, and run at each launch of the graph.
//
// A launch adds the nodes to its stream one by one, in an order that the seed chooses among those that the captured streams allow.
#include "driver.hpp"
#include <algorithm>
#include <map>
#include <set>
#include <thread>

namespace cuda_on_cpu {
namespace {

enum Code { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400 };
enum Mode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

struct Node {
    std::string name;
    std::function<void()> run;
    std::vector<size_t> after;
};

/// Memory that a graph allocates: its address stays the same in all launches.
struct Allocation {
    bool freed_in_graph = false;
    /// A launch has allocated it, and nothing has freed it since.
    bool live = false;
};

struct Graph {
    std::vector<Node> nodes;
    std::map<uintptr_t, Allocation> memory;
    bool instantiated = false;
    ~Graph();
};

struct Executable {
    std::shared_ptr<Graph> graph;
    bool frees_on_launch;
};

/// Never destroyed: a program may end while threads still work.
auto &captures = *new std::set<Capture *>;
auto &graphs = *new std::map<void *, std::shared_ptr<Graph>>;
auto &executables = *new std::set<Executable *>;
auto &owners = *new std::map<uintptr_t, Graph *>;

Graph::~Graph() {
    for (const auto &[start, of] : memory) {
        owners.erase(start);
        forget_memory(start);
    }
}

} // namespace

struct Capture {
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    Stream *origin;
    int mode;
    std::thread::id thread = std::this_thread::get_id();
    bool valid = true;
    /// The streams that capture for it.
    std::set<Stream *> streams = {};
};

namespace {

void end(Capture &capture) {
    captures.erase(&capture);
    for (Stream *stream : std::set<Stream *>(capture.streams)) stream->last.clear(), stream->capture = nullptr;
}

void begin(Stream *stream, const std::shared_ptr<Capture> &capture) {
    stream->capture = capture;
    capture->streams.insert(stream);
}

/// Whether everything that is recorded comes before what the origin would do next.
bool joined(const Capture &capture) {
    std::vector<bool> before(capture.graph->nodes.size());
    std::vector<size_t> open = capture.origin->last;
    while (!open.empty()) {
        const size_t node = open.back();
        open.pop_back();
        if (before[node]) continue;
        before[node] = true;
        open.insert(open.end(), capture.graph->nodes[node].after.begin(), capture.graph->nodes[node].after.end());
    }
    return std::all_of(before.begin(), before.end(), [](bool found) { return found; });
}

/// The nodes, each after those that it follows.
std::vector<size_t> ordered(const Graph &graph) {
    static Random random(settings().seed + 1);
    std::vector<size_t> missing, able, order;
    std::vector<std::vector<size_t>> then(graph.nodes.size());
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        missing.push_back(graph.nodes[i].after.size());
        for (size_t before : graph.nodes[i].after) then[before].push_back(i);
        if (missing[i] == 0) able.push_back(i);
    }
    while (!able.empty()) {
        const size_t chosen = able.size() == 1 ? 0 : random.below(static_cast<unsigned>(able.size()));
        const size_t node = able[chosen];
        able.erase(able.begin() + static_cast<std::ptrdiff_t>(chosen));
        order.push_back(node);
        for (size_t next : then[node])
            if (--missing[next] == 0) able.push_back(next);
    }
    return order;
}

int instantiate(void **result, void *handle, uint64_t flags) {
    Locked locked(lock);
    const auto found = graphs.find(handle);
    if (found == graphs.end()) return refuse(INVALID_HANDLE, "a graph that is not there");
    constexpr uint64_t FREES_ON_LAUNCH = 1, NODE_PRIORITY = 8;
    if (flags & ~(FREES_ON_LAUNCH | NODE_PRIORITY))
        return refuse(INVALID_VALUE, "a graph with the flags %llu, which are not known here", static_cast<unsigned long long>(flags));
    Graph &graph = *found->second;
    if (graph.instantiated && !graph.memory.empty()) return refuse(INVALID_VALUE, "a second instance of a graph that allocates memory");
    graph.instantiated = true;
    Executable *const made = new Executable{found->second, (flags & FREES_ON_LAUNCH) != 0};
    executables.insert(made);
    count("graph", "instantiate");
    return *result = made, SUCCESS;
}

} // namespace

void count_on(const Stream *stream, const char *kind, const std::string &name, size_t bytes) {
    count(stream->capture ? "captured" : kind, name, bytes);
}

int invalidate(Stream *stream, int code, const char *why) {
    if (stream->capture) stream->capture->valid = false;
    return refuse(code, "%s", why);
}

int end_for(const CapturedPoint &point, int code, const char *why) {
    point.capture->valid = false;
    return refuse(code, "%s", why);
}

int check_capture(Stream *stream, const char *call) {
    if (stream->capture)
        return stream->capture->valid ? SUCCESS : refuse(CAPTURE_INVALIDATED, "%s on a stream whose capture an error has ended", call);
    if (!is_default(stream)) return SUCCESS;
    for (Capture *capture : captures)
        for (Stream *other : capture->streams)
            if (other->blocking)
                return capture->valid = false, refuse(CAPTURE_IMPLICIT, "%s on the default stream while a blocking stream captures", call);
    return SUCCESS;
}

int check_unsafe(const char *call, bool of_all) {
    int code = SUCCESS;
    for (Capture *capture : captures) {
        const bool own = capture->thread == std::this_thread::get_id() && capture->mode != RELAXED;
        if (of_all || own || capture->mode == GLOBAL) {
            capture->valid = false;
            code = refuse(CAPTURE_UNSUPPORTED, "%s while a stream captures", call);
        }
    }
    return code;
}

void record_node(Stream *stream, std::string name, std::function<void()> run) {
    trace("capture %s on stream %u", name.c_str(), stream->id);
    auto &nodes = stream->capture->graph->nodes;
    nodes.push_back({std::move(name), std::move(run), std::move(stream->last)});
    stream->last = {nodes.size() - 1};
}

int wait_in_capture(Stream *stream, const CapturedPoint &point) {
    const std::shared_ptr<Capture> &of_event = point.capture;
    if (!of_event) return invalidate(stream, CAPTURE_ISOLATION, "a stream that captures waits for an event from outside of the capture");
    if (!captures.count(of_event.get())) return invalidate(stream, CAPTURED_EVENT, "a wait for an event of a capture that has ended");
    if (stream->capture && stream->capture != of_event) {
        of_event->valid = false;
        return invalidate(stream, CAPTURE_MERGE, "a stream that captures waits for an event of another capture");
    }
    if (is_default(stream)) return of_event->valid = false, refuse(CAPTURE_IMPLICIT, "the default stream waits for an event of a capture");
    if (!stream->capture) begin(stream, of_event);
    for (size_t node : point.nodes)
        if (std::find(stream->last.begin(), stream->last.end(), node) == stream->last.end()) stream->last.push_back(node);
    return SUCCESS;
}

void leave_capture(Stream *stream) {
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return;
    capture->valid = false;
    if (capture->origin == stream) return end(*capture);
    capture->streams.erase(stream);
    stream->last.clear(), stream->capture = nullptr;
}

uintptr_t allocate_in_graph(Stream *stream, size_t size) {
    const uintptr_t start = reserve_memory(size);
    if (!start) return 0;
    Graph *const graph = stream->capture->graph.get(); // its nodes run while it lives
    graph->memory[start] = {};
    owners[start] = graph;
    record_node(stream, "allocate in a graph of " + std::to_string(size) + " bytes", [=] { make_usable(start); });
    return start;
}

int free_in_graph(Stream *stream, uintptr_t start) {
    auto &memory = stream->capture->graph->memory;
    const auto found = memory.find(start);
    if (found == memory.end() || found->second.freed_in_graph)
        return invalidate(stream, INVALID_VALUE, "a capture frees memory that it did not allocate, or has freed");
    found->second.freed_in_graph = true;
    record_node(stream, "free in a graph", [=] { make_unusable(start, true); });
    return SUCCESS;
}

bool frees_of_graph(uintptr_t start, int &code) {
    const auto owner = owners.find(start);
    if (owner == owners.end()) return false;
    Allocation &memory = owner->second->memory.at(start);
    code = memory.live ? SUCCESS : refuse(INVALID_VALUE, "the host frees memory of a graph that is not there now, or that the graph frees");
    memory.live = false;
    return true;
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT cuStreamBeginCapture_v2(void *handle, int mode) {
    Locked locked(lock);
    Stream *const stream = stream_of(handle);
    if (!stream) return refuse(INVALID_HANDLE, "a capture of a stream that is not there");
    if (mode < GLOBAL || mode > RELAXED) return refuse(INVALID_VALUE, "capture mode %d", mode);
    if (is_default(stream)) return refuse(CAPTURE_UNSUPPORTED, "a capture of the default stream");
    if (stream->capture) return refuse(ILLEGAL_STATE, "a stream that captures already");
    const auto capture = std::make_shared<Capture>();
    capture->origin = stream, capture->mode = mode;
    captures.insert(capture.get());
    begin(stream, capture);
    count("graph", "capture");
    return SUCCESS;
}
EXPORT cuStreamEndCapture(void *handle, void **result) {
    Locked locked(lock);
    *result = nullptr;
    Stream *const stream = stream_of(handle);
    if (!stream) return refuse(INVALID_HANDLE, "the end of a capture of a stream that is not there");
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return refuse(ILLEGAL_STATE, "the end of a capture that did not begin");
    if (capture->mode != RELAXED && capture->thread != std::this_thread::get_id())
        return invalidate(stream, CAPTURE_WRONG_THREAD, "another thread ends the capture");
    if (capture->origin != stream) return invalidate(stream, CAPTURE_UNMATCHED, "a capture ends on another stream than it began on");
    const bool all_joined = joined(*capture);
    end(*capture);
    if (!capture->valid) return refuse(CAPTURE_INVALIDATED, "an error has ended the capture before");
    if (!all_joined) return refuse(CAPTURE_UNJOINED, "the capture has work on another stream that it does not wait for");
    graphs[capture->graph.get()] = capture->graph;
    return *result = capture->graph.get(), SUCCESS;
}
EXPORT cuStreamIsCapturing(void *handle, int *status) {
    Locked locked(lock);
    Stream *const stream = stream_of(handle);
    if (!stream) return refuse(INVALID_HANDLE, "%s: a stream that is not there", __func__);
    *status = !stream->capture ? 0 : stream->capture->valid ? 1 : 2;
    return stream->capture ? SUCCESS : check_capture(stream, __func__);
}
EXPORT cuGraphInstantiateWithFlags(void **result, void *graph, unsigned long long flags) { return instantiate(result, graph, flags); }
EXPORT cuGraphInstantiate_v2(void **result, void *graph, void **node, char *log, size_t size) {
    if (node) *node = nullptr;
    if (log && size) *log = 0;
    return instantiate(result, graph, 0);
}
EXPORT cuGraphUpload(void *handle, void *stream_handle) {
    Locked locked(lock);
    if (!executables.count(static_cast<Executable *>(handle)) || !stream_of(stream_handle)) return INVALID_HANDLE;
    return check_capture(stream_of(stream_handle), __func__);
}
EXPORT cuGraphLaunch(void *handle, void *stream_handle) {
    Locked locked(lock);
    const auto found = executables.find(static_cast<Executable *>(handle));
    if (found == executables.end()) return refuse(INVALID_HANDLE, "a launch of a graph that is not there");
    Stream *const stream = stream_of(stream_handle);
    if (!stream) return refuse(INVALID_HANDLE, "a launch of a graph on a stream that is not there");
    if (stream->capture) return invalidate(stream, CAPTURE_UNSUPPORTED, "a graph in a graph is not known here");
    if (const int code = check_capture(stream, "a launch of a graph")) return code;
    const std::shared_ptr<Graph> graph = (*found)->graph;
    if (!(*found)->frees_on_launch)
        for (const auto &[at, memory] : graph->memory)
            if (memory.live) return refuse(INVALID_VALUE, "a launch of a graph whose memory of an earlier launch nobody has freed");
    for (auto &[at, memory] : graph->memory) {
        const uintptr_t start = at;
        if (memory.live) enqueue(stream, "free of an earlier launch", [=] { make_unusable(start, true); });
        memory.live = !memory.freed_in_graph;
    }
    count("graph", "launch");
    trace("launch a graph of %zu nodes on stream %u", graph->nodes.size(), stream->id);
    for (const size_t i : ordered(*graph)) enqueue(stream, graph->nodes[i].name, [=] { graph->nodes[i].run(); });
    return SUCCESS;
}
EXPORT cuGraphExecDestroy(void *handle) {
    Locked locked(lock);
    Executable *const given = static_cast<Executable *>(handle);
    if (!executables.erase(given)) return refuse(INVALID_HANDLE, "the end of an executable graph that is not there");
    given->graph->instantiated = false;
    delete given; // what a launch has added still has the graph
    return SUCCESS;
}
EXPORT cuGraphDestroy(void *handle) {
    Locked locked(lock);
    return graphs.erase(handle) ? SUCCESS : refuse(INVALID_HANDLE, "the end of a graph that is not there");
}
