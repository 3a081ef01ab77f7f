// Settings, counts of what a program did, and messages about what a GPU would punish.
#include "driver.hpp"
#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <unistd.h>

namespace cuda_on_cpu {

thread_local std::string running;

namespace {
uint64_t number_from(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

struct Counted {
    uint64_t times = 0, bytes = 0;
    double seconds = 0;
};
/// Never destroyed: other libraries may still work while the program ends.
auto &counts = *new std::map<std::pair<std::string, std::string>, Counted>;

FILE *file_from(const char *variable) {
    const char *name = getenv(variable);
    if (!name || !*name) return nullptr;
    if (std::string(name) == "1" || std::string(name) == "-") return stderr;
    FILE *file = fopen(name, "w");
    if (!file) fprintf(stderr, "cuda-on-cpu: cannot write %s, which %s names\n", name, variable);
    return file;
}
FILE *const report_file = file_from("CUDA_ON_CPU_REPORT");
FILE *const trace_file = file_from("CUDA_ON_CPU_TRACE");

struct AtEnd {
    ~AtEnd() {
        Locked locked(lock);
        check_all_borders();
        if (!report_file) return;
        fprintf(report_file, "%-10s %-44s %10s %14s %9s\n", "what", "name", "times", "bytes", "seconds");
        for (const auto &[key, counted] : counts)
            fprintf(report_file, "%-10s %-44s %10llu %14llu %9.3f\n", key.first.c_str(), key.second.c_str(),
                    static_cast<unsigned long long>(counted.times), static_cast<unsigned long long>(counted.bytes), counted.seconds);
        fflush(report_file);
    }
} at_end;
} // namespace

const Settings &settings() {
    static const Settings found = {
        number_from("CUDA_ON_CPU_SEED", 1),
        static_cast<unsigned>(std::clamp<uint64_t>(number_from("CUDA_ON_CPU_WORKERS", std::thread::hardware_concurrency()), 1, 256)),
        static_cast<unsigned>(number_from("CUDA_ON_CPU_DEVICES", 1)),
        static_cast<unsigned>(number_from("CUDA_ON_CPU_CAPABILITY", 90)),
        static_cast<unsigned>(number_from("CUDA_ON_CPU_MULTIPROCESSORS", 132)),
        static_cast<unsigned>(number_from("CUDA_ON_CPU_L2", 50 << 20)),
        number_from("CUDA_ON_CPU_LATE", 0) != 0,
    };
    return found;
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "\ncuda-on-cpu: ");
    vfprintf(stderr, format, arguments);
    if (!running.empty()) fprintf(stderr, "\n  in %s", running.c_str());
    fprintf(stderr, "\n  (seed %llu; CUDA_ON_CPU_TRACE=FILE lists what ran before)\n",
            static_cast<unsigned long long>(settings().seed));
    if (trace_file) fflush(trace_file);
    _exit(86);
}

int refuse(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "cuda-on-cpu: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (error %d)\n", code);
    va_end(arguments);
    return code;
}

void count(const char *kind, const std::string &name, size_t bytes) {
    if (!report_file) return;
    Locked locked(lock);
    Counted &counted = counts[{kind, name}];
    counted.times++;
    counted.bytes += bytes;
}

double seconds_now() {
    if (!report_file) return 0;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void count_time(const std::string &name, double since) {
    if (!report_file) return;
    Counted &counted = counts[{"ran", name.substr(0, std::min(name.find('<'), name.find(" of ")))}]; // without sizes
    counted.times++;
    counted.seconds += seconds_now() - since;
}

void trace(const char *format, ...) {
    if (!trace_file) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(trace_file, format, arguments);
    fputc('\n', trace_file);
    va_end(arguments);
}

} // namespace cuda_on_cpu

/// A function of the real libraries that is not here; the stand-ins in missing.c call it.
extern "C" __attribute__((visibility("default"))) void cuda_on_cpu_missing(const char *name) {
    cuda_on_cpu::fail("the program calls %s, which this driver does not have", name);
}
