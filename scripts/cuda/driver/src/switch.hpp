// Switches between stacks on one thread of the processor.
#pragma once
#include <cstdint>

#if defined(__x86_64__)

#if defined(__AVX512F__)
#define CUDA_ON_CPU_UPPER_REGISTERS                                                                                    \
    , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",      \
        "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define CUDA_ON_CPU_UPPER_REGISTERS
#endif

/// Saves this stack's place in `from` and goes on at `to`. It is no call: the processor predicts that a `ret` goes where the last
/// `call` came from, and that is right if the other stack waits in the same function for the same kernel. Needs -mno-red-zone.
inline __attribute__((always_inline)) void switch_stacks(void **from, void *to) {
    asm volatile(R"(
        pushq %%rbp
        pushq %%rbx
        leaq 1f(%%rip), %%rax
        pushq %%rax
        movq %%rsp, (%%rdi)
        movq %%rsi, %%rsp
        popq %%rax
        jmp *%%rax
    1:
        popq %%rbx
        popq %%rbp
    )"
                 : "+D"(from), "+S"(to)
                 :
                 : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0", "xmm1",
                   "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
                   "xmm15" CUDA_ON_CPU_UPPER_REGISTERS);
}

/// A place on a new stack from which `entry` starts; it never returns.
inline void *place_on(char *end, void (*entry)()) {
    auto *top = reinterpret_cast<uint64_t *>(end) - 1; // as after a call: 8 bytes off a multiple of 16
    *--top = reinterpret_cast<uint64_t>(entry);
    return top;
}
#else
#error "the switch of stacks is written for x86_64 only"
#endif
