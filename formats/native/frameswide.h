/* Frames of numbers from a plane of distances, many numbers at once, on x86-64.
 *
 * For distances.c alone. They read and write what frames.h does, bit for bit. The bits of 8 numbers
 * of at most 4 bytes lie in one vector of 32 bytes, those of 16 in one of 64: what a number needs is
 * in two neighbouring words of it.
 */
#ifndef TENSORREPO_FRAMESWIDE_H
#define TENSORREPO_FRAMESWIDE_H

#include "frames.h"
#include "ranswide.h"

/* The distances that eight tokens begin and the next bits end. */
WIDE INLINE __m256i zigzag_eight(const uint8_t *tokens, bit_reading *from)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i token = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)tokens));
    __m256i far = _mm256_cmpgt_epi32(token, _mm256_set1_epi32(DIRECT - 1));
    __m256i bits = _mm256_srli_epi32(_mm256_sub_epi32(token, _mm256_set1_epi32(8)), 2);
    bits = _mm256_and_si256(bits, far);
    __m256i begins = _mm256_or_si256(_mm256_and_si256(token, _mm256_set1_epi32(3)),
                                     _mm256_set1_epi32(4));
    __m256i least = _mm256_blendv_epi8(token, _mm256_sllv_epi32(begins, bits), far);

    /* Eight lengths in eight bytes: their product with ones are their sums. */
    __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    uint64_t lengths = (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(narrow, narrow));
    uint64_t ends = lengths * 0x0101010101010101u;
    __m256i at = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)(ends << 8)));
    at = _mm256_add_epi32(at, _mm256_set1_epi32((int)(from->at % 8)));
    __m256i window = _mm256_loadu_si256((const __m256i *)(from->bits + from->at / 8));
    from->at += ends >> 56;

    __m256i place = _mm256_srli_epi32(at, 5), shift = _mm256_and_si256(at, _mm256_set1_epi32(31));
    __m256i low = _mm256_permutevar8x32_epi32(window, place);
    __m256i high = _mm256_permutevar8x32_epi32(window, _mm256_add_epi32(place, one));
    high = _mm256_sllv_epi32(high, _mm256_sub_epi32(_mm256_set1_epi32(32), shift));
    __m256i raw = _mm256_or_si256(_mm256_srlv_epi32(low, shift), high);
    __m256i mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, bits), one);
    return _mm256_or_si256(least, _mm256_and_si256(raw, mask));
}

/* The same for numbers of at most 4 bytes, `count` of them; fewer than eight as frames.h does. */
WIDE INLINE bool short_zigzag_wide(const uint8_t *tokens, size_t count, bit_reading *from,
                                   U32 *zigzag)
{
    uint8_t padded[STRIDE] = {0}; /* tokens of no bits */
    bit_reading local = *from;
    size_t at = 0;
    for (; at + STRIDE <= count; at += STRIDE) {
        if (!bits_ready(&local))
            return false;
        for (size_t i = 0; i < STRIDE; i += 8)
            _mm256_storeu_si256((__m256i *)(zigzag + at + i), zigzag_eight(tokens + at + i, &local));
    }
    if (at < count) {
        if (!bits_ready(&local))
            return false;
        memcpy(padded, tokens + at, count - at);
        for (size_t i = 0; i < STRIDE; i += 8)
            _mm256_storeu_si256((__m256i *)(zigzag + at + i), zigzag_eight(padded + i, &local));
    }
    *from = local;
    return true;
}

WIDE INLINE bool apply_wide_body(const uint8_t *tokens, bit_reading *from, const uint8_t *base,
                                 size_t count, kind kind, uint8_t *out)
{
    U32 zigzag[BLOCK];
    if (kind.size == 8)
        return apply_body(tokens, from, base, count, kind, out);
    if (!short_zigzag_wide(tokens, count, from, zigzag))
        return false;
    short_restored(zigzag, base, count, kind, out);
    return true;
}

WIDE static bool apply_wide(const uint8_t *tokens, bit_reading *from, const uint8_t *base,
                            size_t count, kind kind, uint8_t *out)
{
    bool fine;
    BY_WIDTH(fine = apply_wide_body(tokens, from, base, count, kind, out))
    return fine;
}

