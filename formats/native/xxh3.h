/* XXH3 of 64 bits with seed 0, of inputs of more than 240 bytes.
 *
 * The specification is doc/xxhash_spec.md of xxHash. x86-64 has a faster way, chosen when the module
 * is loaded.
 */
#ifndef TENSORREPO_XXH3_H
#define TENSORREPO_XXH3_H

#include "targets.h"

#define INLINE_AVX2 __attribute__((target("avx2"), always_inline)) static inline

enum {
    LINE = 64,          /* bytes of a cache line, and of a stripe of XXH3 */
    LEAST_SUMMED = 241, /* shorter inputs have other rules in XXH3; spec: from 256 on */
};

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define PRIME_MX1 0x165667919E3779F9u

enum { BLOCK = 1024, LANES = 8, LAST_SECRET = 192 - LINE - 7, MERGE_SECRET = 11 };

static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

#define FIRST_LANES \
    { PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1 }

static inline uint64_t word(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t folded(uint64_t one, uint64_t other)
{
    unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t merged(const uint64_t lanes[LANES], size_t length)
{
    uint64_t sum = length * PRIME64_1;
    for (int i = 0; i < LANES; i += 2) {
        const uint8_t *secret = SECRET + MERGE_SECRET + 8 * i;
        sum += folded(lanes[i] ^ word(secret), lanes[i + 1] ^ word(secret + 8));
    }
    sum = (sum ^ sum >> 37) * PRIME_MX1;
    return sum ^ sum >> 32;
}

static inline void stripe(uint64_t lanes[LANES], const uint8_t *data, const uint8_t *secret)
{
    for (int i = 0; i < LANES; i++) {
        uint64_t value = word(data + 8 * i), keyed = value ^ word(secret + 8 * i);
        lanes[i ^ 1] += value;
        lanes[i] += (keyed & 0xFFFFFFFFu) * (keyed >> 32);
    }
}

static uint64_t summed_portable(const uint8_t *data, size_t length)
{
    uint64_t lanes[LANES] = FIRST_LANES;
    size_t last = length - 1; /* the last stripe always comes by itself, and may overlap */
    for (size_t at = 0, place = 0; at + LINE <= last; at += LINE) {
        stripe(lanes, data + at, SECRET + 8 * place);
        if (++place == BLOCK / LINE) {
            for (int i = 0; i < LANES; i++)
                lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ word(SECRET + 128 + 8 * i)) * PRIME32_1;
            place = 0;
        }
    }
    stripe(lanes, data + length - LINE, SECRET + LAST_SECRET);
    return merged(lanes, length);
}

typedef uint64_t sum_row(const uint8_t *data, size_t length);

/* Inputs of one length that are summed side by side, and how far ahead each is asked for. Where they
 * lie in memory and in no cache, one after the other takes half as long again: memory answers
 * several at a time, and what a processor fetches by itself ends with each 4 KiB. */
enum { ABREAST = 4, FETCHED_AHEAD = 1024 };

typedef void sum_rows_abreast(const uint8_t *const data[ABREAST], size_t length,
                              uint64_t sums[ABREAST]);

#if defined(__x86_64__)

INLINE_AVX2 __m256i wide(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

INLINE_AVX2 __m256i half_stripe(__m256i lanes, __m256i value, __m256i secret)
{
    __m256i keyed = _mm256_xor_si256(value, secret);
    __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    __m256i swapped = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(lanes, _mm256_add_epi64(product, swapped));
}

INLINE_AVX2 __m256i scrambled(__m256i lanes, __m256i secret)
{
    const __m256i prime = _mm256_set1_epi32((int)PRIME32_1);
    lanes = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), secret);
    __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(lanes, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(lanes, prime), _mm256_slli_epi64(high, 32));
}

__attribute__((unused, target("avx2"))) static uint64_t summed_avx2(const uint8_t *data,
                                                                    size_t length)
{
    uint64_t lanes[LANES] = FIRST_LANES;
    __m256i first = wide(lanes), second = wide(lanes + 4);
    for (size_t at = 0, place = 0; at + LINE <= length - 1; at += LINE) {
        first = half_stripe(first, wide(data + at), wide(SECRET + 8 * place));
        second = half_stripe(second, wide(data + at + 32), wide(SECRET + 8 * place + 32));
        if (++place == BLOCK / LINE) {
            first = scrambled(first, wide(SECRET + 128));
            second = scrambled(second, wide(SECRET + 160));
            place = 0;
        }
    }
    const uint8_t *tail = data + length - LINE;
    first = half_stripe(first, wide(tail), wide(SECRET + LAST_SECRET));
    second = half_stripe(second, wide(tail + 32), wide(SECRET + LAST_SECRET + 32));
    _mm256_storeu_si256((__m256i *)lanes, first);
    _mm256_storeu_si256((__m256i *)(lanes + 4), second);
    return merged(lanes, length);
}

__attribute__((unused, target("avx2"))) static void
abreast_avx2(const uint8_t *const data[ABREAST], size_t length, uint64_t sums[ABREAST])
{
    uint64_t lanes[LANES] = FIRST_LANES;
    __m256i first[ABREAST], second[ABREAST];
    for (int i = 0; i < ABREAST; i++) {
        first[i] = wide(lanes);
        second[i] = wide(lanes + 4);
    }
    for (size_t at = 0, place = 0; at + LINE <= length - 1; at += LINE) {
#pragma GCC unroll 4
        for (int i = 0; i < ABREAST; i++) {
            const uint8_t *line = data[i] + at;
            __builtin_prefetch(line + FETCHED_AHEAD, 0, 3);
            first[i] = half_stripe(first[i], wide(line), wide(SECRET + 8 * place));
            second[i] = half_stripe(second[i], wide(line + 32), wide(SECRET + 8 * place + 32));
        }
        if (++place == BLOCK / LINE) {
#pragma GCC unroll 4
            for (int i = 0; i < ABREAST; i++) {
                first[i] = scrambled(first[i], wide(SECRET + 128));
                second[i] = scrambled(second[i], wide(SECRET + 160));
            }
            place = 0;
        }
    }
    for (int i = 0; i < ABREAST; i++) {
        const uint8_t *tail = data[i] + length - LINE;
        first[i] = half_stripe(first[i], wide(tail), wide(SECRET + LAST_SECRET));
        second[i] = half_stripe(second[i], wide(tail + 32), wide(SECRET + LAST_SECRET + 32));
        _mm256_storeu_si256((__m256i *)lanes, first[i]);
        _mm256_storeu_si256((__m256i *)(lanes + 4), second[i]);
        sums[i] = merged(lanes, length);
    }
}

#endif

__attribute__((unused)) static void
abreast_portable(const uint8_t *const data[ABREAST], size_t length, uint64_t sums[ABREAST])
{
    for (int i = 0; i < ABREAST; i++)
        sums[i] = summed_portable(data[i], length);
}

__attribute__((unused)) static sum_rows_abreast *best_abreast(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        return abreast_avx2;
#endif
    return abreast_portable;
}

__attribute__((unused)) static sum_row *best_sum(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        return summed_avx2;
#endif
    return summed_portable;
}

#endif
