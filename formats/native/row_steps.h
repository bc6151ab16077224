/* Numbers that moved by an amount that follows from their class, the eight bits below the exponent.
 *
 * For row_moves.c and delta_tokens.c, which choose `best_step` when their module is loaded; the layout
 * is in docs/spec/model.md, section "Decay".
 */
#ifndef TENSORREPO_ROW_STEPS_H
#define TENSORREPO_ROW_STEPS_H

#include "numbers.h"

enum { CLASSES = 256 };

typedef struct {
    int size;     /* bytes: 4 or 8 */
    int below;    /* bits below a class */
} classing;

/* The numbers that are as far from the base's as the table says of their class. */
INLINE void step_body(const uint8_t *base, size_t count, classing by, const uint16_t *table,
                      uint8_t *out)
{
    union {
        U32 of32[BLOCK];
        U64 of64[BLOCK];
    } zigzag;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK, start = at * (size_t)by.size;
        const uint8_t *from = base + start;
        if (by.size == 4) {
            for (size_t i = 0; i < part; i++)
                zigzag.of32[i] = table[load32(from + 4 * i) >> by.below & (CLASSES - 1)];
            restored32(zigzag.of32, from, part, true, out + start);
        } else {
            for (size_t i = 0; i < part; i++)
                zigzag.of64[i] = table[load64(from + 8 * i) >> by.below & (CLASSES - 1)];
            restored64(zigzag.of64, from, part, true, out + start);
        }
    }
}

EVERY_MACHINE(void, step,
              (const uint8_t *base, size_t count, classing by, const uint16_t *table, uint8_t *out),
              if (by.size == 4) step_body(base, count, (classing){4, by.below}, table, out);
              else step_body(base, count, (classing){8, by.below}, table, out););

#if defined(__x86_64__)

/* The table in eight vectors, of 64 classes in each two. */
typedef struct {
    __m512i eighths[8];
} looked_up;

/* What the table says of 32 classes, each in 16 bits. */
NEWEST INLINE __m512i steps_of(__m512i classes, const looked_up *table)
{
    const __m512i *of = table->eighths;
    __m512i first = _mm512_permutex2var_epi16(of[0], classes, of[1]);
    __m512i second = _mm512_permutex2var_epi16(of[2], classes, of[3]);
    __m512i third = _mm512_permutex2var_epi16(of[4], classes, of[5]);
    __m512i fourth = _mm512_permutex2var_epi16(of[6], classes, of[7]);
    __mmask32 odd = _mm512_test_epi16_mask(classes, _mm512_set1_epi16(64));
    __mmask32 upper = _mm512_test_epi16_mask(classes, _mm512_set1_epi16(128));
    first = _mm512_mask_mov_epi16(first, odd, second);
    third = _mm512_mask_mov_epi16(third, odd, fourth);
    return _mm512_mask_mov_epi16(first, upper, third);
}

/* As restored32 does of magnitudes, for 16 numbers. */
NEWEST INLINE __m512i stepped(__m512i from, __m256i steps)
{
    const __m512i most = _mm512_set1_epi32(INT32_MAX);
    __m512i zigzag = _mm512_cvtepu16_epi32(steps);
    __m512i odd = _mm512_and_si512(zigzag, _mm512_set1_epi32(1));
    __m512i down = _mm512_sub_epi32(_mm512_setzero_si512(), odd);
    __m512i number = _mm512_add_epi32(from, _mm512_xor_si512(_mm512_srli_epi32(zigzag, 1), down));
    __m512i crossed = _mm512_srai_epi32(_mm512_xor_si512(number, from), 31);
    return _mm512_xor_si512(number, _mm512_and_si512(crossed, most));
}

NEWEST static void step_thirty_two(const uint8_t *base, size_t count, classing by,
                                   const uint16_t *table, uint8_t *out)
{
    enum { HALF = 16, BOTH = 32 };
    const __m512i class = _mm512_set1_epi32(CLASSES - 1);
    const __m128i below = _mm_cvtsi32_si128(by.below);
    looked_up all;
    size_t at = 0;
    for (size_t i = 0; i < 8; i++)
        all.eighths[i] = _mm512_loadu_si512(table + BOTH * i);
    for (; by.size == 4 && at + BOTH <= count; at += BOTH) {
        __m512i one = _mm512_loadu_si512(base + 4 * at);
        __m512i other = _mm512_loadu_si512(base + 4 * (at + HALF));
        __m256i low = _mm512_cvtepi32_epi16(_mm512_and_si512(_mm512_srl_epi32(one, below), class));
        __m256i high = _mm512_cvtepi32_epi16(
            _mm512_and_si512(_mm512_srl_epi32(other, below), class));
        __m512i classes = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        __m512i steps = steps_of(classes, &all);
        _mm512_storeu_si512(out + 4 * at, stepped(one, _mm512_castsi512_si256(steps)));
        _mm512_storeu_si512(out + 4 * (at + HALF),
                            stepped(other, _mm512_extracti64x4_epi64(steps, 1)));
    }
    size_t start = at * (size_t)by.size;
    step_newest(base + start, count - at, by, table, out + start);
}

#endif

__attribute__((unused)) static void choose_step(void)
{
    CHOOSE(step);
#if defined(__x86_64__)
    if (is_newest())
        best_step = step_thirty_two;
#endif
}

#endif
