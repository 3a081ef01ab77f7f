// Switches between stacks on one thread of the processor.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
/// Saves this stack's place in `from` and goes on at `to`. Only what a function must keep is saved.
extern "C" void cuda_on_cpu_switch(void **from, void *to);

asm(R"(
.text
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_on_cpu_switch, . - cuda_on_cpu_switch
)");

/// A place on a new stack from which `entry` starts; it never returns.
inline void *place_on(char *end, void (*entry)()) {
    auto *top = reinterpret_cast<uint64_t *>(end) - 1; // as after a call: 8 bytes off a multiple of 16
    *--top = reinterpret_cast<uint64_t>(entry);
    for (int i = 0; i < 6; i++) *--top = 0;
    return top;
}
#else
#error "the switch of stacks is written for x86_64 only"
#endif
