// Launches our kernels with arguments by name, on the driver that runs launches on the processor (scripts/cuda/driver). The
// program's arguments are commands, run in order:
//
//   put NAME BYTES       allocate memory and fill it from standard input
//   allocate NAME BYTES  allocate memory without filling it
//   set NAME NUMBER      set a number, or a field of `struct Shape` or `struct Masks`
//   launch KERNEL BLOCKS THREADS SHARED
//   get NAME             write the memory's size, in 8 bytes, and its bytes to standard output
#include "masks.cuh"
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuFuncSetAttribute(void *, int, int);
int cuMemAlloc_v2(uintptr_t *, size_t);
int cuMemcpyHtoD_v2(uintptr_t, const void *, size_t);
int cuMemcpyDtoH_v2(void *, uintptr_t, size_t);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuCtxSynchronize();
}

namespace {

[[noreturn]] void fail(const char *what, const char *about = "") {
    fprintf(stderr, "launch: %s%s\n", what, about);
    exit(1);
}
void expect(int code, const char *about) {
    if (code) fail("the driver refuses ", about);
}

struct Memory {
    uintptr_t at;
    size_t size;
};
std::map<std::string, Memory> memories;
std::map<std::string, double> numbers;

/// Null if there is none: kernels accept null for optional parts.
template <typename T = void> T *memory_of(const char *name) {
    const auto found = memories.find(name);
    return found == memories.end() ? nullptr : reinterpret_cast<T *>(found->second.at);
}

struct Launch {
    void *function;
    unsigned blocks, threads, shared;
} current;

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

/// Launches the kernel with arguments of these types.
template <typename... A> void call(A... arguments) {
    void *parameters[] = {&arguments...};
    expect(cuLaunchKernel(current.function, current.blocks, 1, 1, current.threads, 1, 1, current.shared, nullptr, parameters, nullptr), "a launch");
    expect(cuCtxSynchronize(), "to synchronize");
}

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

/// The files with kernels, each a module of its own; a kernel's name is in one of them.
constexpr const char *MODULES[] = {"attention", "attention_f32", "attention_backward", "attention_backward_f32",
                                   "delta",     "decode",        "cross_entropy",      "layers"};

void *function_of(const std::string &kernel) {
    static std::map<std::string, void *> modules;
    for (const char *name : MODULES) {
        void *&module = modules[name];
        if (!module) expect(cuModuleLoadData(&module, (std::string("cuda-on-cpu ") + name + "\n").c_str()), name);
        void *function;
        if (cuModuleGetFunction(&function, module, kernel.c_str()) == 0) return function;
    }
    fail("no such kernel: ", kernel.c_str());
}

/// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
constexpr int MOST_SHARED = 8;

} // namespace

int main(int count, char **words) {
    void *context;
    expect(cuInit(0), "to start");
    expect(cuDevicePrimaryCtxRetain(&context, 0), "a context");
    expect(cuCtxSetCurrent(context), "a context");
    for (int i = 1; i < count;) {
        const auto next = [&] { return i < count ? std::string(words[i++]) : (fail("an argument is missing"), std::string()); };
        const auto next_size = [&] { return strtoull(next().c_str(), nullptr, 10); };
        const std::string command = next(), name = next();
        if (command == "put" || command == "allocate") {
            Memory made = {0, next_size()};
            // The driver allocates nothing for no bytes.
            expect(cuMemAlloc_v2(&made.at, made.size ? made.size : 1), "memory");
            if (command == "put") {
                std::vector<char> bytes(made.size);
                if (fread(bytes.data(), 1, made.size, stdin) != made.size) fail("standard input is too short");
                expect(cuMemcpyHtoD_v2(made.at, bytes.data(), made.size), "a copy");
            }
            memories[name] = made;
        } else if (command == "set") {
            numbers[name] = strtod(next().c_str(), nullptr);
        } else if (command == "launch") {
            void (*run)() = nullptr;
            for (const auto &kind : KINDS)
                if (!run && name.rfind(kind.beginning, 0) == 0) run = kind.run;
            if (!run) fail("no such kernel: ", name.c_str());
            current.function = function_of(name);
            current.blocks = static_cast<unsigned>(next_size());
            current.threads = static_cast<unsigned>(next_size());
            current.shared = static_cast<unsigned>(next_size());
            expect(cuFuncSetAttribute(current.function, MOST_SHARED, static_cast<int>(current.shared)), "so much shared memory");
            run();
        } else if (command == "get") {
            const Memory &of = memories.at(name);
            const uint64_t size = of.size;
            std::vector<char> bytes(of.size);
            expect(cuMemcpyDtoH_v2(bytes.data(), of.at, of.size), "a copy");
            fwrite(&size, sizeof size, 1, stdout);
            fwrite(bytes.data(), 1, of.size, stdout);
        } else {
            fail("no such command: ", command.c_str());
        }
    }
}
