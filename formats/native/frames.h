/* Which numbers does a plane of distances hold?
 *
 * For distances.c alone, which says which of the paths is best. A frame is decoded in blocks that
 * stay in cache: contexts, tokens, the bits that they leave, numbers. The layout is in
 * docs/spec/model.md, section "Delta".
 *
 * Planes are hostile, see rans.h. Whatever their tokens say, STRIDE of them use fewer bits than are
 * made sure to be there; whether they used just those that there are is asked at the end.
 */
#ifndef TENSORREPO_FRAMES_H
#define TENSORREPO_FRAMES_H

#include "contexts.h"
#include "rans.h"
#include "tokens.h"

enum {
    STRIDE = 32,       /* numbers between two looks at how many bytes are left */
    AHEAD = 320,       /* bytes that STRIDE numbers read at most: 61 bits each, and a vector more */
    BEFORE = 4,        /* bytes before the next bits that may be read: those of tables, at least */
    TAIL = 3 * AHEAD,  /* bytes of the last bits, and zeros */
    MOST_GROUPS = 16,
    MANY = 4096,       /* numbers: from here on LANES coders take turns */
    HEAD = 4,          /* bytes of the number that a plane begins with */
};

/* ------------------------------------------------------------------ bits */

typedef struct {
    const uint8_t *bits;
    size_t at;    /* bit */
    size_t size;  /* bytes of bits */
    size_t room;  /* bytes that may be read */
    uint8_t *tail; /* TAIL bytes */
} bit_reading;

/* The last bits again where zeros follow; no room if these were read already. By value as words. */
__attribute__((noinline)) static bit_reading moved_bits(bit_reading from)
{
    size_t skipped = from.at / 8;
    uint8_t *tail = from.tail + BEFORE;
    if (from.bits == tail || from.at > 8 * from.size)
        return (bit_reading){from.bits, from.at, from.size, 0, from.tail};
    memset(from.tail, 0, TAIL);
    memcpy(tail, from.bits + skipped, from.size - skipped);
    return (bit_reading){tail, from.at % 8, from.size - skipped, TAIL - BEFORE, from.tail};
}

/* Whether STRIDE more numbers may be read. */
INLINE bool bits_ready(bit_reading *from)
{
    if (__builtin_expect(from->at / 8 + AHEAD <= from->room, 1))
        return true;
    *from = moved_bits(*from);
    return from->room;
}

static bool bits_ended(const bit_reading *from)
{
    if ((from->at + 7) / 8 != from->size)
        return false;
    return from->at % 8 == 0 || from->bits[from->size - 1] >> from->at % 8 == 0;
}

/* What tokens say of numbers of at most 4 bytes: the least there is, and how many bits follow. */
INLINE void short_least(const uint8_t *restrict tokens, size_t count, U32 *restrict least,
                        uint8_t *restrict lengths)
{
    for (size_t i = 0; i < count; i++) {
        U32 token = tokens[i], bits = bits_of(tokens[i]);
        lengths[i] = (uint8_t)bits;
        least[i] = token < DIRECT ? token : (4 | (token & 3)) << bits;
    }
}

INLINE bool short_zigzag(const uint8_t *restrict tokens, size_t count, bit_reading *from,
                         U32 *restrict zigzag)
{
    U32 raw[BLOCK];
    uint8_t lengths[BLOCK];
    short_least(tokens, count, zigzag, lengths);
    for (size_t begin = 0; begin < count; begin += STRIDE) {
        size_t end = count - begin < STRIDE ? count : begin + STRIDE;
        if (!bits_ready(from))
            return false;
        size_t at = from->at;
        for (size_t i = begin; i < end; i++) {
            raw[i] = (U32)(load64(from->bits + at / 8) >> at % 8);
            at += lengths[i];
        }
        from->at = at;
    }
    for (size_t i = 0; i < count; i++)
        zigzag[i] |= raw[i] & (((U32)1 << lengths[i]) - 1);
    return true;
}

INLINE bool long_zigzag(const uint8_t *tokens, size_t count, bit_reading *from, U64 *zigzag)
{
    for (size_t i = 0; i < count; i++) {
        if (i % STRIDE == 0 && !bits_ready(from))
            return false;
        unsigned length = bits_of(tokens[i]), shift = from->at % 8;
        const uint8_t *window = from->bits + from->at / 8;
        uint64_t raw = load64(window) >> shift;
        if (shift) /* more than 57 bits may be asked for */
            raw |= (uint64_t)window[8] << (64 - shift);
        zigzag[i] = least_of(tokens[i]) | (raw & (((uint64_t)1 << length) - 1));
        from->at += length;
    }
    return true;
}

/* One block of numbers from possible tokens; whether there were as many bits. */
typedef bool applier(const uint8_t *tokens, bit_reading *from, const uint8_t *base, size_t count,
                     kind kind, uint8_t *out);

