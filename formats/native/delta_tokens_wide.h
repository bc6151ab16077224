/* Frames of numbers from a plane of distances, many numbers at once, on x86-64.
 *
 * For delta_tokens.c alone. They read and write what delta_tokens.h does, bit for bit. The bits of 8 numbers
 * of at most 4 bytes lie in one vector of 32 bytes, those of 16 in one of 64: what each needs is in
 * two neighbouring words of that.
 */
#ifndef TENSORREPO_DELTA_TOKENS_WIDE_H
#define TENSORREPO_DELTA_TOKENS_WIDE_H

#include "delta_tokens.h"

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
    __m128i upper = _mm256_extracti128_si256(bits, 1);
    __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(bits), upper);
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

WIDE INLINE void zigzag_stride(const uint8_t *tokens, bit_reading *from, U32 *zigzag)
{
    for (size_t i = 0; i < STRIDE; i += 8)
        _mm256_storeu_si256((__m256i *)(zigzag + i), zigzag_eight(tokens + i, from));
}

/* Those of a block, filled up to whole strides. */
WIDE INLINE bool short_zigzag_wide(const uint8_t *tokens, size_t count, bit_reading *from,
                                   U32 zigzag[BLOCK])
{
    uint8_t last[STRIDE] = {0}; /* tokens of no bits */
    bit_reading local = *from;
    for (size_t at = 0; at < count; at += STRIDE) {
        if (!bits_ready(&local))
            return false;
        if (count - at < STRIDE)
            memcpy(last, tokens + at, count - at);
        zigzag_stride(count - at < STRIDE ? last : tokens + at, &local, zigzag + at);
    }
    *from = local;
    return true;
}

/* The distances of sixteen numbers of 2 bytes. Most tokens of those are distances, and leave no bits. */
WIDE INLINE __m256i zigzag_sixteen_shorts(const uint8_t *tokens, bit_reading *from)
{
    __m128i token = _mm_loadu_si128((const __m128i *)tokens);
    __m128i above = _mm_subs_epu8(token, _mm_set1_epi8(DIRECT - 1));
    if (_mm_testz_si128(above, above))
        return _mm256_cvtepu8_epi16(token);
    __m256i one = zigzag_eight(tokens, from), other = zigzag_eight(tokens + 8, from);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(one, other), 0xD8); /* packs go by halves */
}

/* As restored16 does. */
WIDE INLINE __m256i restored_shorts(__m256i zigzag, __m256i from, bool magnitude)
{
    __m256i odd = _mm256_and_si256(zigzag, _mm256_set1_epi16(1));
    __m256i down = _mm256_sub_epi16(_mm256_setzero_si256(), odd);
    __m256i distance = _mm256_xor_si256(_mm256_srli_epi16(zigzag, 1), down);
    __m256i number = _mm256_add_epi16(from, distance);
    if (!magnitude)
        return number;
    __m256i crossed = _mm256_srai_epi16(_mm256_xor_si256(number, from), 15);
    return _mm256_xor_si256(number, _mm256_srli_epi16(crossed, 1));
}

WIDE INLINE void apply_stride_of_shorts(const uint8_t *tokens, bit_reading *from,
                                        const uint8_t *base, bool magnitude, uint8_t *out)
{
    for (size_t i = 0; i < STRIDE; i += 16) {
        __m256i zigzag = zigzag_sixteen_shorts(tokens + i, from);
        __m256i under = _mm256_loadu_si256((const __m256i *)(base + 2 * i));
        _mm256_storeu_si256((__m256i *)(out + 2 * i), restored_shorts(zigzag, under, magnitude));
    }
}

