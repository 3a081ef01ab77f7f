// Lists a library's kernels for the driver. The stand-in for nvcc adds a line for each kernel at the end of its file.
#pragma once
#include "worker.hpp"
#include <type_traits>
#include <utility>

namespace cuda_on_cpu {

template <class... A, size_t... I> void call(void (*kernel)(A...), void **parameters, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A> *>(parameters[I])...);
}

template <auto K> struct Entry;
template <class... A, void (*K)(A...)> struct Entry<K> {
    static constexpr Parameter PARAMETERS[] = {{sizeof(A), std::is_pointer_v<A>}..., {0, false}};
    static void run(void **parameters) { call(K, parameters, std::index_sequence_for<A...>()); }
    static Kernel make(const char *name, unsigned most_threads) {
        return {name, run, PARAMETERS, sizeof...(A), most_threads, nullptr};
    }
};

struct Registration {
    Kernel kernel;
    explicit Registration(Kernel of, Kernel *&list) : kernel(of) {
        kernel.next = list;
        list = &kernel;
    }
};

constexpr unsigned first_of(unsigned most_threads = 0, unsigned = 0, unsigned = 0) { return most_threads; }

} // namespace cuda_on_cpu
