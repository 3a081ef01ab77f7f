// The threads of a block, on stacks of their own on one thread of the processor.
//
// A thread runs until it must wait; then another one goes on. A thread that never waits costs a call: the stack that ran it
// goes on with the next. Warps have an order that the seed chooses and every barrier changes: the first that can run does, so
// that one runs ahead and another stays behind.
#include "driver.hpp"
#include "switch.hpp"
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

__thread cuda_on_cpu::Worker cuda_on_cpu_worker;

namespace cuda_on_cpu {
namespace {

constexpr size_t STACK = 256 << 10, PAGE = 4096, GUARD = 256 << 10;
constexpr unsigned LANES = 32, MOST_WARPS = 32;

struct Copy {
    void *to;
    const void *from;
    unsigned size, there;
};

struct Fiber {
    void *place;
    unsigned rank;
    std::vector<Copy> copies;
    void *stack;
};

/// What the lanes of a meeting show, or its results. It is used again when all of them have read it.
struct Board {
    char shown[LANES][48], results[LANES][48];
    unsigned readers = 0;
};

struct Meeting {
    const void *shown;
    unsigned size;
    Together together;
    int number;
    uint32_t mask;
    Board *board; // once all are there
};

struct Warp {
    uint32_t alive, unstarted, ready, waiting, at_barrier;
    /// The stacks of the lanes that have started.
    Fiber *fibers[LANES];
    Meeting lanes[LANES];
    Board boards[LANES + 1];
};

/// Everything that one thread of the processor needs to run blocks.
struct Runner {
    std::vector<Fiber *> idle;
    Fiber *current = nullptr;
    size_t made = 0;
    void *base = nullptr;
    std::vector<Warp> warps = std::vector<Warp>(MOST_WARPS);
    unsigned warp_count = 0, order[MOST_WARPS];
    /// No warp before this place in the order has a thread that can run.
    unsigned first_able = 0;
    unsigned alive = 0, at_barrier = 0;
    Random random{1};
    const Launch *launch = nullptr;
    char *shared = nullptr;
    size_t shared_pages = 0;
};
__thread Runner *runner __attribute__((tls_model("initial-exec"))) = nullptr;

Warp &warp_of(unsigned rank) { return runner->warps[rank / LANES]; }

void become(unsigned rank) {
    Worker &worker = cuda_on_cpu_worker;
    const uint3 &size = worker.threads;
    worker.rank = rank;
    if (size.y == 1 && size.z == 1) worker.thread = {rank, 0, 0};
    else worker.thread = {rank % size.x, rank / size.x % size.y, rank / size.x / size.y};
}

void shuffle_warps() {
    runner->first_able = 0;
    for (unsigned i = runner->warp_count; i > 1; i--) std::swap(runner->order[i - 1], runner->order[runner->random.below(i)]);
}

struct Next {
    Fiber *fiber;  // a thread that goes on
    int unstarted; // or one that starts; -1 if neither
};

unsigned take_lane(uint32_t &of) {
    // From the front or from the back, so that no order of lanes can be relied on.
    const unsigned lane = runner->random.state & 1 << 20 ? __builtin_ctz(of) : 31 - __builtin_clz(of);
    of &= ~(1u << lane);
    return lane;
}

Next next_thread() {
    for (unsigned &i = runner->first_able; i < runner->warp_count; i++) {
        Warp &warp = runner->warps[runner->order[i]];
        if (warp.ready) return {warp.fibers[take_lane(warp.ready)], -1};
        if (warp.unstarted) return {nullptr, static_cast<int>(runner->order[i] * LANES + take_lane(warp.unstarted))};
    }
    return {nullptr, -1};
}

void fiber_main();

Fiber *idle_fiber() {
    if (!runner->idle.empty()) {
        Fiber *const fiber = runner->idle.back();
        runner->idle.pop_back();
        return fiber;
    }
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *const at = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED || mprotect(at, PAGE, PROT_NONE) != 0) fail("no memory for the stack of a thread");
    // Stacks that all end at the same place of a page would share a few sets of the cache.
    const size_t aside = runner->made++ * 448 % 16384;
    return new Fiber{place_on(static_cast<char *>(at) + PAGE + STACK - aside, fiber_main), 0, {}, at};
}

/// Goes on with another stack, which never comes back if the current one is idle.
inline __attribute__((always_inline)) void go_to(Fiber *fiber) {
    Fiber *const from = runner->current;
    runner->current = fiber;
    switch_stacks(&from->place, fiber->place);
    become(runner->current->rank);
}

[[noreturn]] void fail_in_deadlock() {
    unsigned at_warp = 0;
    for (unsigned i = 0; i < runner->warp_count; i++) at_warp += __builtin_popcount(runner->warps[i].waiting);
    fail("the threads of block %u wait forever: %u at __syncthreads, %u for lanes of their warp", cuda_on_cpu_worker.block.x,
         runner->at_barrier, at_warp);
}

/// Puts a thread that starts on a stack.
void put_on(Fiber *fiber, unsigned rank) {
    fiber->rank = rank;
    warp_of(rank).fibers[rank % LANES] = fiber;
}

/// The current thread waits; another goes on.
inline __attribute__((always_inline)) void wait() {
    const Next next = next_thread();
    if (next.fiber) return go_to(next.fiber);
    if (next.unstarted < 0) fail_in_deadlock();
    Fiber *const fiber = idle_fiber();
    put_on(fiber, static_cast<unsigned>(next.unstarted));
    go_to(fiber);
}

void pass_barrier() {
    for (unsigned i = 0; i < runner->warp_count; i++) {
        Warp &warp = runner->warps[i];
        warp.ready |= warp.at_barrier;
        warp.at_barrier = 0;
    }
    runner->at_barrier = 0;
    shuffle_warps();
}

/// A copy of what a lane shows: mostly a number, an address, or the words of an operand.
inline void copy_shown(void *to, const void *from, unsigned size) {
    switch (size) {
    case 0: return;
    case 4: memcpy(to, from, 4); return;
    case 8: memcpy(to, from, 8); return;
    case 24: memcpy(to, from, 24); return;
    default: memcpy(to, from, size);
    }
}

Board &free_board(Warp &warp) {
    for (Board &board : warp.boards)
        if (board.readers == 0) return board;
    fail("no board is free"); // there are more boards than lanes
}

/// Ends the meeting of these lanes, if all that are alive are there.
void end_meeting(Warp &warp, uint32_t mask) {
    const uint32_t expected = mask & warp.alive;
    if (!expected || (warp.waiting & expected) != expected) return;
    const Meeting &first = warp.lanes[__builtin_ctz(expected)];
    Board &board = free_board(warp);
    for (uint32_t left = expected; left; left &= left - 1) {
        const unsigned lane = __builtin_ctz(left);
        Meeting &meeting = warp.lanes[lane];
        if (meeting.mask != mask) return; // it waits for others
        if (meeting.together != first.together || meeting.size != first.size || meeting.number != first.number)
            fail("lanes of a warp of block %u meet in different operations", cuda_on_cpu_worker.block.x);
    }
    for (uint32_t left = expected; left; left &= left - 1) {
        const unsigned lane = __builtin_ctz(left);
        Meeting &meeting = warp.lanes[lane];
        copy_shown(board.shown[lane], meeting.shown, meeting.size);
        meeting.board = &board;
        board.readers++;
    }
    // What ended lanes showed earlier is no vote and no value: all bits set is a NaN.
    for (uint32_t left = first.size ? ~expected : 0; left; left &= left - 1) memset(board.shown[__builtin_ctz(left)], 0xff, first.size);
    if (first.together) first.together(board.shown, board.results, expected, first.number);
    warp.waiting &= ~expected;
    warp.ready |= expected;
    runner->first_able = 0;
}

void end_thread(unsigned rank) {
    Warp &warp = warp_of(rank);
    const uint32_t bit = 1u << rank % LANES;
    Meeting &own = warp.lanes[rank % LANES];
    if (own.board) own.board->readers--, own.board = nullptr;
    warp.alive &= ~bit;
    runner->alive--;
    // Those that are left may have waited for this one only.
    for (uint32_t left = warp.waiting; left;) {
        const uint32_t mask = warp.lanes[__builtin_ctz(left)].mask;
        end_meeting(warp, mask);
        left &= ~mask & left - 1;
    }
    if (runner->alive > 0 && runner->at_barrier == runner->alive) pass_barrier();
}

void fiber_main() {
    Fiber *const self = runner->current;
    for (;;) {
        become(self->rank);
        runner->launch->kernel->run(runner->launch->parameters);
        self->copies.clear();
        end_thread(self->rank);
        const Next next = next_thread();
        if (next.unstarted >= 0) {
            put_on(self, static_cast<unsigned>(next.unstarted));
            continue;
        }
        runner->idle.push_back(self);
        if (next.fiber) {
            go_to(next.fiber);
            continue;
        }
        if (runner->alive > 0) fail_in_deadlock();
        switch_stacks(&self->place, runner->base);
    }
}

/// The block's shared memory, which ends before a page that faults.
void *shared_memory(size_t size) {
    const size_t pages = (size + PAGE - 1) / PAGE * PAGE;
    if (pages > runner->shared_pages) {
        if (runner->shared) munmap(runner->shared, runner->shared_pages + 2 * GUARD);
        void *const at = mmap(nullptr, pages + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || mprotect(static_cast<char *>(at) + GUARD, pages, PROT_READ | PROT_WRITE) != 0)
            fail("no memory for %zu bytes of shared memory", size);
        runner->shared = static_cast<char *>(at);
        runner->shared_pages = pages;
    }
    char *const start = runner->shared + GUARD + runner->shared_pages - (size + 15) / 16 * 16;
    memset(start, POISON, size);
    return start;
}

/// A number for a thread of the processor, which another one gets when it ends, and the blocks that ran under it.
struct Number {
    unsigned number;
    unsigned blocks;
};
std::mutex numbers_guard;
auto &free_numbers = *new std::vector<Number>;

Number free_number() {
    static unsigned next = 0;
    std::lock_guard<std::mutex> locked(numbers_guard);
    if (free_numbers.empty()) {
        if (next == 64) fail("more than 64 threads of the processor run kernels at a time");
        return {next++, 0};
    }
    const Number number = free_numbers.back();
    free_numbers.pop_back();
    return number;
}

/// Gives back what a thread that ran blocks has, when it ends.
struct AtEnd {
    bool needed = false;
    ~AtEnd() {
        if (!needed) return;
        for (Fiber *const fiber : runner->idle) {
            munmap(fiber->stack, STACK + PAGE);
            delete fiber;
        }
        if (runner->shared) munmap(runner->shared, runner->shared_pages + 2 * GUARD);
        delete runner;
        runner = nullptr;
        std::lock_guard<std::mutex> locked(numbers_guard);
        free_numbers.push_back({cuda_on_cpu_worker.number, cuda_on_cpu_worker.block_number});
    }
};
thread_local AtEnd at_end;

} // namespace

