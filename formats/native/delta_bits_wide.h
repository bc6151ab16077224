/* The bits that tokens leave, written for many numbers at once, on x86-64.
 *
 * For delta_tokens.c alone. What numbers of at most 4 bytes leave is joined side by side, by two, four
 * and eight, as long as 64 bits hold it; so few steps wait for the one before. The bits are those of
 * pack_bits in delta_tokens.h, but whole words are written.
 */
#ifndef TENSORREPO_DELTA_BITS_WIDE_H
#define TENSORREPO_DELTA_BITS_WIDE_H

#include "delta_tokens.h"

enum {
    WORD = 64,
    SIXTEEN = 16,
    SIXTEEN_ROOM = 144, /* bytes: two words for each two numbers, whatever their tokens say, and one */
    FEW_FAR = BLOCK / 16,
};

/* At most 64 bits, with zeros above; fewer than 64 are held. */
INLINE void write_word(writing *to, uint64_t value, unsigned bits)
{
    uint64_t low = to->waiting | value << to->held, high = value >> 1 >> (WORD - 1 - to->held);
    unsigned held = to->held + bits;
    uint64_t full = held / WORD; /* no branch: nobody foresees which way it goes */
    store64(to->out + to->used, low);
    to->used += full * sizeof low;
    to->waiting = low ^ ((low ^ high) & -full);
    to->held = held % WORD;
}

INLINE void write_number(writing *to, U32 moved, unsigned token)
{
    unsigned bits = bits_of(token);
    write_word(to, moved & (((uint64_t)1 << bits) - 1), bits);
}

/* The bytes of all that was written, or -1, as bits_finished says. */
INLINE Py_ssize_t words_finished(writing *to, size_t room)
{
    if (room - to->used < SLACK)
        return -1;
    store64(to->out + to->used, to->waiting);
    to->used += to->held / 8;
    to->waiting >>= to->held & ~7u;
    to->held %= 8;
    return bits_finished(to, room);
}

/* ------------------------------------------------------------------ eight at once */

/* What is left of four numbers side by side, of which each token says how many bits: twice. Where
 * these are more than 64, bits are lost. */
typedef struct {
    uint64_t values[2];
    uint64_t bits[2];
} fours;

WIDE INLINE fours fours_of(const U32 *moved, const uint8_t *tokens)
{
    const __m256i low = _mm256_set1_epi64x(UINT32_MAX), one = _mm256_set1_epi32(1);
    __m256i token = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)tokens));
    __m256i far = _mm256_cmpgt_epi32(token, _mm256_set1_epi32(DIRECT - 1));
    __m256i bits = _mm256_srli_epi32(_mm256_sub_epi32(token, _mm256_set1_epi32(8)), 2);
    bits = _mm256_and_si256(bits, far);
    __m256i value = _mm256_loadu_si256((const __m256i *)moved);
    value = _mm256_and_si256(value, _mm256_sub_epi32(_mm256_sllv_epi32(one, bits), one));

    __m256i begin = _mm256_and_si256(bits, low); /* of two: where the second begins */
    __m256i two = _mm256_sllv_epi64(_mm256_srli_epi64(value, 32), begin);
    two = _mm256_or_si256(two, _mm256_and_si256(value, low));
    __m256i used = _mm256_add_epi64(begin, _mm256_srli_epi64(bits, 32));
    __m256i four = _mm256_sllv_epi64(_mm256_bsrli_epi128(two, 8), used);
    four = _mm256_or_si256(four, two);
    used = _mm256_add_epi64(used, _mm256_bsrli_epi128(used, 8));
    return (fours){
        {(uint64_t)_mm256_extract_epi64(four, 0), (uint64_t)_mm256_extract_epi64(four, 2)},
        {(uint64_t)_mm256_extract_epi64(used, 0), (uint64_t)_mm256_extract_epi64(used, 2)},
    };
}

/* Two numbers, and those behind them. */
WIDE INLINE void write_two(const U32 *moved, const uint8_t *tokens, writing *to)
{
    unsigned one = bits_of(tokens[0]), other = bits_of(tokens[1]);
    uint64_t value = moved[0] & (((uint64_t)1 << one) - 1);
    value |= (moved[1] & (((uint64_t)1 << other) - 1)) << one;
    write_word(to, value, one + other);
}

