// Shares blocks out among threads of the processor, and says what a fault was.
#include "driver.hpp"
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <thread>
#include <unistd.h>

namespace cuda_on_cpu {
namespace {

/// Work that several threads share: each takes the next number.
struct Shared {
    const std::function<void(size_t)> *task = nullptr;
    size_t count = 0, chunk = 1;
    std::atomic<size_t> next{0};
    unsigned generation = 0, busy = 0;
    std::string running;
    std::mutex guard;
    std::condition_variable begin, end;

    void help() {
        for (size_t first; (first = next.fetch_add(chunk)) < count;)
            for (size_t i = first; i < std::min(count, first + chunk); i++) (*task)(i);
    }
};
/// Never destroyed: its threads run until the program ends.
auto &shared = *new Shared;

void work() {
    unsigned seen = 0;
    for (;;) {
        std::unique_lock<std::mutex> locked(shared.guard);
        shared.begin.wait(locked, [&] { return shared.generation != seen; });
        seen = shared.generation;
        running = shared.running;
        locked.unlock();
        shared.help();
        locked.lock();
        if (--shared.busy == 0) shared.end.notify_one();
    }
}

/// Starts the helpers once; how many there are.
unsigned helpers() {
    static const unsigned count = [] {
        for (unsigned i = 1; i < settings().workers; i++) std::thread(work).detach();
        return settings().workers - 1;
    }();
    return count;
}

struct sigaction before_segv, before_bus, before_ill, before_fpe;

void on_fault(int signal, siginfo_t *info, void *) {
    const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
    const Worker &worker = cuda_on_cpu_worker;
    const bool in_kernel = worker.threads.x > 0 && !running.empty();
    char where[120] = "";
    if (in_kernel)
        snprintf(where, sizeof where, ", block (%u, %u, %u), thread (%u, %u, %u)", worker.block.x, worker.block.y, worker.block.z,
                 worker.thread.x, worker.thread.y, worker.thread.z);
    if (signal == SIGILL && in_kernel) fail("an address that does not suit its type, or an instruction that is not there%s", where);
    if (signal == SIGFPE && in_kernel) fail("an integer division without a result, as by zero, which gives any number on a GPU%s", where);
    if (signal != SIGFPE && is_device(info->si_addr)) fail("an access to %p, %s%s", info->si_addr, describe(at).c_str(), where);
    if (in_kernel)
        fail("an access to %p outside of device memory: shared memory, the host's memory or the thread's stack%s", info->si_addr, where);
    // It is the program's own, as if the driver were not there.
    sigaction(SIGSEGV, &before_segv, nullptr);
    sigaction(SIGBUS, &before_bus, nullptr);
    sigaction(SIGILL, &before_ill, nullptr);
    sigaction(SIGFPE, &before_fpe, nullptr);
}

} // namespace

void watch_faults() {
    // Kernels run on small stacks, so the handler needs one of its own.
    stack_t stack = {};
    stack.ss_size = 256 << 10;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &before_segv);
        sigaction(SIGBUS, &action, &before_bus);
        sigaction(SIGILL, &action, &before_ill);
        sigaction(SIGFPE, &action, &before_fpe);
    });
}

void in_parallel(size_t count, bool worthwhile, const std::function<void(size_t)> &task) {
    if (!worthwhile || count < 2 || helpers() == 0) {
        for (size_t i = 0; i < count; i++) task(i);
        return;
    }
    {
        std::lock_guard<std::mutex> locked(shared.guard);
        shared.task = &task;
        shared.count = count;
        shared.chunk = std::max<size_t>(1, count / (16 * (helpers() + 1)));
        shared.next = 0;
        shared.busy = helpers();
        shared.running = running;
        shared.generation++;
    }
    shared.begin.notify_all();
    shared.help();
    std::unique_lock<std::mutex> locked(shared.guard);
    shared.end.wait(locked, [] { return shared.busy == 0; });
}

} // namespace cuda_on_cpu
