/* Tokens of distances, the bits that they leave, and frames of numbers decoded from both.
 *
 * For delta_tokens.c alone. A frame is decoded in blocks that stay in cache: contexts, tokens, the
 * bits that they leave, numbers. INLINE loops are compiled for several instruction sets. The layout
 * is in docs/spec/model.md, section "Delta".
 *
 * Planes are hostile, see rans.h. Whatever their tokens say, STRIDE of them use fewer bits than are
 * made sure to be there; whether they used just those that there are is asked at the end.
 */
#ifndef TENSORREPO_DELTA_TOKENS_H
#define TENSORREPO_DELTA_TOKENS_H

#include "encoding.h"
#include "numbers.h"
#include "rans.h"
#include "row_steps.h"

/* ------------------------------------------------------------------ contexts */

enum { MOST_STEPS = 16 };

/* Where groups begin. Groups of neighbours are few: to count how many begin at or before a context
 * takes many contexts at once, to look each one up does not. */
typedef struct {
    const uint8_t *map;
    uint8_t begin[MOST_STEPS];
    size_t steps; /* more than MOST_STEPS: look up */
    bool same;    /* each context is its own group */
} grouping;

static grouping grouping_of(const uint8_t *map)
{
    grouping found = {.map = map, .same = map[0] == 0};
    for (unsigned i = 1; i < CONTEXTS; i++) {
        found.same &= map[i] == i;
        if (map[i] == map[i - 1])
            continue;
        if (found.steps < MOST_STEPS && map[i] == map[i - 1] + 1)
            found.begin[found.steps++] = (uint8_t)i;
        else
            found.steps = MOST_STEPS + 1;
    }
    return found;
}

INLINE void grouped(uint8_t *restrict contexts, size_t count, const grouping *by)
{
    uint8_t groups[BLOCK];
    if (by->same)
        return;
    if (by->steps > MOST_STEPS) {
        for (size_t i = 0; i < count; i++)
            contexts[i] = by->map[contexts[i]];
        return;
    }
    memset(groups, by->map[0], sizeof groups);
    for (size_t step = 0; step < by->steps; step++) {
        uint8_t begin = by->begin[step];
        for (size_t i = 0; i < count; i++)
            groups[i] = (uint8_t)(groups[i] + (contexts[i] >= begin));
    }
    memcpy(contexts, groups, count);
}

INLINE void contexts_body(const uint8_t *base, size_t count, kind kind, const grouping *by,
                          uint8_t *out)
{
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK;
        contexts_block(base + at * (size_t)kind.size, part, kind, out + at);
        grouped(out + at, part, by);
    }
}

EVERY_MACHINE(void, contexts,
              (const uint8_t *base, size_t count, kind kind, const grouping *by, uint8_t *out),
              BY_SIZE(kind.size, contexts_body(base, count, kind, by, out)));

/* Groups of contexts, where these are. */
INLINE void regroup_body(uint8_t *contexts, size_t count, const grouping *by)
{
    for (size_t at = 0; at < count; at += BLOCK)
        grouped(contexts + at, count - at < BLOCK ? count - at : BLOCK, by);
}

EVERY_MACHINE(void, regroup, (uint8_t *contexts, size_t count, const grouping *by),
              regroup_body(contexts, count, by););

/* ------------------------------------------------------------------ tokens */

enum {
    SLACK = 16,  /* bytes: bits are written in words */
    DIRECT = 16, /* distances below are tokens of their own */
};

/* Small distances are their own token; larger ones give their length and the two bits below their
 * first, and the bits that are left. */
INLINE unsigned token_of(uint64_t distance)
{
    unsigned top = 63u - (unsigned)__builtin_clzll(distance | DIRECT);
    unsigned far = 4 * top + (unsigned)(distance >> (top - 2)) - 4;
    return distance < DIRECT ? (unsigned)distance : far;
}

/* The same without a branch or a count of zeros, so that compilers take many at once: the length is
 * the exponent of the float, with the bit below the first cleared so that nothing is rounded up. */
INLINE void short_tokens(const U32 *restrict distances, size_t count, uint8_t *restrict tokens)
{
    for (size_t i = 0; i < count; i++) {
        U32 distance = distances[i], half = (distance | DIRECT) >> 1;
        union {
            float number;
            U32 bits;
        } rounded = {(float)(I32)(half & ~(half >> 1))};
        U32 top = (rounded.bits >> 23) - 126;
        U32 far = 4 * top + (distance >> (top - 2)) - 4;
        U32 direct = 0 - (U32)(distance / DIRECT == 0);
        tokens[i] = (uint8_t)((distance & direct) | (far & ~direct));
    }
}

