// What a running kernel sees of the worker that runs it: its place in the grid, and where threads wait for each other.
// The driver (src/threads.cpp) has the other side.
#pragma once
#include <cstddef>
#include <cstdint>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace cuda_on_cpu {

/// One for each thread of the processor that runs blocks. A thread of a block never moves to another worker.
struct Worker {
    uint3 thread, block, threads, blocks;
    /// The block's shared memory of the size given at launch.
    void *shared;
    unsigned shared_size;
    /// Counts the blocks that this worker has run, so that shared variables notice a new one.
    unsigned block_number;
    /// The number of the thread in its block.
    unsigned rank;
    unsigned number;
};

/// The most threads of the processor that run blocks at a time: helpers, and the program's own threads that wait for the GPU.
constexpr unsigned MOST_WORKERS = 1024;

/// A `__shared__` variable of a fixed size. The driver gives each worker its own memory for it, with a guard behind.
struct SharedVariable {
    const char *name;
    unsigned size, align;
    void *at[MOST_WORKERS];
    unsigned block_number[MOST_WORKERS];
};

/// Computes the results of all lanes of a warp from what they show: 32 entries of 48 bytes each. The mask says which lanes
/// take part.
using Together = void (*)(const char (*shown)[48], char (*results)[48], uint32_t mask, int number);

} // namespace cuda_on_cpu

extern "C" {
extern __thread cuda_on_cpu::Worker cuda_on_cpu_worker __attribute__((tls_model("initial-exec")));
void cuda_on_cpu_sync_block();
/// Waits for the lanes of the mask, and returns what they show; with `together`, what that computes.
const char (*cuda_on_cpu_meet(uint32_t mask, const void *shown, unsigned size, cuda_on_cpu::Together together, int number))[48];
void *cuda_on_cpu_shared(cuda_on_cpu::SharedVariable *variable);
/// Notes a copy to shared memory that arrives when the thread waits for its copies.
void cuda_on_cpu_copy_later(void *shared, const void *global, unsigned size, unsigned there);
void cuda_on_cpu_copies_arrive();
[[noreturn]] void cuda_on_cpu_fail(const char *what);
/// Ends the program unless these bytes lie in the block's shared memory, aligned.
void cuda_on_cpu_check_shared(const void *address, unsigned size, unsigned align);
}

namespace cuda_on_cpu {

/// The type of the kernel's parameter list, for the driver to copy and check.
struct Parameter {
    unsigned size;
    bool pointer;
};

struct Kernel {
    const char *name;
    /// Runs the kernel for the worker's current thread.
    void (*run)(void **parameters);
    const Parameter *parameters;
    unsigned count;
    /// The most threads of a block (`__launch_bounds__`); 0 if any number.
    unsigned most_threads;
    Kernel *next;
};

} // namespace cuda_on_cpu