/* ------------------------------------------------------------------ all in one pass
 *
 * What a round of coders finds is turned to numbers at once, while the next round waits for its
 * slots: each half of this takes about as long as both. */

/* Sums of each number and all before it. */
NEWEST INLINE __m512i sums(__m512i of)
{
    const __m512i zero = _mm512_setzero_si512();
    of = _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 15));
    of = _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 14));
    of = _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 12));
    return _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 8));
}

NEWEST INLINE __m512i zigzag_sixteen(__m512i token, bit_reading *from)
{
    __mmask16 far = _mm512_cmpgt_epu32_mask(token, _mm512_set1_epi32(DIRECT - 1));
    __m512i bits = _mm512_sub_epi32(token, _mm512_set1_epi32(8));
    bits = _mm512_maskz_srli_epi32(far, bits, 2);
    __m512i ends = sums(bits);
    __m512i at = _mm512_sub_epi32(ends, bits);
    at = _mm512_add_epi32(at, _mm512_set1_epi32((int)(from->at % 8)));
    __m512i window = _mm512_loadu_si512(from->bits + from->at / 8);
    from->at += (uint32_t)_mm_extract_epi32(_mm512_extracti32x4_epi32(ends, 3), 3);

    __m512i place = _mm512_srli_epi32(at, 5);
    __m512i low = _mm512_permutexvar_epi32(place, window);
    __m512i high =
        _mm512_permutexvar_epi32(_mm512_add_epi32(place, _mm512_set1_epi32(1)), window);
    __m512i raw = _mm512_shrdv_epi32(low, high, at);
    __m512i begins = _mm512_or_si512(_mm512_and_si512(token, _mm512_set1_epi32(3)),
                                     _mm512_set1_epi32(4));
    __m512i least = _mm512_mask_sllv_epi32(token, far, begins, bits);
    __m512i above = _mm512_sllv_epi32(_mm512_set1_epi32(-1), bits);
    return _mm512_ternarylogic_epi32(least, raw, above, 0xF4); /* least | (raw & ~above) */
}

/* Numbers of at most 4 bytes, in the highest bits of 4: what carries goes out there alike. */
NEWEST INLINE __m512i base_sixteen(const uint8_t *base, int size)
{
    switch (size) {
    case 1:
        return _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)base)), 24);
    case 2:
        return _mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)base)), 16);
    default:
        return _mm512_loadu_si512(base);
    }
}

NEWEST INLINE void store_sixteen(__m512i number, uint8_t *out, int size)
{
    switch (size) {
    case 1:
        _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8(_mm512_srli_epi32(number, 24)));
        return;
    case 2:
        _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(number, 16)));
        return;
    default:
        _mm512_storeu_si512(out, number);
    }
}

NEWEST INLINE void restore_sixteen(__m512i zigzag, const uint8_t *base, kind kind, uint8_t *out)
{
    const __m512i top = _mm512_set1_epi32(INT32_MIN), zero = _mm512_setzero_si512();
    __m512i from = base_sixteen(base, kind.size);
    __m512i down = _mm512_sub_epi32(zero, _mm512_and_si512(zigzag, _mm512_set1_epi32(1)));
    __m512i distance = _mm512_xor_si512(_mm512_srli_epi32(zigzag, 1), down);
    distance = _mm512_slli_epi32(distance, (unsigned)(32 - 8 * kind.size));
    if (kind.magnitude) {
        __m512i away = _mm512_srai_epi32(from, 31);
        from = _mm512_ternarylogic_epi32(from, away, top, 0x1E); /* from ^ (away | top) */
        distance = _mm512_sub_epi32(_mm512_xor_si512(distance, away), away);
    }
    __m512i number = _mm512_add_epi32(from, distance);
    if (kind.magnitude) {
        __m512i sign = _mm512_srai_epi32(number, 31);
        number = _mm512_ternarylogic_epi32(number, sign, top, 0x4B); /* number ^ (~sign | top) */
    }
    store_sixteen(number, out, kind.size);
}

