// Random words by counter.
#pragma once
#include "device.cuh"

/// Philox4x32-10 (Salmon et al. 2011).
DEVICE void philox(uint32_t (&counter)[4], uint32_t key0, uint32_t key1) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = multiply_high(0xd2511f53, counter[0]), low0 = 0xd2511f53 * counter[0];
        const uint32_t high1 = multiply_high(0xcd9e8d57, counter[2]), low1 = 0xcd9e8d57 * counter[2];
        counter[0] = high1 ^ counter[1] ^ key0;
        counter[1] = low1;
        counter[2] = high0 ^ counter[3] ^ key1;
        counter[3] = low0;
        key0 += 0x9e3779b9, key1 += 0xbb67ae85;
    }
}