WIDE INLINE bool apply_shorts(const uint8_t *tokens, bit_reading *from, const uint8_t *base,
                              size_t count, bool magnitude, uint8_t *out)
{
    uint8_t last[STRIDE] = {0}, under[2 * STRIDE] = {0}, found[2 * STRIDE];
    bit_reading local = *from;
    size_t at = 0, left = count % STRIDE;
    for (; at < count - left; at += STRIDE) {
        if (!bits_ready(&local))
            return false;
        apply_stride_of_shorts(tokens + at, &local, base + 2 * at, magnitude, out + 2 * at);
    }
    if (left) {
        if (!bits_ready(&local))
            return false;
        memcpy(last, tokens + at, left);
        memcpy(under, base + 2 * at, 2 * left);
        apply_stride_of_shorts(last, &local, under, magnitude, found);
        memcpy(out + 2 * at, found, 2 * left);
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
    if (kind.size == 2)
        return apply_shorts(tokens, from, base, count, kind.magnitude, out);
    if (!short_zigzag_wide(tokens, count, from, zigzag))
        return false;
    short_restored(zigzag, base, count, kind, out);
    return true;
}

WIDE static bool apply_wide(const uint8_t *tokens, bit_reading *from, const uint8_t *base,
                            size_t count, kind kind, uint8_t *out)
{
    bool fine;
    BY_SIZE(kind.size, fine = apply_wide_body(tokens, from, base, count, kind, out))
    return fine;
}

/* ------------------------------------------------------------------ all in one pass
 *
 * What a round of coders finds is turned to numbers at once, while the next round waits for its
 * slots: each half of this takes about as long as both. What is known of both halves of a round is
 * in one vector: of the second one in the upper 16 bits of each 32. */

/* A constant that stays in its register: compilers that see one make it again in each round. */
NEWEST INLINE __m512i kept(int each)
{
    __m512i value = _mm512_set1_epi32(each);
    __asm__("" : "+v"(value));
    return value;
}

typedef struct {
    __m512i one, three, four, direct, slot, lowest, half, bytes, directs, eights, most;
} constants;

NEWEST INLINE constants all_kept(void)
{
    return (constants){
        kept(1), kept(3), kept(4), kept(DIRECT - 1), kept(TABLE - 1), kept(LOWEST), kept(0xFFFF),
        kept(0xFF00FF), kept((DIRECT - 1) * 0x10001), kept(8 * 0x10001), kept(INT32_MAX),
    };
}

typedef struct {
    __m512i one, other;
} halves;

/* Sums of each number and all before it, of both halves. */
NEWEST INLINE __m512i sums(__m512i of)
{
    const __m512i zero = _mm512_setzero_si512();
    of = _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 15));
    of = _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 14));
    of = _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 12));
    return _mm512_add_epi32(of, _mm512_alignr_epi32(of, zero, 8));
}

/* The distances of one half. `at` has the 32 bits before the half's first byte, then its bits;
 * `ends` says where in those each number ends. What is above the lowest bits is of the other half,
 * and no instruction here looks at it. */
NEWEST INLINE __m512i zigzag_sixteen(__m512i entry, __m512i bits, __m512i ends, const uint8_t *at,
                                     const constants *is)
{
    __m512i window = _mm512_loadu_si512(at), place = _mm512_srli_epi32(ends, 5);
    __m512i low = _mm512_permutexvar_epi32(place, window);
    __m512i high = _mm512_permutexvar_epi32(_mm512_add_epi32(place, is->one), window);
    __m512i last = _mm512_shrdv_epi32(low, high, ends); /* the 32 bits before the end */
    __mmask16 far = _mm512_test_epi32_mask(bits, is->half);
    __m512i begin = _mm512_and_si512(entry, is->direct);
    /* Far tokens: (token & 3) | 4. */
    begin = _mm512_mask_ternarylogic_epi32(begin, far, is->three, is->four, 0xEA);
    return _mm512_shldv_epi32(begin, last, bits);
}