INLINE unsigned bits_of(unsigned token)
{
    return token < DIRECT ? 0 : 2 + (token - DIRECT) / 4;
}

INLINE uint64_t least_of(unsigned token)
{
    return token < DIRECT ? token : (uint64_t)(4 | (token & 3)) << bits_of(token);
}

static unsigned last_token(int size)
{
    return (unsigned)(DIRECT + 4 * (8 * size - 5) + 3);
}

/* ------------------------------------------------------------------ written */

typedef struct {
    uint8_t *out;
    size_t used;
    uint64_t waiting;
    unsigned held; /* bits of `waiting`, below 8 between numbers */
} writing;

/* At most 56 bits. */
INLINE void write_bits(writing *to, uint64_t value, unsigned bits)
{
    to->waiting |= value << to->held;
    to->held += bits;
    store64(to->out + to->used, to->waiting);
    to->used += to->held >> 3;
    to->waiting >>= to->held & ~7u;
    to->held &= 7;
}

/* Up to 64 bits; those above 32 by themselves. */
INLINE void write_many(writing *to, uint64_t value, unsigned bits)
{
    if (bits <= 32) {
        write_bits(to, value, bits);
        return;
    }
    write_bits(to, value & 0xFFFFFFFFu, 32);
    write_bits(to, value >> 32, bits - 32);
}

/* The bits that tokens leave of each number, and how many. */
INLINE void short_bits(U32 *restrict moved, const uint8_t *restrict tokens, size_t count,
                       uint8_t *restrict lengths)
{
    for (size_t i = 0; i < count; i++) {
        unsigned bits = bits_of(tokens[i]);
        moved[i] &= ((U32)1 << bits) - 1;
        lengths[i] = (uint8_t)bits;
    }
}

/* One block of numbers of at most 4 bytes; whether there was room. */
INLINE bool write_short(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                        size_t count, kind kind, writing *to, size_t room)
{
    U32 moved[BLOCK];
    uint8_t lengths[BLOCK];
    writing local = *to; /* what is written might be the fields themselves, for all compilers know */
    short_moved(frame, base, count, kind, moved);
    short_bits(moved, tokens, count, lengths);
    size_t i = 0;
    for (; i + 2 <= count; i += 2) { /* two at once: each waits for the one before */
        unsigned bits = (unsigned)lengths[i] + lengths[i + 1];
        uint64_t value = moved[i] | (uint64_t)moved[i + 1] << lengths[i];
        if (__builtin_expect(room - local.used < SLACK, 0))
            return false;
        if (__builtin_expect(bits > 56, 0))
            write_many(&local, value, bits);
        else
            write_bits(&local, value, bits);
    }
    if (room - local.used < SLACK)
        return false;
    if (i < count)
        write_bits(&local, moved[i], lengths[i]);
    *to = local;
    return true;
}

/* One block of numbers of 8 bytes; whether there was room. */
INLINE bool write_long(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                       size_t count, kind kind, writing *to, size_t room)
{
    U64 moved[BLOCK];
    moved64(frame, base, count, kind.magnitude, moved);
    for (size_t i = 0; i < count; i++) {
        unsigned bits = bits_of(tokens[i]);
        if (room - to->used < SLACK)
            return false;
        write_many(to, moved[i] & (((uint64_t)1 << bits) - 1), bits);
    }
    return true;
}

/* The bytes of all that was written, or -1 where they and SLACK do not fit. */
INLINE Py_ssize_t bits_finished(writing *to, size_t room)
{
    if (room - to->used < SLACK)
        return -1;
    if (to->held)
        to->out[to->used++] = (uint8_t)to->waiting;
    return room - to->used < SLACK ? -1 : (Py_ssize_t)to->used;
}

/* The bits of all distances, the first in the lowest bits of the first byte. Returns the bytes, or
 * -1 where they and SLACK do not fit. */
INLINE Py_ssize_t pack_bits_body(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                                 size_t count, kind kind, uint8_t *out, size_t room)
{
    writing to = {.out = out};
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK, start = at * (size_t)kind.size;
        bool fits = kind.size == 8 ? write_long(frame + start, base + start, tokens + at, part,
                                                kind, &to, room)
                                   : write_short(frame + start, base + start, tokens + at, part,
                                                 kind, &to, room);
        if (!fits)
            return -1;
    }
    return bits_finished(&to, room);
}

/* ------------------------------------------------------------------ bits, read */

