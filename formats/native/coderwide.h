/* Symbols into many states at once, on x86-64.
 *
 * For coder.c alone, which chooses among them when the module is loaded. They write what the
 * portable loop does, bit for bit.
 */
#ifndef TENSORREPO_CODERWIDE_H
#define TENSORREPO_CODERWIDE_H

#include "ranswide.h"

static __m256i pushed[256]; /* for each mask of lanes: those lanes, at the end */

static void fill_pushed(void)
{
    for (unsigned mask = 0; mask < 256; mask++) {
        uint32_t lanes[WIDTH] = {0};
        unsigned next = WIDTH - (unsigned)__builtin_popcount(mask);
        for (unsigned lane = 0; lane < WIDTH; lane++)
            if (mask >> lane & 1)
                lanes[next++] = lane;
        memcpy(&pushed[mask], lanes, sizeof lanes);
    }
}

/* ------------------------------------------------------------------ packing
 *
 * A state that is divided is below frequency * 2^20, and the quotient below 2^20. So a quotient of
 * floats is off by one at most, and what is left over says in which direction. */

/* Sixteen coders take a symbol each. */
WIDEST INLINE __m512i pack_sixteen(__m512i state, const uint8_t *symbols, const uint8_t *contexts,
                                   const uint32_t *brief, downward *to)
{
    const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i one = _mm512_set1_epi32(1), zero = _mm512_setzero_si512();
    __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)symbols));
    if (contexts) {
        __m512i of = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)contexts));
        at = _mm512_or_si512(at, _mm512_slli_epi32(of, 8));
    }
    __m512i entry = _mm512_i32gather_epi32(at, brief, 4);
    __m512i last = _mm512_and_si512(entry, _mm512_set1_epi32(TABLE - 1));
    __m512i frequency = _mm512_add_epi32(last, one);
    __mmask16 full = _mm512_cmpgt_epu32_mask(_mm512_srli_epi32(state, 20), last);
    int count = __builtin_popcount(full);
    __m512i words = _mm512_permutexvar_epi32(_mm512_add_epi32(places, _mm512_set1_epi32(count)),
                                             _mm512_maskz_compress_epi32(full, state));
    _mm256_storeu_si256((__m256i *)(to->at - 32), _mm512_cvtepi32_epi16(words));
    to->at -= 2 * count;
    state = _mm512_mask_srli_epi32(state, full, state, 16);
    __m512i quotient = _mm512_cvttps_epi32(
        _mm512_div_ps(_mm512_cvtepu32_ps(state), _mm512_cvtepi32_ps(frequency)));
    __m512i left = _mm512_sub_epi32(state, _mm512_mullo_epi32(quotient, frequency));
    __mmask16 below = _mm512_cmplt_epi32_mask(left, zero);
    __mmask16 above = _mm512_cmpgt_epi32_mask(left, last);
    quotient = _mm512_mask_sub_epi32(quotient, below, quotient, one);
    left = _mm512_mask_add_epi32(left, below, left, frequency);
    quotient = _mm512_mask_add_epi32(quotient, above, quotient, one);
    left = _mm512_mask_sub_epi32(left, above, left, frequency);
    return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(quotient, TABLE_BITS), left),
                            _mm512_srli_epi32(entry, TABLE_BITS));
}

WIDEST static size_t pack_rounds_widest(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                                        const coding *by, uint32_t *states, downward *to)
{
    __m512i one = _mm512_loadu_si512(states), other = _mm512_loadu_si512(states + 16);
    downward local = *to;
    for (; end && local.at >= local.floor; end -= LANES) {
        size_t at = end - LANES;
        const uint8_t *of = contexts ? contexts + at : NULL;
        other = pack_sixteen(other, symbols + at + 16, of ? of + 16 : NULL, by->brief, &local);
        one = pack_sixteen(one, symbols + at, of, by->brief, &local);
    }
    _mm512_storeu_si512(states, one);
    _mm512_storeu_si512(states + 16, other);
    *to = local;
    return end;
}

/* Eight coders take a symbol each. */
WIDE INLINE __m256i pack_eight(__m256i state, const uint8_t *symbols, const uint8_t *contexts,
                               const uint32_t *brief, downward *to)
{
    __m256i at = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)symbols));
    if (contexts) {
        __m256i of = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)contexts));
        at = _mm256_or_si256(at, _mm256_slli_epi32(of, 8));
    }
    __m256i entry = _mm256_i32gather_epi32((const int *)brief, at, 4);
    __m256i last = _mm256_and_si256(entry, _mm256_set1_epi32(TABLE - 1));
    __m256i frequency = _mm256_add_epi32(last, _mm256_set1_epi32(1));
    __m256i full = _mm256_cmpgt_epi32(_mm256_srli_epi32(state, 20), last);
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(full));
    __m256i words = _mm256_permutevar8x32_epi32(state, pushed[mask]);
    words = _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF));
    __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(words),
                                      _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(to->at - 16), narrow);
    to->at -= 2 * __builtin_popcount(mask);
    state = _mm256_blendv_epi8(state, _mm256_srli_epi32(state, 16), full);
    /* Half of both: a state may have its highest bit set, which would be a sign. */
    __m256 half = _mm256_cvtepi32_ps(_mm256_srli_epi32(state, 1));
    __m256 halved = _mm256_mul_ps(_mm256_cvtepi32_ps(frequency), _mm256_set1_ps(0.5f));
    __m256i quotient = _mm256_cvttps_epi32(_mm256_div_ps(half, halved));
    __m256i left = _mm256_sub_epi32(state, _mm256_mullo_epi32(quotient, frequency));
    __m256i below = _mm256_srai_epi32(left, 31), above = _mm256_cmpgt_epi32(left, last);
    quotient = _mm256_sub_epi32(_mm256_add_epi32(quotient, below), above);
    left = _mm256_add_epi32(left, _mm256_and_si256(frequency, below));
    left = _mm256_sub_epi32(left, _mm256_and_si256(frequency, above));
    return _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(quotient, TABLE_BITS), left),
                            _mm256_srli_epi32(entry, TABLE_BITS));
}

WIDE static size_t pack_rounds_wide(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                                    const coding *by, uint32_t *states, downward *to)
{
    __m256i all[LANES / WIDTH];
    downward local = *to;
    for (size_t i = 0; i < LANES / WIDTH; i++)
        all[i] = _mm256_loadu_si256((const __m256i *)(states + WIDTH * i));
    for (; end && local.at >= local.floor; end -= LANES)
        for (size_t i = LANES / WIDTH; i-- > 0;) {
            size_t at = end - LANES + WIDTH * i;
            all[i] = pack_eight(all[i], symbols + at, contexts ? contexts + at : NULL, by->brief,
                                &local);
        }
    for (size_t i = 0; i < LANES / WIDTH; i++)
        _mm256_storeu_si256((__m256i *)(states + WIDTH * i), all[i]);
    *to = local;
    return end;
}

#endif