WIDE INLINE void write_eight(const U32 *moved, const uint8_t *tokens, writing *to)
{
    fours all = fours_of(moved, tokens);
    uint64_t bits = all.bits[0] + all.bits[1];
    if (bits < WORD) { /* what is shifted by 64 is not gone */
        write_word(to, all.values[0] | all.values[1] << all.bits[0], (unsigned)bits);
        return;
    }
    for (size_t j = 0; j < 2; j++) {
        if (__builtin_expect(all.bits[j] <= WORD, 1)) {
            write_word(to, all.values[j], (unsigned)all.bits[j]);
            continue;
        }
        write_two(moved + 4 * j, tokens + 4 * j, to);
        write_two(moved + 4 * j + 2, tokens + 4 * j + 2, to);
    }
}

/* One block; whether there was room. */
WIDE INLINE bool write_block_wide(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                                  size_t count, kind kind, writing *to, size_t room)
{
    enum { EIGHT = 8, EIGHT_ROOM = 80 }; /* as SIXTEEN_ROOM */
    U32 moved[BLOCK];
    size_t i = 0;
    short_moved(frame, base, count, kind, moved);
    for (; i + EIGHT <= count && room - to->used >= EIGHT_ROOM; i += EIGHT)
        write_eight(moved + i, tokens + i, to);
    for (; i < count; i++) {
        if (room - to->used < SLACK)
            return false;
        write_number(to, moved[i], tokens[i]);
    }
    return true;
}

WIDE INLINE Py_ssize_t pack_short_wide(const uint8_t *frame, const uint8_t *base,
                                       const uint8_t *tokens, size_t count, kind kind,
                                       uint8_t *out, size_t room)
{
    writing to = {.out = out};
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK, start = at * (size_t)kind.size;
        if (!write_block_wide(frame + start, base + start, tokens + at, part, kind, &to, room))
            return -1;
    }
    return words_finished(&to, room);
}

WIDE static Py_ssize_t pack_bits_eight(const uint8_t *frame, const uint8_t *base,
                                       const uint8_t *tokens, size_t count, kind kind,
                                       uint8_t *out, size_t room)
{
    switch (kind.size) {
    case 1: kind.size = 1; return pack_short_wide(frame, base, tokens, count, kind, out, room);
    case 2: kind.size = 2; return pack_short_wide(frame, base, tokens, count, kind, out, room);
    case 4: kind.size = 4; return pack_short_wide(frame, base, tokens, count, kind, out, room);
    default: return pack_bits_wide(frame, base, tokens, count, kind, out, room);
    }
}

/* ------------------------------------------------------------------ sixteen at once */

/* Each number's bits, beside those of the one that follows it; then of two, and of four. */
NEWEST INLINE void write_sixteen(const U32 *moved, const uint8_t *tokens, writing *to)
{
    const __m512i low = _mm512_set1_epi64(UINT32_MAX);
    __m512i token = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)tokens));
    __mmask16 far = _mm512_cmpgt_epi32_mask(token, _mm512_set1_epi32(DIRECT - 1));
    __m512i bits = _mm512_maskz_srli_epi32(far, _mm512_sub_epi32(token, _mm512_set1_epi32(8)), 2);
    __m512i above = _mm512_sllv_epi32(_mm512_set1_epi32(-1), bits);
    __m512i one = _mm512_andnot_si512(above, _mm512_loadu_si512(moved));

    __m512i begin = _mm512_and_si512(bits, low);
    __m512i two = _mm512_sllv_epi64(_mm512_srli_epi64(one, 32), begin);
    two = _mm512_or_si512(two, _mm512_and_si512(one, low));
    __m512i of_two = _mm512_add_epi64(begin, _mm512_srli_epi64(bits, 32));
    __m512i four = _mm512_or_si512(two, _mm512_sllv_epi64(_mm512_bsrli_epi128(two, 8), of_two));
    __m512i of_four = _mm512_add_epi64(of_two, _mm512_bsrli_epi128(of_two, 8));
    __m512i next = _mm512_permutex_epi64(four, 0x02), of_next = _mm512_permutex_epi64(of_four, 0x02);
    __m512i eight = _mm512_or_si512(four, _mm512_sllv_epi64(next, of_four));
    __m512i of_eight = _mm512_add_epi64(of_four, of_next);

    uint64_t values[8], lengths[8];
    const __m512i most = _mm512_set1_epi64(WORD);
    if (!_mm512_mask_cmpgt_epi64_mask(0x11, of_eight, most)) {
        _mm512_storeu_si512(values, eight);
        _mm512_storeu_si512(lengths, of_eight);
        write_word(to, values[0], (unsigned)lengths[0]);
        write_word(to, values[4], (unsigned)lengths[4]);
    } else if (!_mm512_mask_cmpgt_epi64_mask(0x55, of_four, most)) {
        _mm512_storeu_si512(values, four);
        _mm512_storeu_si512(lengths, of_four);
        for (size_t i = 0; i < 8; i += 2)
            write_word(to, values[i], (unsigned)lengths[i]);
    } else {
        _mm512_storeu_si512(values, two);
        _mm512_storeu_si512(lengths, of_two);
        for (size_t i = 0; i < 8; i++)
            write_word(to, values[i], (unsigned)lengths[i]);
    }
}