void run_block(const Launch &launch, unsigned block) {
    Worker &worker = cuda_on_cpu_worker;
    if (!runner) {
        runner = new Runner;
        const Number own = free_number();
        worker.number = own.number;
        worker.block_number = own.blocks;
        at_end.needed = true;
        watch_faults();
    }
    const uint3 &grid = launch.blocks, &size = launch.threads;
    worker.block = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
    worker.blocks = grid;
    worker.threads = size;
    worker.shared_size = launch.shared;
    worker.block_number++;
    worker.shared = launch.shared ? shared_memory(launch.shared) : nullptr;
    runner->launch = &launch;
    runner->random = Random(launch.seed + block);
    const unsigned threads = size.x * size.y * size.z;
    runner->alive = threads;
    runner->warp_count = (threads + LANES - 1) / LANES;
    for (unsigned i = 0; i < runner->warp_count; i++) {
        Warp &warp = runner->warps[i];
        const unsigned lanes = std::min(LANES, threads - i * LANES);
        warp.alive = warp.unstarted = lanes == LANES ? ~0u : (1u << lanes) - 1;
        warp.ready = warp.waiting = warp.at_barrier = 0;
        runner->order[i] = i;
    }
    shuffle_warps();
    const Next first = next_thread();
    Fiber *const fiber = idle_fiber();
    put_on(fiber, static_cast<unsigned>(first.unstarted));
    runner->current = fiber;
    switch_stacks(&runner->base, fiber->place);
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {
#define EXPORT __attribute__((visibility("default")))

EXPORT void cuda_on_cpu_sync_block() {
    if (runner->at_barrier + 1 == runner->alive) return pass_barrier();
    runner->at_barrier++;
    const unsigned rank = runner->current->rank;
    warp_of(rank).at_barrier |= 1u << rank % LANES;
    wait();
}

EXPORT const char (*cuda_on_cpu_meet(uint32_t mask, const void *shown, unsigned size, Together together, int number))[48] {
    Fiber *const self = runner->current;
    Warp &warp = warp_of(self->rank);
    const unsigned lane = self->rank % LANES;
    if (!(mask >> lane & 1)) fail("lane %u takes part in an operation of its warp whose mask leaves it out", lane);
    Meeting &own = warp.lanes[lane];
    if (own.board) own.board->readers--;
    own = {shown, size, together, number, mask, nullptr};
    warp.waiting |= 1u << lane;
    end_meeting(warp, mask);
    if (own.board) warp.ready &= ~(1u << lane);
    else wait();
    return together ? own.board->results : own.board->shown;
}

EXPORT void *cuda_on_cpu_shared(SharedVariable *variable) {
    const Worker &worker = cuda_on_cpu_worker;
    void *&at = variable->at[worker.number];
    if (!at) {
        const size_t pages = (variable->size + PAGE - 1) / PAGE * PAGE;
        char *const whole = static_cast<char *>(mmap(nullptr, pages + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (whole == MAP_FAILED || mprotect(whole + GUARD, pages, PROT_READ | PROT_WRITE) != 0)
            fail("no memory for the shared variable %s", variable->name);
        at = whole + GUARD + (pages - variable->size) / variable->align * variable->align;
    }
    if (variable->block_number[worker.number] != worker.block_number) {
        variable->block_number[worker.number] = worker.block_number;
        memset(at, POISON, variable->size);
    }
    return at;
}

EXPORT void cuda_on_cpu_check_shared(const void *address, unsigned size, unsigned align) {
    const Worker &worker = cuda_on_cpu_worker;
    const auto *const start = static_cast<const char *>(worker.shared), *const at = static_cast<const char *>(address);
    if (at < start || at + size > start + worker.shared_size) fail("an address is not in the shared memory of its block");
    if (reinterpret_cast<uintptr_t>(at) % align != 0) fail("an address in shared memory is not aligned to %u bytes", align);
}

EXPORT void cuda_on_cpu_copy_later(void *shared, const void *global, unsigned size, unsigned there) {
    cuda_on_cpu_check_shared(shared, size, size);
    if (reinterpret_cast<uintptr_t>(global) % size != 0) fail("a copy from an address that is not aligned to %u bytes", size);
    memset(shared, POISON, size);
    runner->current->copies.push_back({shared, global, size, there});
}

EXPORT void cuda_on_cpu_copies_arrive() {
    for (const Copy &copy : runner->current->copies) {
        memset(copy.to, 0, copy.size);
        memcpy(copy.to, copy.from, copy.there);
    }
    runner->current->copies.clear();
}

EXPORT void cuda_on_cpu_fail(const char *what) { fail("%s", what); }
}
