/* Symbols out of many states at once, on x86-64.
 *
 * For coder.c and distances.c. They read and write what the portable loop of rans.h does, bit for
 * bit.
 */
#ifndef TENSORREPO_RANSWIDE_H
#define TENSORREPO_RANSWIDE_H

#include "rans.h"

enum { WIDTH = 8 };
static __m256i spread[256]; /* for each mask of lanes: which of the next words each lane gets */

static void fill_spread(void)
{
    for (unsigned mask = 0; mask < 256; mask++) {
        uint32_t places[WIDTH], next = 0;
        for (unsigned lane = 0; lane < WIDTH; lane++)
            places[lane] = mask >> lane & 1 ? next++ : 0;
        memcpy(&spread[mask], places, sizeof places);
    }
}

WIDE static void fill_wide(const uint16_t *frequencies, uint32_t *slots)
{
    fill_body(frequencies, slots);
}

WIDEST static void fill_widest(const uint16_t *frequencies, uint32_t *slots)
{
    const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i starts = _mm512_slli_epi32(places, 20), next = _mm512_set1_epi32(16 << 20);
    for (uint32_t symbol = 0; symbol < SYMBOLS; symbol++) {
        uint32_t frequency = frequencies[symbol];
        __m512i entry = _mm512_set1_epi32((int)(symbol | (frequency - 1) << 8));
        entry = _mm512_add_epi32(entry, starts);
        _mm512_storeu_si512(slots, entry);
        for (uint32_t i = 16; i < frequency; i += 16) {
            entry = _mm512_add_epi32(entry, next);
            _mm512_storeu_si512(slots + i, entry);
        }
        slots += frequency;
    }
}

/* Eight coders take their turn. */
WIDE INLINE __m256i unpack_eight(__m256i state, const uint32_t *slots, const uint8_t *contexts,
                                 reading *from, uint8_t *out)
{
    __m256i slot = _mm256_and_si256(state, _mm256_set1_epi32(TABLE - 1));
    if (contexts) {
        __m256i of = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)contexts));
        slot = _mm256_or_si256(slot, _mm256_slli_epi32(of, TABLE_BITS));
    }
    __m256i entry = _mm256_i32gather_epi32((const int *)slots, slot, 4);
    __m256i frequency = _mm256_add_epi32(
        _mm256_and_si256(_mm256_srli_epi32(entry, 8), _mm256_set1_epi32(0xFFF)),
        _mm256_set1_epi32(1));
    state = _mm256_add_epi32(
        _mm256_mullo_epi32(frequency, _mm256_srli_epi32(state, TABLE_BITS)),
        _mm256_srli_epi32(entry, 20));
    __m256i symbols = _mm256_and_si256(entry, _mm256_set1_epi32(0xFF));
    __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(symbols),
                                      _mm256_extracti128_si256(symbols, 1));
    _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(narrow, narrow));
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(state, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from->words));
    words = _mm256_permutevar8x32_epi32(words, spread[mask]);
    __m256i filled = _mm256_or_si256(_mm256_slli_epi32(state, 16), words);
    int taken = __builtin_popcount(mask);
    from->words += 2 * taken;
    from->left -= taken;
    return _mm256_blendv_epi8(state, filled, low);
}

WIDE static size_t rounds_wide(const uint32_t *slots, const uint8_t *contexts, size_t count,
                               uint32_t *states, reading *from, uint8_t *out)
{
    __m256i all[LANES / WIDTH];
    reading local = *from;
    for (size_t i = 0; i < LANES / WIDTH; i++)
        all[i] = _mm256_loadu_si256((const __m256i *)(states + WIDTH * i));
    size_t at = 0;
    for (; at + LANES <= count && words_ready(&local); at += LANES)
        for (size_t i = 0; i < LANES / WIDTH; i++)
            all[i] = unpack_eight(all[i], slots, contexts ? contexts + at + WIDTH * i : NULL,
                                  &local, out + at + WIDTH * i);
    for (size_t i = 0; i < LANES / WIDTH; i++)
        _mm256_storeu_si256((__m256i *)(states + WIDTH * i), all[i]);
    *from = local;
    return at;
}

/* What the slots say that sixteen coders are at. */
WIDEST INLINE __m512i entries_of(__m512i state, const uint32_t *slots, const uint8_t *contexts)
{
    const __m512i lowest = _mm512_set1_epi32(TABLE - 1);
    __m512i of = _mm512_setzero_si512();
    if (contexts)
        of = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)contexts));
    of = _mm512_slli_epi32(of, TABLE_BITS);
    __m512i slot = _mm512_ternarylogic_epi32(state, of, lowest, 0xEC); /* of | (state & lowest) */
    return _mm512_i32gather_epi32(slot, slots, 4);
}

/* The next states, before they are filled with words. */
WIDEST INLINE __m512i next_states(__m512i state, __m512i entry)
{
    __m512i rest = _mm512_srli_epi32(state, TABLE_BITS);
    __m512i less = _mm512_and_si512(_mm512_srli_epi32(entry, 8), _mm512_set1_epi32(0xFFF));
    __m512i start = _mm512_add_epi32(_mm512_srli_epi32(entry, 20), rest);
    return _mm512_add_epi32(_mm512_mullo_epi32(less, rest), start);
}

/* Sixteen coders take their turn, on machines that have 512 bits. */
WIDEST INLINE __m512i unpack_sixteen(__m512i state, const uint32_t *slots, const uint8_t *contexts,
                                     reading *from, uint8_t *out)
{
    __m512i entry = entries_of(state, slots, contexts);
    _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8(entry));
    state = next_states(state, entry);
    __mmask16 low = _mm512_cmplt_epu32_mask(state, _mm512_set1_epi32(LOWEST));
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from->words));
    words = _mm512_maskz_expand_epi32(low, words);
    int taken = __builtin_popcount(low);
    from->words += 2 * taken;
    from->left -= taken;
    return _mm512_mask_or_epi32(state, low, _mm512_slli_epi32(state, 16), words);
}

WIDEST static size_t rounds_widest(const uint32_t *slots, const uint8_t *contexts, size_t count,
                                   uint32_t *states, reading *from, uint8_t *out)
{
    __m512i one = _mm512_loadu_si512(states), other = _mm512_loadu_si512(states + 16);
    reading local = *from;
    size_t at = 0;
    for (; at + LANES <= count && words_ready(&local); at += LANES) {
        const uint8_t *of = contexts ? contexts + at : NULL;
        one = unpack_sixteen(one, slots, of, &local, out + at);
        other = unpack_sixteen(other, slots, of ? of + 16 : NULL, &local, out + at + 16);
    }
    _mm512_storeu_si512(states, one);
    _mm512_storeu_si512(states + 16, other);
    *from = local;
    return at;
}

static void choose_unpacking(void)
{
    if (!is_wide())
        return;
    fill_spread();
    best_fill = is_widest() ? fill_widest : fill_wide;
    best_rounds = is_widest() ? rounds_widest : rounds_wide;
}

#endif