enum {
    STRIDE = 32,       /* numbers between two looks at how many bytes are left */
    AHEAD = 560,       /* bytes that MOST_LANES numbers read at most: 61 bits each, and a vector more */
    BEFORE = 4,        /* bytes before the next bits that may be read: those of tables, at least */
    TAIL = 3 * AHEAD,  /* bytes of the last bits, and zeros */
    MOST_GROUPS = 16,
    HEAD = 4,          /* bytes of the number that a plane begins with */
};

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

/* Whether STRIDE more numbers may be read, or MOST_LANES. */
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
    BY_SIZE(kind.size, fine = apply_body(tokens, from, base, count, kind, out))
    return fine;
}

static applier *best_apply = apply_portable;

/* ------------------------------------------------------------------ rows */

/* Rows of a frame of which some are decoded: of the first one `skipped` numbers lie before the frame,
 * and the last may be cut. `row` and `at` say which number of the frame comes next. */
typedef struct {
    const uint8_t *which; /* a byte for each row */
    uint8_t wanted;       /* the rows that have this byte */
    size_t columns, skipped, count;
    size_t row, at;
    classing step; /* before they are compared, numbers of the base move as `table` says; or NULL */
    const uint16_t *table;
} row_walk;

INLINE size_t row_end(const row_walk *rows)
{
    size_t end = (rows->row + 1) * rows->columns - rows->skipped;
    return end < rows->count ? end : rows->count;
}

/* The numbers of all wanted rows. */
static size_t wanted_numbers(row_walk rows)
{
    size_t found = 0;
    for (; rows.at < rows.count; rows.row++) {
        size_t end = row_end(&rows);
        if (rows.which[rows.row] == rows.wanted)
            found += end - rows.at;
        rows.at = end;
    }
    return found;
}

/* The next numbers of wanted rows that lie side by side, at most `most`: the first one's place in the
 * frame. */
INLINE size_t next_run(row_walk *rows, size_t most, size_t *count)
{
    while (rows->which[rows->row] != rows->wanted)
        rows->at = row_end(rows), rows->row++;
    size_t start = rows->at;
    while (rows->at < rows->count && rows->which[rows->row] == rows->wanted) {
        size_t end = row_end(rows), left = start + most - rows->at;
        if (end - rows->at > left) {
            rows->at += left;
            break;
        }
        rows->at = end;
        rows->row++;
    }
    *count = rows->at - start;
    return start;
}

/* What the base foretells of the next `count` numbers of wanted rows. */
static void take_foretold(row_walk *rows, size_t size, size_t count, const uint8_t *base, uint8_t *out)
{
    for (size_t part; count; count -= part, out += part * size) {
        const uint8_t *from = base + next_run(rows, count, &part) * size;
        if (rows->table)
            best_step(from, part, rows->step, rows->table, out);
        else
            memcpy(out, from, part * size);
    }
}

static void put_rows(row_walk *rows, size_t size, size_t count, const uint8_t *from, uint8_t *frame)
{
    for (size_t part; count; count -= part, from += part * size) {
        size_t place = next_run(rows, count, &part) * size;
        memcpy(frame + place, from, part * size);
    }
}

/* ------------------------------------------------------------------ frames */

typedef struct {
    const uint8_t *base;
    uint8_t *out;
    size_t count;
    kind kind;
    row_walk *rows; /* NULL: all numbers of the frame; else `count` are in them */
    grouping groups;
    bool is_long;                /* MOST_LANES took turns over the tokens */
    bool certain;                /* there are no coded tokens: each group has one only */
    uint8_t only[MOST_GROUPS];
    uint32_t zeros[MOST_GROUPS]; /* of TABLE: how frequent token 0 is in each group */
    bool skips;                  /* most tokens of the last block of rows were 0 */
    decoder tokens;
    bit_reading bits;
    uint8_t tail[TAIL];
} frame;

/* Whole rounds from the beginning, all steps at once, as far as words and bits last; how many
 * numbers that were. False: there is a token that is not possible. */
typedef bool passer(frame *it, size_t *passed);

static passer *best_pass; /* NULL where there is none */

/* Whole rounds from the beginning whose tokens are all 0 and ask for no words; how many numbers. */
typedef size_t skipper(frame *it, const uint8_t *contexts, size_t count);

static skipper *best_skip; /* NULL where there is none */

static bool tokens_of_block(frame *it, const uint8_t *contexts, size_t count, uint8_t *tokens)
{
    if (!it->certain)
        return next_symbols(&it->tokens, contexts, count, tokens);
    for (size_t i = 0; i < count; i++)
        tokens[i] = it->only[contexts[i]];
    return true;
}