/* The distances of a round, of which the slots' entries say the tokens; the highest one so far. */
NEWEST INLINE halves zigzag_round(halves entry, bit_reading *from, __m512i *highest,
                                  const constants *is)
{
    __m512i moved = _mm512_slli_epi32(entry.other, 16);
    /* Where half has bits those of one, else those moved. */
    __m512i tokens = _mm512_ternarylogic_epi32(entry.one, moved, is->half, 0xE4);
    tokens = _mm512_and_si512(tokens, is->bytes);
    *highest = _mm512_max_epu16(*highest, tokens);
    __mmask32 far = _mm512_cmpgt_epu16_mask(tokens, is->directs);
    __m512i bits = _mm512_maskz_srli_epi16(far, _mm512_sub_epi16(tokens, is->eights), 2);
    __m512i ends = sums(bits);
    uint32_t used = (uint32_t)_mm_extract_epi32(_mm512_extracti32x4_epi32(ends, 3), 3);
    size_t at = from->at, middle = at + (used & 0xFFFF);
    const uint8_t *before = from->bits - BEFORE;
    from->at = middle + (used >> 16);
    ends = _mm512_add_epi32(ends, _mm512_set1_epi32((int)(at % 8 | middle % 8 << 16)));
    return (halves){
        zigzag_sixteen(entry.one, bits, ends, before + at / 8, is),
        zigzag_sixteen(entry.other, _mm512_srli_epi32(bits, 16), _mm512_srli_epi32(ends, 16),
                       before + middle / 8, is),
    };
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

/* As restored32 does. */
NEWEST INLINE void restore_sixteen(__m512i zigzag, const uint8_t *base, kind kind, uint8_t *out,
                                   const constants *is)
{
    __m512i from = base_sixteen(base, kind.size);
    __m512i down = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_and_si512(zigzag, is->one));
    __m512i distance = _mm512_xor_si512(_mm512_srli_epi32(zigzag, 1), down);
    if (kind.size < 4)
        distance = _mm512_slli_epi32(distance, (unsigned)(32 - 8 * kind.size));
    __m512i number = _mm512_add_epi32(from, distance);
    if (kind.magnitude) {
        __m512i crossed = _mm512_srai_epi32(_mm512_xor_si512(number, from), 31);
        /* number ^ (crossed & most) */
        number = _mm512_ternarylogic_epi32(number, crossed, is->most, 0x78);
    }
    store_sixteen(number, out, kind.size);
}

/* All 256 groups, in four vectors. */
typedef struct {
    __m512i quarters[4];
} group_table;

NEWEST INLINE group_table group_table_of(const uint8_t *map)
{
    const __m512i *at = (const __m512i *)map;
    return (group_table){{_mm512_loadu_si512(at), _mm512_loadu_si512(at + 1),
                          _mm512_loadu_si512(at + 2), _mm512_loadu_si512(at + 3)}};
}

NEWEST INLINE __m512i groups_of(__m512i contexts, const group_table *of)
{
    __m512i below = _mm512_permutex2var_epi8(of->quarters[0], contexts, of->quarters[1]);
    __m512i above = _mm512_permutex2var_epi8(of->quarters[2], contexts, of->quarters[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(contexts), below, above);
}

/* Contexts of a block, and up to 63 bytes behind them. */
NEWEST INLINE void group_block(const uint8_t *base, size_t count, kind kind, const uint8_t *map,
                               uint8_t *out)
{
    const group_table table = group_table_of(map);
    contexts_block(base, count, kind, out);
    for (size_t at = 0; at < count; at += 64)
        _mm512_storeu_si512(out + at, groups_of(_mm512_loadu_si512(out + at), &table));
}

NEWEST static void regroup_by_shuffles(uint8_t *contexts, size_t count, const grouping *by)
{
    const group_table table = group_table_of(by->map);
    for (size_t at = 0; at < count && !by->same; at += 64) {
        __mmask64 some = count - at < 64 ? ((__mmask64)1 << (count - at)) - 1 : ~(__mmask64)0;
        __m512i context = _mm512_maskz_loadu_epi8(some, contexts + at);
        _mm512_mask_storeu_epi8(contexts + at, some, groups_of(context, &table));
    }
}

/* What the slots say that sixteen coders are at. */
NEWEST INLINE __m512i entry_of(__m512i state, const uint32_t *slots, const uint8_t *contexts,
                               const constants *is)
{
    __m512i of = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)contexts));
    of = _mm512_slli_epi32(of, TABLE_BITS);
    __m512i slot = _mm512_ternarylogic_epi32(state, of, is->slot, 0xEC); /* of | (state & slot) */
    return gathered(slot, slots);
}