/* Contexts of a block: all 256 groups are in four vectors. */
NEWEST INLINE void group_block(const uint8_t *base, size_t count, kind kind, const uint8_t *map,
                               uint8_t *out)
{
    const __m512i *quarters = (const __m512i *)map;
    __m512i one = _mm512_loadu_si512(quarters), two = _mm512_loadu_si512(quarters + 1);
    __m512i three = _mm512_loadu_si512(quarters + 2), four = _mm512_loadu_si512(quarters + 3);
    contexts_block(base, count, kind, out);
    for (size_t at = 0; at < count; at += 64) {
        __m512i context = _mm512_loadu_si512(out + at);
        __m512i below = _mm512_permutex2var_epi8(one, context, two);
        __m512i above = _mm512_permutex2var_epi8(three, context, four);
        __mmask64 upper = _mm512_movepi8_mask(context);
        _mm512_storeu_si512(out + at, _mm512_mask_blend_epi8(upper, below, above));
    }
}

/* Both halves of a round: the words that both ask for are one run. */
NEWEST INLINE void refill(__m512i *one, __m512i *other, reading *from)
{
    const __m512i lowest = _mm512_set1_epi32(LOWEST);
    __mmask16 low = _mm512_cmplt_epu32_mask(*one, lowest);
    __mmask16 high = _mm512_cmplt_epu32_mask(*other, lowest);
    __mmask32 both = _mm512_kunpackw(high, low);
    __m512i words = _mm512_loadu_si512(from->words);
    words = _mm512_maskz_expand_epi16(both, words);
    int taken = __builtin_popcount(both);
    from->words += 2 * taken;
    from->left -= taken;
    __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
    __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
    *one = _mm512_mask_or_epi32(*one, low, _mm512_slli_epi32(*one, 16), first);
    *other = _mm512_mask_or_epi32(*other, high, _mm512_slli_epi32(*other, 16), second);
}

NEWEST INLINE bool pass_body(frame *it, kind kind, size_t *passed)
{
    const __m512i token_bits = _mm512_set1_epi32(SYMBOLS - 1);
    uint8_t contexts[BLOCK + 64];
    const uint32_t *slots = it->tokens.slots;
    const size_t half = LANES / 2, step = half * (size_t)kind.size;
    reading from = it->tokens.from;
    bit_reading bits = it->bits;
    __m512i one = _mm512_loadu_si512(it->tokens.states);
    __m512i other = _mm512_loadu_si512(it->tokens.states + half), highest = token_bits;
    highest = _mm512_setzero_si512();
    size_t at = 0, grouped = 0;
    for (; at + LANES <= it->count && words_ready(&from) && bits_ready(&bits); at += LANES) {
        const uint8_t *base = it->base + at * (size_t)kind.size;
        uint8_t *out = it->out + at * (size_t)kind.size;
        const uint8_t *group = contexts + at % BLOCK;
        if (at == grouped) {
            size_t part = it->count - at < BLOCK ? it->count - at : BLOCK;
            group_block(base, part, kind, it->groups.map, contexts);
            grouped += part;
        }
        __m512i entry = entries_of(one, slots, group);
        __m512i entry_other = entries_of(other, slots, group + half);
        one = next_states(one, entry);
        other = next_states(other, entry_other);
        refill(&one, &other, &from);
        __m512i token = _mm512_and_si512(entry, token_bits);
        __m512i token_other = _mm512_and_si512(entry_other, token_bits);
        highest = _mm512_max_epu32(highest, _mm512_max_epu32(token, token_other));
        restore_sixteen(zigzag_sixteen(token, &bits), base, kind, out);
        restore_sixteen(zigzag_sixteen(token_other, &bits), base + step, kind, out + step);
    }
    _mm512_storeu_si512(it->tokens.states, one);
    _mm512_storeu_si512(it->tokens.states + half, other);
    it->tokens.from = from;
    it->bits = bits;
    *passed = at;
    return _mm512_reduce_max_epu32(highest) <= last_token(kind.size);
}

NEWEST static bool pass_newest(frame *it, size_t *passed)
{
    kind kind = it->kind;
    bool fine = true;
    *passed = 0;
    if (kind.size < 8)
        BY_WIDTH(fine = pass_body(it, kind, passed))
    return fine;
}

#endif
