/* Copy of one row, summed on the way.
 *
 * The sum is its XXH3. x86-64 has faster ways, chosen when the module is loaded; a row may go around
 * the cache, where so much is copied that it would not stay there.
 */
#ifndef TENSORREPO_COPYROW_H
#define TENSORREPO_COPYROW_H

#include "xxh3.h"

/* ------------------------------------------------------------------ one row */

static inline void fetch_line(const uint8_t *at)
{
    __builtin_prefetch(at, 0, 3);
}

static inline void fetch_row(const uint8_t *row, size_t length)
{
    for (size_t at = 0; at < length; at += LINE)
        fetch_line(row + at);
}

/* How a row is copied. `next` is a row that will be copied soon, or NULL. `around` goes around the
 * cache; `to` and `length` are then multiples of 16. copy_summed gives the xxh3 of the row. */
typedef void copy_row(uint8_t *to, const uint8_t *from, size_t length, const uint8_t *next,
                      bool around);
typedef uint64_t copy_summed(uint8_t *to, const uint8_t *from, size_t length, const uint8_t *next,
                             bool around);

static uint64_t copy_summed_portable(uint8_t *to, const uint8_t *from, size_t length,
                                     const uint8_t *next, bool around)
{
    (void)around;
    if (next)
        fetch_row(next, length);
    memcpy(to, from, length);
    return summed_portable(to, length);
}

#if !defined(__x86_64__)

__attribute__((unused)) static void copy_one(uint8_t *to, const uint8_t *from, size_t length, const uint8_t *next,
                     bool around)
{
    (void)around;
    if (next)
        fetch_row(next, length);
    memcpy(to, from, length);
}

static copy_summed *best_summed(void)
{
    return copy_summed_portable;
}

__attribute__((unused)) static void finish_streaming(void) {}

#else

/* Nothing of a line may be written in the usual way when its rest goes around the cache: that would
 * fetch the line and write it twice. So the end of a row goes around too, and waits in the write
 * buffer for the next row. */
static inline void stream_end(uint8_t *to, const uint8_t *from, size_t length)
{
    for (size_t at = 0; at < length; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
}

__attribute__((unused)) static void copy_one(uint8_t *to, const uint8_t *from, size_t length, const uint8_t *next,
                     bool around)
{
    if (!around) {
        if (next)
            fetch_row(next, length);
        memcpy(to, from, length);
        return;
    }
    size_t at = 0;
    for (; at + LINE <= length; at += LINE) {
        if (next)
            fetch_line(next + at);
        const __m128i *source = (const __m128i *)(from + at);
        __m128i *target = (__m128i *)(to + at);
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    stream_end(to + at, from + at, length - at);
}

INLINE_AVX2 void store_line(uint8_t *to, __m256i low, __m256i high, bool around)
{
    if (around) { /* halves: a row need not begin at a multiple of 32 */
        _mm_stream_si128((__m128i *)to, _mm256_castsi256_si128(low));
        _mm_stream_si128((__m128i *)to + 1, _mm256_extracti128_si256(low, 1));
        _mm_stream_si128((__m128i *)to + 2, _mm256_castsi256_si128(high));
        _mm_stream_si128((__m128i *)to + 3, _mm256_extracti128_si256(high, 1));
    } else {
        _mm256_storeu_si256((__m256i *)to, low);
        _mm256_storeu_si256((__m256i *)to + 1, high);
    }
}

/* Each byte is loaded once, for the copy and for the sum. */
INLINE_AVX2 uint64_t copy_summed_wide(uint8_t *to, const uint8_t *from, size_t length,
                                      const uint8_t *next, bool around)
{
    uint64_t lanes[LANES] = FIRST_LANES;
    __m256i first = wide(lanes), second = wide(lanes + 4);
    size_t at = 0, place = 0;
    for (; at + LINE <= length - 1; at += LINE) {
        if (next)
            fetch_line(next + at);
        __m256i low = wide(from + at), high = wide(from + at + 32);
        store_line(to + at, low, high, around);
        first = half_stripe(first, low, wide(SECRET + 8 * place));
        second = half_stripe(second, high, wide(SECRET + 8 * place + 32));
        if (++place == BLOCK / LINE) {
            first = scrambled(first, wide(SECRET + 128));
            second = scrambled(second, wide(SECRET + 160));
            place = 0;
        }
    }
    uint8_t tail[LINE]; /* so that what is copied and what is summed are one load here too */
    memcpy(tail, from + length - LINE, LINE);
    if (next)
        fetch_line(next + at);
    if (around)
        stream_end(to + at, tail + LINE - (length - at), length - at);
    else
        memcpy(to + at, tail + LINE - (length - at), length - at);
    first = half_stripe(first, wide(tail), wide(SECRET + LAST_SECRET));
    second = half_stripe(second, wide(tail + 32), wide(SECRET + LAST_SECRET + 32));
    _mm256_storeu_si256((__m256i *)lanes, first);
    _mm256_storeu_si256((__m256i *)(lanes + 4), second);
    return merged(lanes, length);
}

__attribute__((target("avx2"))) static uint64_t copy_summed_avx2(uint8_t *to, const uint8_t *from,
                                                                 size_t length, const uint8_t *next,
                                                                 bool around)
{
    return around ? copy_summed_wide(to, from, length, next, true)
                  : copy_summed_wide(to, from, length, next, false);
}

static copy_summed *best_summed(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? copy_summed_avx2 : copy_summed_portable;
}

__attribute__((unused)) static void finish_streaming(void)
{
    _mm_sfence(); /* what went around the cache becomes visible to others in order */
}

#endif

#endif