INLINE bool apply_body(const uint8_t *tokens, bit_reading *from, const uint8_t *base, size_t count,
                       kind kind, uint8_t *out)
{
    union {
        U32 shorter[BLOCK];
        U64 longer[BLOCK];
    } zigzag;
    if (kind.size == 8) {
        if (!long_zigzag(tokens, count, from, zigzag.longer))
            return false;
        restored64(zigzag.longer, base, count, kind.magnitude, out);
        return true;
    }
    if (!short_zigzag(tokens, count, from, zigzag.shorter))
        return false;
    short_restored(zigzag.shorter, base, count, kind, out);
    return true;
}

static bool apply_portable(const uint8_t *tokens, bit_reading *from, const uint8_t *base,
                           size_t count, kind kind, uint8_t *out)
{
    bool fine;
    BY_WIDTH(fine = apply_body(tokens, from, base, count, kind, out))
    return fine;
}

static applier *best_apply = apply_portable;

/* ------------------------------------------------------------------ frames */

typedef struct {
    const uint8_t *base;
    uint8_t *out;
    size_t count;
    kind kind;
    grouping groups;
    bool certain;                /* there are no coded tokens: each group has one only */
    uint8_t only[MOST_GROUPS];
    decoder tokens;
    bit_reading bits;
    uint8_t tail[TAIL];
} frame;

/* Whole rounds from the beginning, all steps at once, as far as words and bits last; how many
 * numbers that were. False: there is a token that is not possible. */
typedef bool passer(frame *it, size_t *passed);

static passer *best_pass; /* NULL where there is none */

static bool tokens_of_block(frame *it, const uint8_t *contexts, size_t count, uint8_t *tokens)
{
    if (!it->certain)
        return next_symbols(&it->tokens, contexts, count, tokens);
    for (size_t i = 0; i < count; i++)
        tokens[i] = it->only[contexts[i]];
    return true;
}

static bool possible(const uint8_t *tokens, size_t count, kind kind)
{
    uint8_t highest = 0;
    for (size_t i = 0; i < count; i++)
        highest = tokens[i] > highest ? tokens[i] : highest;
    return highest <= last_token(kind.size);
}

static bool decode_blocks(frame *it)
{
    uint8_t contexts[BLOCK], tokens[BLOCK];
    size_t at = 0;
    if (best_pass && !it->certain && it->tokens.lanes == LANES && !best_pass(it, &at))
        return false;
    for (; at < it->count; at += BLOCK) {
        size_t part = it->count - at < BLOCK ? it->count - at : BLOCK;
        size_t start = at * (size_t)it->kind.size;
        best_contexts(it->base + start, part, it->kind, &it->groups, contexts);
        if (!tokens_of_block(it, contexts, part, tokens) || !possible(tokens, part, it->kind) ||
            !best_apply(tokens, &it->bits, it->base + start, part, it->kind, it->out + start))
            return false;
    }
    return (it->certain || symbols_ended(&it->tokens)) && bits_ended(&it->bits);
}

/* Tables of one symbol each; which one. */
static bool are_certain(const uint16_t *frequencies, size_t rows, uint8_t *only)
{
    for (size_t row = 0; row < rows; row++) {
        const uint16_t *of = frequencies + row * SYMBOLS;
        unsigned symbol = 0;
        while (symbol < SYMBOLS - 1 && !of[symbol])
            symbol++;
        if (of[symbol] != TABLE)
            return false;
        only[row] = (uint8_t)symbol;
    }
    return true;
}

/* Kept from frame to frame: memory of that size, got anew, would be cleared each time. */
static _Thread_local uint32_t slots_of_thread[MOST_GROUPS * TABLE + SLOT_SLACK];

/* bytes of the coded tokens | tables | coded tokens | bits */
static bool decode_plane(frame *it, const uint8_t *plane, size_t size)
{
    uint8_t map[CONTEXTS];
    uint16_t frequencies[MOST_GROUPS * SYMBOLS];
    if (size < HEAD + 1 || plane[HEAD] >= MOST_GROUPS)
        return false;
    size_t rows = (size_t)plane[HEAD] + 1, coded = load32(plane);
    Py_ssize_t used = read_tables(plane + HEAD, size - HEAD, map, frequencies, rows);
    if (used < 0 || coded > size - HEAD - (size_t)used)
        return false;
    size_t begin = HEAD + (size_t)used, left = size - begin;
    it->groups = grouping_of(map);
    it->certain = !coded && are_certain(frequencies, rows, it->only);
    it->bits = (bit_reading){plane + begin + coded, 0, left - coded, left - coded, it->tail};
    if (!it->certain) {
        for (size_t row = 0; row < rows; row++)
            best_fill(frequencies + row * SYMBOLS, slots_of_thread + row * TABLE);
        if (!begin_symbols(&it->tokens, plane + begin, coded, left, slots_of_thread,
                           it->count >= MANY ? LANES : FEW))
            return false;
    }
    return decode_blocks(it);
}

#endif
