// cuRAND: numbers from a seed. They are not those of NVIDIA's generators.
#include "driver.hpp"
#include <cmath>

using namespace cuda_on_cpu;

namespace {

enum Status { SUCCESS = 0, LENGTH_NOT_MULTIPLE = 105, LAUNCH_FAILURE = 201 };
struct Generator {
    uint64_t seed = 0, next = 0;
    void *stream = nullptr;
};

/// SplitMix64's number `index` of the seed.
uint64_t word(uint64_t seed, uint64_t index) {
    uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}
/// In (0, 1].
double uniform(uint64_t seed, uint64_t index) { return (static_cast<double>(word(seed, index) >> 11) + 1) * 0x1p-53; }

template <class T> int fill(Generator *generator, T *to, size_t count, std::function<T(uint64_t, uint64_t)> number) {
    Locked locked(lock);
    Stream *const stream = stream_of(generator->stream);
    if (!stream) return 1;
    // Each launch of a graph would give the same numbers.
    if (stream->capture) return invalidate(stream, LAUNCH_FAILURE, "a capture of cuRAND's numbers");
    if (check_capture(stream, "random numbers")) return LAUNCH_FAILURE;
    const uint64_t seed = generator->seed, first = generator->next;
    generator->next += count;
    cuda_on_cpu::count("random", sizeof(T) == 4 ? "f32" : "f64", count * sizeof(T));
    enqueue(stream, "random numbers", [=] {
        check_device("the target", to, count * sizeof(T));
        for (size_t i = 0; i < count; i++) to[i] = number(seed, first + i);
    });
    return SUCCESS;
}

template <class T> int normal(Generator *generator, T *to, size_t count, T mean, T deviation) {
    if (count % 2 != 0) return refuse(LENGTH_NOT_MULTIPLE, "cuRAND: an odd number of normal numbers");
    return fill<T>(generator, to, count, [=](uint64_t seed, uint64_t index) {
        const uint64_t pair = index & ~uint64_t{1};
        const double size = std::sqrt(-2 * std::log(uniform(seed, pair))), angle = 6.283185307179586 * uniform(seed, pair + 1);
        return static_cast<T>(mean + deviation * size * (index & 1 ? std::sin(angle) : std::cos(angle)));
    });
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT curandCreateGenerator(Generator **generator, int) { return *generator = new Generator, SUCCESS; }
EXPORT curandDestroyGenerator(Generator *generator) { return delete generator, SUCCESS; }
EXPORT curandSetPseudoRandomGeneratorSeed(Generator *generator, unsigned long long seed) {
    generator->seed = seed;
    generator->next = 0;
    return SUCCESS;
}
EXPORT curandSetGeneratorOffset(Generator *generator, unsigned long long offset) { return generator->next = offset, SUCCESS; }
EXPORT curandSetStream(Generator *generator, void *stream) { return generator->stream = stream, SUCCESS; }
EXPORT curandGenerateUniform(Generator *generator, float *to, size_t count) {
    return fill<float>(generator, to, count, [](uint64_t seed, uint64_t i) { return static_cast<float>(uniform(seed, i)); });
}
EXPORT curandGenerateUniformDouble(Generator *generator, double *to, size_t count) { return fill<double>(generator, to, count, uniform); }
EXPORT curandGenerateNormal(Generator *generator, float *to, size_t count, float mean, float deviation) {
    return normal(generator, to, count, mean, deviation);
}
EXPORT curandGenerateNormalDouble(Generator *generator, double *to, size_t count, double mean, double deviation) {
    return normal(generator, to, count, mean, deviation);
}
