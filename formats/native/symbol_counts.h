/* How often each byte stands in a plane: a part of rans.c.
 *
 * Bytes of most planes are few values, which lie next to each other: exponents of weights.
 */
#ifndef TENSORREPO_SYMBOL_COUNTS_H
#define TENSORREPO_SYMBOL_COUNTS_H

#include "numbers.h"
#include "rans.h"

enum { NEIGHBOURS = 16 }; /* symbols that follow each other */

/* The first of those neighbours that most symbols are among, and how many those are. */
static uint32_t first_of_neighbours(const int64_t *counts, int64_t *among)
{
    int64_t sum = 0;
    uint32_t first = 0;
    for (uint32_t i = 0; i < NEIGHBOURS; i++)
        sum += counts[i];
    *among = sum;
    for (uint32_t i = 1; i + NEIGHBOURS <= SYMBOLS; i++) {
        sum += counts[i + NEIGHBOURS - 1] - counts[i - 1];
        if (sum > *among) {
            *among = sum;
            first = i;
        }
    }
    return first;
}

/* Symbols by themselves, added to `counts`. */
typedef void count_bytes(const uint8_t *symbols, size_t count, uint32_t *counts);

/* Any symbols. Eight tables: to count the same symbol twice in a row would wait for the
 * first, and in most planes few symbols are most of all. */
static void count_any(const uint8_t *symbols, size_t count, uint32_t *counts)
{
    enum { AT_ONCE = 8 };
    uint32_t each[AT_ONCE][SYMBOLS] = {{0}};
    size_t i = 0;
    for (; i + AT_ONCE <= count; i += AT_ONCE) {
        uint64_t some = load64(symbols + i);
        for (unsigned j = 0; j < AT_ONCE; j++)
            each[j][(uint8_t)(some >> 8 * j)]++;
    }
    for (; i < count; i++)
        each[0][symbols[i]]++;
    for (unsigned j = 0; j < AT_ONCE; j++)
        for (size_t symbol = 0; symbol < SYMBOLS; symbol++)
            counts[symbol] += each[j][symbol];
}

static count_bytes *best_count_bytes = count_any;

#if defined(__x86_64__)

/* ------------------------------------------------------------------ counting on x86-64
 *
 * Where nearly all symbols are among sixteen neighbours, each of those is counted by comparing: eight
 * in a pass, as there are registers for, over as much as stays in cache. */

enum {
    VECTOR = 32,
    MOST_VECTORS = 255, /* a byte counts no further */
    LOOKED_AT = 1024,   /* symbols that tell which are most */
    OFTEN = 32,         /* one symbol in so many that is no neighbour: comparing does not pay */
};

/* Counts eight symbols from `first` on, among whole vectors. */
WIDE static void count_eight(const uint8_t *symbols, size_t vectors, uint8_t first, uint32_t *counts)
{
    __m256i wanted[8], found[8];
    for (unsigned i = 0; i < 8; i++) {
        wanted[i] = _mm256_set1_epi8((char)(first + i));
        found[i] = _mm256_setzero_si256();
    }
    for (size_t at = 0; at < vectors; at++) {
        __m256i some = _mm256_loadu_si256((const __m256i *)symbols + at);
        for (unsigned i = 0; i < 8; i++)
            found[i] = _mm256_sub_epi8(found[i], _mm256_cmpeq_epi8(some, wanted[i]));
    }
    for (unsigned i = 0; i < 8; i++) {
        __m256i sums = _mm256_sad_epu8(found[i], _mm256_setzero_si256());
        __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        counts[first + i] += (uint32_t)(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
    }
}

/* Counts symbols that are no neighbours; how many those are. */
WIDE static size_t count_beyond(const uint8_t *symbols, size_t vectors, uint8_t first,
                                uint32_t *counts)
{
    const __m256i lowest = _mm256_set1_epi8((char)first);
    const __m256i above = _mm256_set1_epi8((char)(256 - NEIGHBOURS));
    size_t beyond = 0;
    for (size_t at = 0; at < vectors; at++) {
        const uint8_t *from = symbols + VECTOR * at;
        __m256i places = _mm256_sub_epi8(_mm256_loadu_si256((const __m256i *)from), lowest);
        places = _mm256_and_si256(places, above);
        if (_mm256_testz_si256(places, places))
            continue;
        __m256i inside = _mm256_cmpeq_epi8(places, _mm256_setzero_si256());
        for (uint32_t mask = ~(uint32_t)_mm256_movemask_epi8(inside); mask; mask &= mask - 1) {
            counts[from[__builtin_ctz(mask)]]++;
            beyond++;
        }
    }
    return beyond;
}

WIDE static void count_wide(const uint8_t *symbols, size_t count, uint32_t *counts)
{
    size_t at = 0;
    if (count > 4 * LOOKED_AT) {
        uint32_t some[SYMBOLS] = {0};
        int64_t sample[SYMBOLS], among;
        count_any(symbols, LOOKED_AT, some);
        for (size_t i = 0; i < SYMBOLS; i++)
            sample[i] = some[i];
        uint8_t first = (uint8_t)first_of_neighbours(sample, &among);
        bool pays = (LOOKED_AT - among) * OFTEN <= LOOKED_AT;
        while (pays && at + VECTOR <= count) {
            size_t vectors = (count - at) / VECTOR;
            vectors = vectors < MOST_VECTORS ? vectors : MOST_VECTORS;
            pays = count_beyond(symbols + at, vectors, first, counts) * OFTEN <= vectors * VECTOR;
            count_eight(symbols + at, vectors, first, counts);
            count_eight(symbols + at, vectors, first + 8, counts);
            at += vectors * VECTOR;
        }
    }
    count_any(symbols + at, count - at, counts);
}

#endif

static void choose_counting(void)
{
#if defined(__x86_64__)
    if (is_wide())
        best_count_bytes = count_wide;
#endif
}

#endif