static unsigned highest_of(const uint8_t *tokens, size_t count)
{
    uint8_t highest = 0;
    for (size_t i = 0; i < count; i++)
        highest = tokens[i] > highest ? tokens[i] : highest;
    return highest;
}

static bool decode_block(frame *it, const uint8_t *base, size_t count, uint8_t *out)
{
    uint8_t contexts[BLOCK], tokens[BLOCK];
    best_contexts(base, count, it->kind, &it->groups, contexts);
    if (!tokens_of_block(it, contexts, count, tokens))
        return false;
    unsigned highest = highest_of(tokens, count);
    if (!highest) {
        memcpy(out, base, count * (size_t)it->kind.size);
        return true;
    }
    return highest <= last_token(it->kind.size) &&
           best_apply(tokens, &it->bits, base, count, it->kind, out);
}

/* What numbers become that the base foretold. */
static bool decode_foretold(frame *it, const uint8_t *contexts, size_t count, uint8_t *numbers)
{
    _Alignas(64) uint8_t tokens[BLOCK], found[8 * BLOCK];
    if (!tokens_of_block(it, contexts, count, tokens))
        return false;
    unsigned highest = highest_of(tokens, count);
    if (!highest)
        return true;
    if (highest > last_token(it->kind.size) ||
        !best_apply(tokens, &it->bits, numbers, count, it->kind, found))
        return false;
    memcpy(numbers, found, count * (size_t)it->kind.size);
    return true;
}

/* Where most rows moved as was foretold, only some rounds of a block have a token but 0: those are
 * skipped, and the next block begins so again if that was worth it. */
static bool decode_block_of_rows(frame *it, size_t count, uint8_t *numbers)
{
    enum { MOST_LOOKS = 8 };
    uint8_t contexts[BLOCK];
    size_t at = 0, skipped = 0, size = (size_t)it->kind.size, lanes = it->tokens.lanes;
    best_contexts(numbers, count, it->kind, &it->groups, contexts);
    if (best_skip && !it->certain && it->tokens.lanes != FEW) {
        unsigned looks = it->skips ? MOST_LOOKS : 1;
        while (looks-- && at < count) {
            size_t zeros = best_skip(it, contexts + at, count - at);
            skipped += zeros;
            at += zeros;
            size_t part = count - at < lanes ? count - at : lanes;
            if (!decode_foretold(it, contexts + at, part, numbers + at * size))
                return false;
            at += part;
        }
        it->skips = skipped >= MOST_LOOKS * LANES / 2;
    }
    return decode_foretold(it, contexts + at, count - at, numbers + at * size);
}

/* Numbers of a block come together in the first cache, and go from there where they belong. */
static bool decode_rows(frame *it)
{
    _Alignas(64) uint8_t numbers[8 * BLOCK];
    row_walk to = *it->rows;
    size_t size = (size_t)it->kind.size;
    for (size_t at = 0; at < it->count; at += BLOCK) {
        size_t part = it->count - at < BLOCK ? it->count - at : BLOCK;
        take_foretold(it->rows, size, part, it->base, numbers);
        if (!decode_block_of_rows(it, part, numbers))
            return false;
        put_rows(&to, size, part, numbers, it->out);
    }
    return true;
}

static bool decode_all(frame *it)
{
    size_t at = 0;
    if (best_pass && !it->certain && it->tokens.lanes != FEW && !best_pass(it, &at))
        return false;
    for (; at < it->count; at += BLOCK) {
        size_t part = it->count - at < BLOCK ? it->count - at : BLOCK;
        size_t start = at * (size_t)it->kind.size;
        if (!decode_block(it, it->base + start, part, it->out + start))
            return false;
    }
    return true;
}

static bool decode_blocks(frame *it)
{
    return (it->rows ? decode_rows(it) : decode_all(it)) &&
           (it->certain || symbols_ended(&it->tokens)) && bits_ended(&it->bits);
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
    it->skips = true;
    it->bits = (bit_reading){plane + begin + coded, 0, left - coded, left - coded, it->tail};
    if (!it->certain) {
        uint32_t *slots = zeros(SLOTS, (MOST_GROUPS * TABLE + SLOT_SLACK) * sizeof *slots);
        if (!slots)
            return false;
        for (size_t row = 0; row < rows; row++) {
            best_fill(frequencies + row * SYMBOLS, slots + row * TABLE);
            it->zeros[row] = frequencies[row * SYMBOLS];
        }
        size_t lanes = it->is_long ? MOST_LANES : it->count < MANY ? FEW : LANES;
        if (!begin_symbols(&it->tokens, plane + begin, coded, left, slots, lanes))
            return false;
    }
    return decode_blocks(it);
}

#endif
