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

/* The distances of 32 classes: the table lies in eight vectors of 64 entries in two each. */
typedef struct {
    __m512i eighths[8];
} table_vectors;

NEWEST INLINE __m512i distances_of(__m512i classes, const table_vectors *table)
{
    const __m512i *of = table->eighths;
    __mmask32 odd = _mm512_test_epi16_mask(classes, _mm512_set1_epi16(64));
    __mmask32 upper = _mm512_test_epi16_mask(classes, _mm512_set1_epi16(128));
    __m512i one = _mm512_permutex2var_epi16(of[0], classes, of[1]);
    __m512i two = _mm512_permutex2var_epi16(of[2], classes, of[3]);
    __m512i three = _mm512_permutex2var_epi16(of[4], classes, of[5]);
    __m512i four = _mm512_permutex2var_epi16(of[6], classes, of[7]);
    return _mm512_mask_blend_epi16(upper, _mm512_mask_blend_epi16(odd, one, two),
                                   _mm512_mask_blend_epi16(odd, three, four));
}

/* As restored32 does, of numbers whose top bit is a sign. */
NEWEST INLINE __m512i stepped(__m512i from, __m512i zigzag)
{
    const __m512i one = _mm512_set1_epi32(1), most = _mm512_set1_epi32(INT32_MAX);
    __m512i down = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_and_si512(zigzag, one));
    __m512i distance = _mm512_xor_si512(_mm512_srli_epi32(zigzag, 1), down);
    __m512i number = _mm512_add_epi32(from, distance);
    __m512i crossed = _mm512_srai_epi32(_mm512_xor_si512(number, from), 31);
    return _mm512_ternarylogic_epi32(number, crossed, most, 0x78); /* number ^ (crossed & most) */
}

NEWEST static void step_newest(const uint8_t *base, size_t count, classing by, const uint16_t *table,
                               uint8_t *out)
{
    enum { MANY_AT_ONCE = 32, HALF_BYTES = 64 };
    const __m512i evens = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34,
                                           32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2,
                                           0);
    if (by.size != 4) {
        step_wide(base, count, by, table, out);
        return;
    }
    table_vectors vectors;
    for (size_t i = 0; i < 8; i++)
        vectors.eighths[i] = _mm512_loadu_si512(table + 32 * i);
    const __m128i below = _mm_cvtsi32_si128(by.below);
    size_t whole = count / MANY_AT_ONCE * MANY_AT_ONCE;
    for (const uint8_t *end = base + 4 * whole; base < end; base += 2 * HALF_BYTES) {
        __m512i one = _mm512_loadu_si512(base), other = _mm512_loadu_si512(base + HALF_BYTES);
        __m512i classes = _mm512_permutex2var_epi16(_mm512_srl_epi32(one, below), evens,
                                                    _mm512_srl_epi32(other, below));
        __m512i zigzag = distances_of(classes, &vectors);
        __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(zigzag));
        __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(zigzag, 1));
        _mm512_storeu_si512(out, stepped(one, low));
        _mm512_storeu_si512(out + HALF_BYTES, stepped(other, high));
        out += 2 * HALF_BYTES;
    }
    step_wide(base, count - whole, by, table, out);
}

#endif

#endif
