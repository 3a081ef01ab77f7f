// Runs kernels on the CPU, as emulation.hpp has it:
//
//   emulate SIZES SHAPE {KERNEL GRID THREADS SHARED}...
//
// SIZES are the bytes of q, k, v, padding, out and found; SHAPE the numbers of `struct Shape`. q, k, v and padding come from
// standard input; out goes to standard output. A kernel that touches what is not its own ends the program.
#include "device.cuh"
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <random>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

Index blockIdx, gridDim;

namespace {

[[noreturn]] void fail(const char *what, const char *about = "") {
    fprintf(stderr, "emulate: %s%s\n", what, about);
    exit(1);
}

/// Where threads wait for each other.
struct Meeting {
    unsigned expected, here = 0, held = 0;
};

struct Copy {
    void *to;
    const void *from;
    bool there;
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(256 << 10);
    bool ended;
    unsigned shows; // so far, which tells the two boards apart
    std::vector<Copy> copies;
};

struct Warp {
    Meeting meeting;
    /// A lane that shows the next operands may be one ahead of those that read these.
    emulation::Shown boards[2][32];
};

ucontext_t scheduler;
std::vector<Thread> threads;
std::vector<Warp> warps;
Meeting block;
unsigned current;
bool moved; // something has happened since all threads had a turn
uint4 *memory;
size_t memory_size;
void (*entry)();

void meet(Meeting &meeting) {
    const unsigned now = meeting.held;
    if (++meeting.here == meeting.expected) {
        meeting.here = 0;
        meeting.held++;
        moved = true;
        return;
    }
    while (meeting.held == now) swapcontext(&threads[current].context, &scheduler);
}

void run_thread() {
    entry();
    threads[current].ended = moved = true;
    swapcontext(&threads[current].context, &scheduler);
}

void run_block(std::minstd_rand &random) {
    memset(memory, 0xff, memory_size);
    block = {static_cast<unsigned>(threads.size())};
    for (Warp &warp : warps) warp.meeting = {32};
    std::vector<unsigned> turns;
    for (unsigned i = 0; i < threads.size(); i++) {
        Thread &thread = threads[i];
        thread.ended = false;
        thread.shows = 0;
        thread.copies.clear();
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, run_thread, 0);
        turns.push_back(i);
    }
    while (!turns.empty()) {
        for (size_t i = turns.size() - 1; i > 0; i--) std::swap(turns[i], turns[random() % (i + 1)]);
        moved = false;
        for (unsigned turn : turns) {
            current = turn;
            swapcontext(&scheduler, &threads[turn].context);
        }
        if (!moved) fail("all threads wait, and not at the same place");
        std::vector<unsigned> left;
        for (unsigned turn : turns)
            if (!threads[turn].ended) left.push_back(turn);
        turns = left;
    }
}

/// Bytes that end where memory does that nobody may touch.
void *guarded(size_t size) {
    constexpr size_t PAGE = 1 << 16;
    const size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    char *start = static_cast<char *>(mmap(nullptr, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start == MAP_FAILED || mprotect(start + whole, PAGE, PROT_NONE) != 0) fail("no memory");
    return start + whole - size;
}

// Of the launch that runs.
void *q, *k, *v, *padding, *out, *found;
Shape shape;
void *function;

void run_attention() {
    reinterpret_cast<void (*)(void *, void *, void *, void *, void *, Shape)>(function)(q, k, v, padding, out, shape);
}
void run_decode() {
    reinterpret_cast<void (*)(void *, void *, void *, void *, void *, void *, Shape)>(function)(q, k, v, padding, out, found, shape);
}
void run_merge() { reinterpret_cast<void (*)(void *, void *, Shape)>(function)(found, out, shape); }

} // namespace

namespace emulation {
Index thread() { return {current}; }
void *shared() { return memory; }
void meet_block() { meet(block); }
void meet_warp() { meet(warps[current / 32].meeting); }
const Shown *show(const Shown &own) {
    Warp &warp = warps[current / 32];
    Shown(&board)[32] = warp.boards[threads[current].shows++ % 2];
    board[current % 32] = own;
    meet(warp.meeting);
    return board;
}
void check_shared(const void *address, unsigned size) {
    const char *start = reinterpret_cast<const char *>(memory), *at = static_cast<const char *>(address);
    if (at < start || at + size > start + memory_size || reinterpret_cast<size_t>(at) % size != 0)
        fail("an address outside of shared memory, or not aligned");
}
void copy_later(void *shared, const void *global, bool there) {
    check_shared(shared, 16);
    if (reinterpret_cast<size_t>(global) % 16 != 0) fail("a copy from an address that is not aligned");
    memset(shared, 0xff, 16);
    threads[current].copies.push_back({shared, global, there});
}
void copy_now() {
    for (const Copy &copy : threads[current].copies) {
        if (copy.there) memcpy(copy.to, copy.from, 16);
        else memset(copy.to, 0, 16);
    }
    threads[current].copies.clear();
}
} // namespace emulation

int main(int count, char **values) {
    constexpr int FIXED = 1 + 6 + 15;
    if (count <= FIXED || (count - FIXED) % 4 != 0) fail("wrong arguments; see emulate.cpp");
    const auto number = [&](int i) { return atoll(values[i]); };
    void **const buffers[] = {&q, &k, &v, &padding, &out, &found};
    for (int i = 0; i < 6; i++) {
        const size_t size = number(1 + i);
        *buffers[i] = size == 0 ? nullptr : guarded(size);
        if (i < 4 && fread(*buffers[i], 1, size, stdin) != size) fail("standard input is too short");
        if (i >= 4 && size > 0) memset(*buffers[i], 0xff, size);
    }
    Strides *const strides[] = {&shape.q, &shape.k, &shape.v};
    for (int i = 0; i < 3; i++) *strides[i] = {number(7 + 3 * i), number(8 + 3 * i), number(9 + 3 * i)};
    int *const sizes[] = {&shape.heads, &shape.queries, &shape.keys, &shape.split_keys, &shape.splits};
    for (int i = 0; i < 5; i++) *sizes[i] = static_cast<int>(number(16 + i));
    shape.scale = strtof(values[21], nullptr);

    std::minstd_rand random(1);
    for (int i = FIXED; i < count; i += 4) {
        const std::string name = values[i];
        function = dlsym(RTLD_DEFAULT, values[i]);
        if (!function) fail("no such kernel: ", values[i]);
        entry = name.rfind("merge", 0) == 0 ? run_merge : name.rfind("decode", 0) == 0 ? run_decode : run_attention;
        gridDim = {static_cast<unsigned>(number(i + 1))};
        threads.resize(number(i + 2));
        warps.resize((threads.size() + 31) / 32);
        memory_size = number(i + 3);
        memory = static_cast<uint4 *>(guarded(memory_size));
        for (unsigned b = 0; b < gridDim.x; b++) {
            blockIdx = {b};
            run_block(random);
        }
    }
    fwrite(out, 1, number(5), stdout);
}
