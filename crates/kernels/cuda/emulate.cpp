// Runs kernels on the CPU through emulation.hpp. The arguments are commands, run in order:
//
//   put NAME BYTES       allocate memory and fill it from standard input
//   allocate NAME BYTES  allocate memory and fill it with garbage
//   set NAME NUMBER      set a number, or a field of `struct Shape` or `struct Masks`
//   launch KERNEL BLOCKS THREADS SHARED
//   get NAME             write the memory's size, in 8 bytes, and its bytes to standard output
//
// Kernels get their parameters by name. A kernel that touches memory outside its own ends the program.
#include "masks.cuh"
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
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

/// A barrier, where threads wait for each other.
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
    unsigned shows; // the number of calls to `show` so far; its parity picks the board
    std::vector<Copy> copies;
};

struct Warp {
    Meeting meeting;
    /// Two boards: a lane may already show its next operands while others still read these.
    emulation::Shown boards[2][32];
};

ucontext_t scheduler;
std::vector<Thread> threads;
std::vector<Warp> warps;
Meeting block;
unsigned current;
bool moved; // some thread has made progress in this round
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
    unsigned asleep = warps.size(); // a warp that gets no turn until all others wait for it
    while (!turns.empty()) {
        if (asleep == warps.size() && random() % 4 == 0) asleep = random() % warps.size();
        for (size_t i = turns.size() - 1; i > 0; i--) std::swap(turns[i], turns[random() % (i + 1)]);
        moved = false;
        for (unsigned turn : turns) {
            if (turn / 32 == asleep) continue;
            current = turn;
            swapcontext(&scheduler, &threads[turn].context);
        }
        if (!moved && asleep == warps.size()) fail("deadlock: all threads wait, but not at the same barrier");
        if (!moved) asleep = warps.size();
        std::vector<unsigned> left;
        for (unsigned turn : turns)
            if (!threads[turn].ended) left.push_back(turn);
        turns = left;
    }
}

/// Allocates `size` bytes that end right before a page that faults on access.
void *guarded(size_t size) {
    constexpr size_t PAGE = 1 << 16;
    const size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    char *start = static_cast<char *>(mmap(nullptr, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start == MAP_FAILED || mprotect(start + whole, PAGE, PROT_NONE) != 0) fail("no memory");
    return start + whole - size;
}

struct Memory {
    void *at;
    size_t size;
};
std::map<std::string, Memory> memories;
std::map<std::string, double> numbers;
void *function;

/// Null if there is none: kernels accept null for optional parts.
template <typename T = void> T *memory_of(const char *name) {
    const auto found = memories.find(name);
    return found == memories.end() ? nullptr : static_cast<T *>(found->second.at);
}

double number(const std::string &name) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) fail("no number ", name.c_str());
    return found->second;
}

double number_or(const char *name, double otherwise) {
    const auto found = numbers.find(name);
    return found == numbers.end() ? otherwise : found->second;
}

Shape shape() {
    const auto whole = [](const std::string &name) { return static_cast<int>(number(name)); };
    const auto strides = [&](const std::string &of) {
        return Strides{whole(of + ".batch"), whole(of + ".head"), whole(of + ".position")};
    };
    return {strides("q"),     strides("k"),  strides("v"),        whole("heads"),  whole("queries"),
            whole("keys"),    whole("split_keys"), whole("splits"), whole("section"), static_cast<float>(number("scale"))};
}

/// Nothing is hidden or dropped unless the numbers say so.
Masks masks() {
    const auto word = [](const char *name) { return static_cast<uint32_t>(number_or(name, 0)); };
    return {memory_of<int>("hidden_starts"),
            memory_of<int>("hidden_keys"),
            {word("seed.0"), word("seed.1")},
            {word("stream.0"), word("stream.1")},
            word("threshold"),
            static_cast<float>(number_or("kept", 1)),
            static_cast<int>(word("first_head")),
            static_cast<int>(word("all_heads"))};
}

/// Calls the kernel with arguments of these types.
template <typename... A> void call(A... arguments) { reinterpret_cast<void (*)(A...)>(function)(arguments...); }

