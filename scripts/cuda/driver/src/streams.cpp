// Streams as queues. An operation runs when something waits for it, and before that when the queues get long; among the
// streams whose next operation waits for nothing, the seed chooses. A missing wait so gives another result.
#include "driver.hpp"
#include <map>
#include <set>
#include <thread>

namespace cuda_on_cpu {

// Never destroyed: a program may end while threads still work.
std::recursive_mutex lock;

namespace {

auto &streams = *new std::set<Stream *>;
auto &of_threads = *new std::map<std::thread::id, Stream *>;
unsigned next_id = 0;
size_t waiting = 0;
/// Enough for the passes that a program has under way; more would only cost memory.
constexpr size_t MOST_WAITING = 4096;

Random &random_order() {
    static Random random(settings().seed);
    return random;
}

/// The default stream, which waits for all blocking streams, as they wait for it.
Stream *default_stream() {
    static Stream *const stream = make_stream(true);
    return stream;
}

bool can_run(const Stream &stream) {
    if (stream.queue.empty()) return false;
    for (const Point &point : stream.queue.front().after)
        if (!is_done(point)) return false;
    return true;
}

void run_next(Stream &stream) {
    Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    waiting--;
    trace("run %s of stream %u", operation.name.c_str(), stream.id);
    if (operation.run) {
        running = operation.name;
        const double begun = seconds_now();
        operation.run();
        count_time(running, begun);
        running.clear();
    }
    stream.done++;
}

} // namespace

void run_some() {
    std::vector<Stream *> able;
    for (Stream *stream : streams)
        if (can_run(*stream)) able.push_back(stream);
    if (able.empty()) fail("all streams wait for each other");
    run_next(*able[able.size() == 1 ? 0 : random_order().below(static_cast<unsigned>(able.size()))]);
}

Stream *make_stream(bool blocking) {
    Stream *const stream = new Stream{next_id++, blocking, {}};
    streams.insert(stream);
    return stream;
}

Stream *stream_of(void *handle) {
    const auto number = reinterpret_cast<uintptr_t>(handle);
    if (number <= 1) return default_stream();
    if (number == 2) {
        Stream *&own = of_threads[std::this_thread::get_id()];
        if (!own) own = make_stream(true);
        return own;
    }
    const auto found = streams.find(static_cast<Stream *>(handle));
    return found == streams.end() ? nullptr : *found;
}

bool forget_stream(void *handle) {
    const auto found = streams.find(static_cast<Stream *>(handle));
    if (found == streams.end()) return false;
    leave_capture(*found);
    run_stream(*found); // its memory is kept: events may refer to it
    streams.erase(found);
    return true;
}

Point enqueue(Stream *stream, std::string name, std::function<void()> run, std::vector<Point> after) {
    if (stream->capture) {
        record_node(stream, std::move(name), std::move(run));
        return {};
    }
    if (stream == default_stream()) {
        for (Stream *other : streams)
            if (other->blocking && other != stream && other->added > other->done) after.push_back({other, other->added});
    } else if (stream->blocking && default_stream()->added > default_stream()->done) {
        after.push_back({default_stream(), default_stream()->added});
    }
    trace("add %s to stream %u", name.c_str(), stream->id);
    stream->queue.push_back({std::move(name), std::move(run), std::move(after)});
    stream->added++;
    waiting++;
    while (waiting > MOST_WAITING) run_some();
    return {stream, stream->added};
}

bool is_default(const Stream *stream) { return stream == default_stream(); }

bool is_done(Point point) { return !point.stream || point.stream->done >= point.number; }

void run_until(Point point) {
    while (!is_done(point)) run_some();
}

void run_stream(Stream *stream) { run_until({stream, stream->added}); }

void run_everything() {
    while (waiting > 0) run_some();
}

} // namespace cuda_on_cpu