/* Of 64 tokens which leave bits. */
NEWEST INLINE uint64_t far_of(const uint8_t *tokens)
{
    return _mm512_cmpgt_epu8_mask(_mm512_loadu_si512(tokens), _mm512_set1_epi8(DIRECT - 1));
}

/* A whole block of which few numbers leave bits, as most of 2 bytes do. */
NEWEST INLINE void write_few(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                             kind kind, writing *to)
{
    for (size_t at = 0; at < BLOCK; at += WORD)
        for (uint64_t far = far_of(tokens + at); far; far &= far - 1) {
            size_t i = at + (size_t)__builtin_ctzll(far), place = i * (size_t)kind.size;
            U32 moved;
            short_moved(frame + place, base + place, 1, kind, &moved);
            write_number(to, moved, tokens[i]);
        }
}

NEWEST INLINE size_t count_far(const uint8_t *tokens)
{
    size_t found = 0;
    for (size_t at = 0; at < BLOCK; at += WORD)
        found += (size_t)__builtin_popcountll(far_of(tokens + at));
    return found;
}

/* One block; whether there was room. */
NEWEST INLINE bool write_block(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                               size_t count, kind kind, writing *to, size_t room)
{
    U32 moved[BLOCK];
    size_t i = 0, far = count == BLOCK ? count_far(tokens) : BLOCK;
    if (far <= FEW_FAR && room - to->used >= far * sizeof to->waiting + SLACK) {
        write_few(frame, base, tokens, kind, to);
        return true;
    }
    short_moved(frame, base, count, kind, moved);
    for (; i + SIXTEEN <= count && room - to->used >= SIXTEEN_ROOM; i += SIXTEEN)
        write_sixteen(moved + i, tokens + i, to);
    for (; i < count; i++) {
        if (room - to->used < SLACK)
            return false;
        write_number(to, moved[i], tokens[i]);
    }
    return true;
}

NEWEST INLINE Py_ssize_t pack_short(const uint8_t *frame, const uint8_t *base,
                                    const uint8_t *tokens, size_t count, kind kind, uint8_t *out,
                                    size_t room)
{
    writing to = {.out = out};
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK, start = at * (size_t)kind.size;
        if (!write_block(frame + start, base + start, tokens + at, part, kind, &to, room))
            return -1;
    }
    return words_finished(&to, room);
}

NEWEST static Py_ssize_t pack_bits_sixteen(const uint8_t *frame, const uint8_t *base,
                                           const uint8_t *tokens, size_t count, kind kind,
                                           uint8_t *out, size_t room)
{
    switch (kind.size) {
    case 1: kind.size = 1; return pack_short(frame, base, tokens, count, kind, out, room);
    case 2: kind.size = 2; return pack_short(frame, base, tokens, count, kind, out, room);
    case 4: kind.size = 4; return pack_short(frame, base, tokens, count, kind, out, room);
    default: return pack_bits_newest(frame, base, tokens, count, kind, out, room);
    }
}

#endif