/* The next states, before they are filled with words. */
NEWEST INLINE __m512i state_after(__m512i state, __m512i entry, const constants *is)
{
    __m512i rest = _mm512_srli_epi32(state, TABLE_BITS);
    __m512i less = _mm512_and_si512(_mm512_srli_epi32(entry, 8), is->slot);
    __m512i start = _mm512_add_epi32(_mm512_srli_epi32(entry, 20), rest);
    return _mm512_add_epi32(_mm512_mullo_epi32(less, rest), start);
}

/* Both halves of a round: the words that both ask for are one run. */
NEWEST INLINE halves filled(halves states, reading *from, const constants *is)
{
    __mmask16 low = _mm512_cmplt_epu32_mask(states.one, is->lowest);
    __mmask16 high = _mm512_cmplt_epu32_mask(states.other, is->lowest);
    __mmask32 both = _mm512_kunpackw(high, low);
    __m512i words = _mm512_maskz_expand_epi16(both, _mm512_loadu_si512(from->words));
    size_t taken = (size_t)_mm_popcnt_u32(both);
    from->words += 2 * taken;
    from->left -= (ptrdiff_t)taken;
    __m512i one = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
    __m512i other = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
    __m512i up = _mm512_slli_epi32(states.one, 16), other_up = _mm512_slli_epi32(states.other, 16);
    return (halves){_mm512_mask_or_epi32(states.one, low, up, one),
                    _mm512_mask_or_epi32(states.other, high, other_up, other)};
}

NEWEST INLINE bool pass_body(frame *it, kind kind, const size_t lanes, size_t *passed)
{
    enum { HALF = LANES / 2 };
    uint8_t contexts[BLOCK + 64];
    const constants is = all_kept();
    const uint32_t *slots = it->tokens.slots;
    const uint8_t *base = it->base, *map = it->groups.map;
    uint8_t *out = it->out;
    const size_t count = it->count, step = HALF * (size_t)kind.size;
    reading from = it->tokens.from;
    bit_reading bits = it->bits;
    halves states[MOST_LANES / LANES];
    for (size_t i = 0; i < lanes / LANES; i++) {
        const uint32_t *of = it->tokens.states + LANES * i;
        states[i] = (halves){_mm512_loadu_si512(of), _mm512_loadu_si512(of + HALF)};
    }
    __m512i highest = _mm512_setzero_si512(); /* of 16 bits each */
    size_t at = 0;
    for (; at + lanes <= count && words_ready(&from) && bits_ready(&bits); at += lanes) {
        if (at % BLOCK == 0)
            group_block(base, count - at < BLOCK ? count - at : BLOCK, kind, map, contexts);
#pragma GCC unroll 2
        for (size_t i = 0; i < lanes / LANES; i++) {
            const uint8_t *group = contexts + at % BLOCK + LANES * i;
            halves entry = {entry_of(states[i].one, slots, group, &is),
                            entry_of(states[i].other, slots, group + HALF, &is)};
            states[i].one = state_after(states[i].one, entry.one, &is);
            states[i].other = state_after(states[i].other, entry.other, &is);
            states[i] = filled(states[i], &from, &is);
            halves zigzag = zigzag_round(entry, &bits, &highest, &is);
            restore_sixteen(zigzag.one, base, kind, out, &is);
            restore_sixteen(zigzag.other, base + step, kind, out + step, &is);
            base += 2 * step;
            out += 2 * step;
        }
    }
    for (size_t i = 0; i < lanes / LANES; i++) {
        uint32_t *of = it->tokens.states + LANES * i;
        _mm512_storeu_si512(of, states[i].one);
        _mm512_storeu_si512(of + HALF, states[i].other);
    }
    it->tokens.from = from;
    it->bits = bits;
    *passed = at;
    __m512i last = _mm512_set1_epi16((short)last_token(kind.size));
    return !_mm512_cmpgt_epu16_mask(highest, last);
}

NEWEST static bool pass_newest(frame *it, size_t *passed)
{
    kind kind = it->kind;
    bool fine = true;
    *passed = 0;
    if (kind.size < 8 && it->tokens.lanes == MOST_LANES)
        BY_SIZE(kind.size, fine = pass_body(it, kind, MOST_LANES, passed))
    else if (kind.size < 8)
        BY_SIZE(kind.size, fine = pass_body(it, kind, LANES, passed))
    return fine;
}

#endif
