/* Rows that a base foretold, many numbers at once, on x86-64.
 *
 * For delta_tokens.c alone. They read and write what delta_tokens.h does, bit for bit.
 */
#ifndef TENSORREPO_DELTA_ROWS_WIDE_H
#define TENSORREPO_DELTA_ROWS_WIDE_H

#include "delta_tokens_wide.h"

/* ------------------------------------------------------------------ tokens that are 0
 *
 * Token 0 is the first in its table: a slot below its frequency is one of its own, and no table is
 * looked up. */

/* How frequent token 0 is for each of sixteen coders. */
WIDEST INLINE __m512i zeros_of(const uint8_t *contexts, __m512i zeros)
{
    __m512i of = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)contexts));
    return _mm512_permutexvar_epi32(of, zeros);
}

WIDEST INLINE size_t skip_by_sixteen(frame *it, const uint8_t *contexts, size_t count,
                                     const size_t lanes)
{
    const __m512i slots = _mm512_set1_epi32(TABLE - 1), lowest = _mm512_set1_epi32(LOWEST);
    const __m512i zeros = _mm512_loadu_si512(it->zeros);
    __m512i states[MOST_LANES / 16], next[MOST_LANES / 16];
    for (size_t i = 0; i < lanes / 16; i++)
        states[i] = _mm512_loadu_si512(it->tokens.states + 16 * i);
    size_t at = 0;
    for (; at + lanes <= count; at += lanes) {
        __mmask16 fine = 0xFFFF;
#pragma GCC unroll 4
        for (size_t i = 0; i < lanes / 16; i++) {
            __m512i of = zeros_of(contexts + at + 16 * i, zeros);
            __m512i slot = _mm512_and_si512(states[i], slots);
            next[i] = _mm512_mullo_epi32(of, _mm512_srli_epi32(states[i], TABLE_BITS));
            next[i] = _mm512_add_epi32(next[i], slot);
            fine = _mm512_mask_cmplt_epu32_mask(fine, slot, of);
            fine = _mm512_mask_cmpge_epu32_mask(fine, next[i], lowest);
        }
        if (fine != 0xFFFF)
            break;
        for (size_t i = 0; i < lanes / 16; i++)
            states[i] = next[i];
    }
    for (size_t i = 0; i < lanes / 16; i++)
        _mm512_storeu_si512(it->tokens.states + 16 * i, states[i]);
    return at;
}

WIDEST static size_t skip_widest(frame *it, const uint8_t *contexts, size_t count)
{
    if (it->tokens.lanes == MOST_LANES)
        return skip_by_sixteen(it, contexts, count, MOST_LANES);
    return skip_by_sixteen(it, contexts, count, LANES);
}

/* As `zeros_of`, for eight: `zeros` are of eight groups each. */
WIDE INLINE __m256i zeros_of_eight(const uint8_t *contexts, const __m256i zeros[2])
{
    __m256i of = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)contexts));
    __m256 one = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(zeros[0], of));
    __m256 other = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(zeros[1], of));
    __m256 which = _mm256_castsi256_ps(_mm256_slli_epi32(of, 28)); /* the top bit: 8 and above */
    return _mm256_castps_si256(_mm256_blendv_ps(one, other, which));
}

WIDE INLINE size_t skip_by_eight(frame *it, const uint8_t *contexts, size_t count,
                                 const size_t lanes)
{
    const __m256i slots = _mm256_set1_epi32(TABLE - 1), none = _mm256_setzero_si256();
    const __m256i zeros[2] = {_mm256_loadu_si256((const __m256i *)it->zeros),
                              _mm256_loadu_si256((const __m256i *)it->zeros + 1)};
    __m256i states[MOST_LANES / WIDTH], next[MOST_LANES / WIDTH];
    for (size_t i = 0; i < lanes / WIDTH; i++)
        states[i] = _mm256_loadu_si256((const __m256i *)it->tokens.states + i);
    size_t at = 0;
    for (; at + lanes <= count; at += lanes) {
        __m256i wrong = none;
        for (size_t i = 0; i < lanes / WIDTH; i++) {
            __m256i of = zeros_of_eight(contexts + at + WIDTH * i, zeros);
            __m256i slot = _mm256_and_si256(states[i], slots);
            next[i] = _mm256_mullo_epi32(of, _mm256_srli_epi32(states[i], TABLE_BITS));
            next[i] = _mm256_add_epi32(next[i], slot);
            __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(next[i], 16), none);
            __m256i other = _mm256_cmpgt_epi32(of, slot);
            /* low, or not a slot of token 0 */
            wrong = _mm256_or_si256(wrong, _mm256_or_si256(low, _mm256_cmpeq_epi32(other, none)));
        }
        if (!_mm256_testz_si256(wrong, wrong))
            break;
        for (size_t i = 0; i < lanes / WIDTH; i++)
            states[i] = next[i];
    }
    for (size_t i = 0; i < lanes / WIDTH; i++)
        _mm256_storeu_si256((__m256i *)it->tokens.states + i, states[i]);
    return at;
}

WIDE static size_t skip_wide(frame *it, const uint8_t *contexts, size_t count)
{
    if (it->tokens.lanes == MOST_LANES)
        return skip_by_eight(it, contexts, count, MOST_LANES);
    return skip_by_eight(it, contexts, count, LANES);
}

/* ------------------------------------------------------------------ tokens, bits, contexts */

/* Of numbers of 4 bytes; most tokens of shorter ones leave no bits, and apply_wide looks whether any do. */
NEWEST static bool apply_newest(const uint8_t *tokens, bit_reading *from, const uint8_t *base,
                                size_t count, kind kind, uint8_t *out)
{
    if (kind.size != 4)
        return apply_wide(tokens, from, base, count, kind, out);
    enum { HALF = LANES / 2, STEP = 4 * HALF };
    kind.size = 4;
    const constants is = all_kept();
    bit_reading local = *from;
    __m512i highest = _mm512_setzero_si512();
    size_t at = 0;
    for (; at + LANES <= count; at += LANES, base += 2 * STEP, out += 2 * STEP) {
        if (!bits_ready(&local))
            return false;
        halves some = {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(tokens + at))),
                       _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(tokens + at + HALF)))};
        halves zigzag = zigzag_round(some, &local, &highest, &is);
        restore_sixteen(zigzag.one, base, kind, out, &is);
        restore_sixteen(zigzag.other, base + STEP, kind, out + STEP, &is);
    }
    *from = local;
    return apply_wide(tokens + at, from, base, count - at, kind, out);
}

NEWEST INLINE void grouped_contexts(const uint8_t *base, size_t count, kind kind,
                                        const grouping *by, uint8_t *out)
{
    _Alignas(64) uint8_t last[BLOCK];
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK;
        const uint8_t *from = base + at * (size_t)kind.size;
        if (by->same) {
            contexts_block(from, part, kind, out + at);
        } else if (part == BLOCK) {
            group_block(from, part, kind, by->map, out + at);
        } else {
            group_block(from, part, kind, by->map, last);
            memcpy(out + at, last, part);
        }
    }
}

NEWEST static void contexts_by_permutation(const uint8_t *base, size_t count, kind kind, const grouping *by,
                                   uint8_t *out)
{
    BY_SIZE(kind.size, grouped_contexts(base, count, kind, by, out))
}

#endif