void run_attention() {
    call(memory_of("q"), memory_of("k"), memory_of("v"), memory_of("padding"), memory_of("out"), memory_of("log_sums"), shape());
}
void run_attention_masked() {
    call(memory_of("q"), memory_of("k"), memory_of("v"), memory_of("padding"), memory_of("out"), memory_of("log_sums"), shape(),
         masks());
}
void run_delta() {
    call(memory_of("grad"), memory_of("out"), memory_of("deltas"), static_cast<long long>(number("rows")),
         static_cast<int>(number("queries")), static_cast<int>(number("heads")), static_cast<int>(number("width")));
}
void run_gradient_of_queries() {
    call(memory_of("q"), memory_of("k"), memory_of("v"), memory_of("padding"), memory_of("grad"), memory_of("log_sums"),
         memory_of("deltas"), memory_of("dq"), shape(), masks());
}
void run_gradient_of_keys() {
    call(memory_of("q"), memory_of("k"), memory_of("v"), memory_of("padding"), memory_of("grad"), memory_of("log_sums"),
         memory_of("deltas"), memory_of("dk"), memory_of("dv"), shape(), masks());
}
void run_decode() {
    call(memory_of("q"), memory_of("k"), memory_of("v"), memory_of("padding"), memory_of("out"), memory_of("found"),
         memory_of("finished"), shape());
}
void run_cross_entropy() {
    call(memory_of("logits"), memory_of("targets"), memory_of("losses"), static_cast<int>(number("width")),
         static_cast<int>(number("gradients")));
}
void run_layer_norm() {
    call(memory_of("x"), memory_of("weight"), memory_of("bias"), memory_of("out"), static_cast<long long>(number("rows")),
         static_cast<int>(number("width")), static_cast<float>(number("eps")));
}
void run_finish() {
    call(memory_of("x"), memory_of("bias"), memory_of("residual"), static_cast<long long>(number("units")),
         static_cast<int>(number("width")));
}

constexpr struct {
    const char *beginning;
    void (*run)();
} KINDS[] = {{"attention_masked_", run_attention_masked},
             {"attention_", run_attention},
             {"delta_", run_delta},
             {"gradient_of_queries_", run_gradient_of_queries},
             {"gradient_of_keys_", run_gradient_of_keys},
             {"decode_", run_decode},
             {"cross_entropy_", run_cross_entropy},
             {"layer_norm_", run_layer_norm},
             {"finish_", run_finish}};

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

int main(int count, char **words) {
    std::minstd_rand random(1);
    for (int i = 1; i < count;) {
        const auto next = [&] { return i < count ? std::string(words[i++]) : (fail("an argument is missing"), std::string()); };
        const auto next_size = [&] { return strtoull(next().c_str(), nullptr, 10); };
        const std::string command = next(), name = next();
        if (command == "put" || command == "allocate") {
            const size_t size = next_size();
            const Memory made = {guarded(size), size};
            memset(made.at, 0xff, size);
            if (command == "put" && fread(made.at, 1, size, stdin) != size) fail("standard input is too short");
            memories[name] = made;
        } else if (command == "set") {
            numbers[name] = strtod(next().c_str(), nullptr);
        } else if (command == "launch") {
            function = dlsym(RTLD_DEFAULT, name.c_str());
            entry = nullptr;
            for (const auto &kind : KINDS)
                if (!entry && name.rfind(kind.beginning, 0) == 0) entry = kind.run;
            if (!function || !entry) fail("no such kernel: ", name.c_str());
            gridDim = {static_cast<unsigned>(next_size())};
            threads.resize(next_size());
            warps.resize((threads.size() + 31) / 32);
            memory_size = next_size();
            memory = static_cast<uint4 *>(guarded(memory_size));
            std::vector<unsigned> order; // of blocks: none may rely on another one's having run
            for (unsigned b = 0; b < gridDim.x; b++) {
                order.push_back(b);
                std::swap(order.back(), order[random() % order.size()]);
            }
            for (unsigned b : order) {
                blockIdx = {b};
                run_block(random);
            }
        } else if (command == "get") {
            const Memory &of = memories.at(name);
            const uint64_t size = of.size;
            fwrite(&size, sizeof size, 1, stdout);
            fwrite(of.at, 1, of.size, stdout);
        } else {
            fail("no such command: ", command.c_str());
        }
    }
}
