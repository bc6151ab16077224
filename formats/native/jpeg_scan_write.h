/* Writing of JPEG scans: coefficients to bits, with given tables or the best ones. */
#ifndef TENSORREPO_JPEG_SCAN_WRITE_H
#define TENSORREPO_JPEG_SCAN_WRITE_H

#include "jpeg_entropy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ------------------------------------------------------------------ writing bits */

typedef struct {
    uint8_t *data;
    size_t size, room;
    uint64_t bits; /* those that wait, at the bottom */
    int count;
} writer;

/* Room for so many more bytes. */
static inline bool reserve(writer *to, size_t more)
{
    if (to->room - to->size >= more)
        return true;
    size_t room = to->room * 2 + more;
    uint8_t *data = realloc(to->data, room);
    if (!data)
        return false;
    to->data = data;
    to->room = room;
    return true;
}

static inline void put_bytes(writer *to)
{
    while (to->count >= 8) {
        to->count -= 8;
        uint8_t byte = (uint8_t)(to->bits >> to->count);
        to->data[to->size++] = byte;
        if (byte == 0xFF)
            to->data[to->size++] = 0;
    }
}

/* At most 32 bits, for which there is room. */
static inline void put_bits(writer *to, uint32_t bits, int count)
{
    to->bits = to->bits << count | bits;
    to->count += count;
    if (to->count < 32)
        return;
    uint32_t word = (uint32_t)(to->bits >> (to->count - 32));
    if (word & ~(word + 0x01010101) & 0x80808080) { /* perhaps a byte of ones */
        put_bytes(to);
        return;
    }
    to->count -= 32;
    word = __builtin_bswap32(word);
    memcpy(to->data + to->size, &word, 4);
    to->size += 4;
}

static void pad_bits(writer *to, int padding)
{
    int rest = (8 - to->count % 8) & 7;
    if (rest)
        put_bits(to, padding ? (1u << rest) - 1 : 0, rest);
    put_bytes(to);
    to->bits = 0;
}

/* A bit for each coefficient that is not zero. */
static inline uint64_t nonzero(const int16_t *block)
{
    uint64_t found = 0;
#if defined(__SSE2__)
    const __m128i zero = _mm_setzero_si128();
    for (int k = 0; k < BLOCK; k += 16) {
        __m128i low = _mm_loadu_si128((const __m128i *)(block + k));
        __m128i high = _mm_loadu_si128((const __m128i *)(block + k + 8));
        __m128i zeros = _mm_packs_epi16(_mm_cmpeq_epi16(low, zero), _mm_cmpeq_epi16(high, zero));
        found |= (uint64_t)(~_mm_movemask_epi8(zeros) & 0xFFFF) << k;
    }
#else
    for (int k = 0; k < BLOCK; k++)
        found |= (uint64_t)(block[k] != 0) << k;
#endif
    return found;
}

/* The same of those in a part of the spectrum. */
static inline uint64_t nonzero_between(const int16_t *block, int first, int last)
{
    return nonzero(block) & (~(uint64_t)0 << first) & (~(uint64_t)0 >> (BLOCK - 1 - last));
}

typedef struct {
    uint16_t code[256];
    uint8_t length[256]; /* 0: no code */
} writing_table;

static bool make_writing_table(const uint8_t *stored, writing_table *table)
{
    int place = 0;
    uint32_t code = 0;
    memset(table, 0, sizeof *table);
    for (int length = 1; length <= COUNTS; length++, code <<= 1)
        for (int i = 0; i < stored[length - 1]; i++, place++, code++) {
            if (place >= 256 || code >= 1u << length)
                return false;
            table->code[stored[COUNTS + place]] = (uint16_t)code;
            table->length[stored[COUNTS + place]] = (uint8_t)length;
        }
    return true;
}

static inline int bits_of(uint32_t number)
{
    return number ? 32 - __builtin_clz(number) : 0;
}

/* As JPEG writes signed numbers. */
static inline uint32_t signed_bits(int value, int bits)
{
    return (uint32_t)(value >= 0 ? value : value + (1 << bits) - 1);
}

/* ------------------------------------------------------------------ writing sequential scans */

enum { MOST_BLOCK_BYTES = 2 * BLOCK * 4 + 16 }; /* 26 bits a coefficient, every byte stuffed */

/* A symbol and at most 16 bits behind it. */
static inline bool put_coded(writer *to, const writing_table *table, int symbol, uint32_t bits,
                             int count)
{
    int length = table->length[symbol];
    if (length)
        put_bits(to, (uint32_t)table->code[symbol] << count | bits, length + count);
    return length;
}

static bool write_block(writer *to, const writing_table *dc, const writing_table *ac,
                        const int16_t *block, int *last_dc)
{
    int moved = block[0] - *last_dc, bits = bits_of((uint32_t)abs(moved)), before = 0;
    *last_dc = block[0];
    if (bits > MOST_DC_BITS || !put_coded(to, dc, bits, signed_bits(moved, bits), bits))
        return false;
    for (uint64_t left = nonzero_between(block, 1, BLOCK - 1); left; left &= left - 1) {
        int k = __builtin_ctzll(left), value = block[k], zeros = k - before - 1;
        for (; zeros > 15; zeros -= 16)
            if (!put_coded(to, ac, 0xF0, 0, 0))
                return false;
        bits = bits_of((uint32_t)abs(value));
        if (bits > MOST_AC_BITS ||
            !put_coded(to, ac, zeros << 4 | bits, signed_bits(value, bits), bits))
            return false;
        before = k;
    }
    return before == BLOCK - 1 || put_coded(to, ac, 0, 0, 0);
}

/* ------------------------------------------------------------------ writing progressive scans */

/* What will be written, kept until it is known which symbols are frequent. */
typedef struct {
    uint16_t bits;
    uint8_t count;  /* of bits */
    bool is_symbol; /* else nothing stands before the bits */
    uint8_t symbol;
} token;

typedef struct {
    token *at;
    size_t count, room;
    int32_t frequency[257];
    int32_t run;
    uint8_t corrections[MOST_CORRECTIONS + BLOCK]; /* bits that wait behind the run */
    int waiting;
    int last_dc[MOST_COMPONENTS];
} encoding_scan;

/* Room for what a block and a run before it bring. */
static bool reserve_tokens(encoding_scan *of)
{
    size_t more = 2 * BLOCK + MOST_CORRECTIONS + 16;
    if (of->room - of->count >= more)
        return true;
    size_t room = of->room * 2 + more;
    token *at = realloc(of->at, room * sizeof *at);
    if (!at)
        return false;
    of->at = at;
    of->room = room;
    return true;
}

static inline void add_symbol(encoding_scan *of, int symbol, uint32_t bits, int count)
{
    of->frequency[symbol]++;
    of->at[of->count++] = (token){(uint16_t)bits, (uint8_t)count, true, (uint8_t)symbol};
}

static void add_corrections(encoding_scan *of, const uint8_t *bits, int count)
{
    for (int i = 0; i < count;) {
        uint16_t joined = 0;
        uint8_t some = 0;
        for (; some < 16 && i < count; some++, i++)
            joined = (uint16_t)(joined << 1 | bits[i]);
        of->at[of->count++] = (token){joined, some, false, 0};
    }
}

static void end_run(encoding_scan *of)
{
    if (!of->run)
        return;
    int bits = bits_of((uint32_t)of->run) - 1;
    add_symbol(of, bits << 4, (uint32_t)of->run & ((1u << bits) - 1), bits);
    of->run = 0;
    add_corrections(of, of->corrections, of->waiting);
    of->waiting = 0;
}

static bool encode_dc(encoding_scan *of, int place, const int16_t *block)
{
    int moved = block[0] - of->last_dc[place], bits = bits_of((uint32_t)abs(moved));
    of->last_dc[place] = block[0];
    if (bits > MOST_DC_BITS)
        return false;
    add_symbol(of, bits, bits ? signed_bits(moved, bits) : 0, bits);
    return true;
}

static bool encode_first(encoding_scan *of, const scan *by, const int16_t *block)
{
    int before = by->first - 1;
    uint64_t left = nonzero_between(block, by->first, by->last);
    for (; left; left &= left - 1) {
        int k = __builtin_ctzll(left), zeros = k - before - 1;
        int size = abs(block[k]) >> by->low, bits = bits_of((uint32_t)size);
        if (!size)
            continue;
        if (bits > MOST_AC_BITS)
            return false;
        end_run(of);
        for (; zeros > 15; zeros -= 16)
            add_symbol(of, 0xF0, 0, 0);
        add_symbol(of, zeros << 4 | bits, signed_bits(block[k] < 0 ? -size : size, bits), bits);
        before = k;
    }
    if (before < by->last && ++of->run == MOST_RUN)
        end_run(of);
    return true;
}

static void encode_refinement(encoding_scan *of, const scan *by, const int16_t *block)
{
    int zeros = 0, newest = 0, before = by->first - 1;
    int own = of->waiting; /* corrections of this block begin there */
    uint64_t all = nonzero_between(block, by->first, by->last);
    for (uint64_t left = all; left; left &= left - 1) {
        int k = __builtin_ctzll(left);
        if (abs(block[k]) >> by->low == 1)
            newest = k;
    }
    for (uint64_t left = all; left; left &= left - 1) {
        int k = __builtin_ctzll(left), size = abs(block[k]) >> by->low;
        if (!size)
            continue;
        zeros += k - before - 1;
        before = k;
        for (; zeros > 15 && k <= newest; zeros -= 16) {
            int count = of->waiting - own;
            uint8_t bits[BLOCK];
            memcpy(bits, of->corrections + own, (size_t)count);
            of->waiting = own;
            end_run(of);
            add_symbol(of, 0xF0, 0, 0);
            add_corrections(of, bits, count);
            of->waiting = own = 0;
        }
        if (size > 1) {
            of->corrections[of->waiting++] = size & 1;
            continue;
        }
        int count = of->waiting - own;
        uint8_t bits[BLOCK];
        memcpy(bits, of->corrections + own, (size_t)count);
        of->waiting = own;
        end_run(of);
        add_symbol(of, zeros << 4 | 1, block[k] >= 0, 1);
        add_corrections(of, bits, count);
        of->waiting = own = 0;
        zeros = 0;
    }
    if (zeros || before < by->last || of->waiting > own) {
        of->run++;
        if (of->run == MOST_RUN || of->waiting > MOST_CORRECTIONS - BLOCK)
            end_run(of);
    }
}

/* The shortest codes for symbols of these frequencies, none of more than 16 bits: 16 counts, then the
 * symbols. One code of the longest, all ones, is left unused. Changes frequency; returns the number
 * of symbols, -1 where codes would have to be longer than any that 2^31 symbols need. */
static int best_table(int32_t *frequency, uint8_t *stored)
{
    enum { LONGEST = 48 };
    int length[257] = {0}, next[257], counts[LONGEST + 1] = {0}, place = 0;
    for (int i = 0; i < 257; i++)
        next[i] = -1;
    frequency[256] = 1;
    for (;;) {
        int one = -1, two = -1;
        for (int i = 0; i < 257; i++)
            if (frequency[i] && (one < 0 || frequency[i] <= frequency[one]))
                one = i;
        for (int i = 0; i < 257; i++)
            if (frequency[i] && i != one && (two < 0 || frequency[i] <= frequency[two]))
                two = i;
        if (two < 0)
            break;
        frequency[one] += frequency[two];
        frequency[two] = 0;
        for (length[one]++; next[one] >= 0; length[one]++)
            one = next[one];
        next[one] = two;
        for (length[two]++; next[two] >= 0; length[two]++)
            two = next[two];
    }
    for (int i = 0; i < 257; i++)
        if (length[i]) {
            if (length[i] > LONGEST)
                return -1;
            counts[length[i]]++;
        }
    for (int i = LONGEST; i > COUNTS; i--)
        while (counts[i] > 0) {
            int j = i - 2;
            while (!counts[j])
                j--;
            counts[i] -= 2;
            counts[i - 1]++;
            counts[j + 1] += 2;
            counts[j]--;
        }
    int longest = COUNTS;
    while (longest && !counts[longest])
        longest--;
    if (longest)
        counts[longest]--; /* that of the symbol that is none */
    for (int i = 0; i < COUNTS; i++)
        stored[i] = (uint8_t)counts[i + 1];
    for (int of = 1; of <= LONGEST; of++)
        for (int i = 0; i < 256; i++)
            if (length[i] == of)
                stored[COUNTS + place++] = (uint8_t)i;
    return place;
}

static outcome write_tokens(const encoding_scan *of, const writing_table *table, writer *to)
{
    for (size_t i = 0; i < of->count; i++) {
        const token *each = &of->at[i];
        if (!(i & 63) && !reserve(to, 64 * 8 + 16))
            return NO_MEMORY;
        if (!each->is_symbol)
            put_bits(to, each->bits, each->count);
        else if (!put_coded(to, table, each->symbol, each->bits, each->count))
            return DAMAGED;
    }
    if (!reserve(to, 16))
        return NO_MEMORY;
    pad_bits(to, 1);
    return FINE;
}

static outcome encode_block(encoding_scan *of, const scan *by, int place, const int16_t *block)
{
    if (!reserve_tokens(of))
        return NO_MEMORY;
    if (!by->first)
        return encode_dc(of, place, block) ? FINE : DAMAGED;
    if (by->high)
        encode_refinement(of, by, block);
    else if (!encode_first(of, by, block))
        return DAMAGED;
    return FINE;
}

static outcome finish_progressive(encoding_scan *of, writer *to)
{
    uint8_t stored[TABLE_BYTES] = {0};
    writing_table table;
    if (!reserve_tokens(of))
        return NO_MEMORY;
    end_run(of);
    int symbols = best_table(of->frequency, stored);
    if (symbols < 0 || !make_writing_table(stored, &table))
        return DAMAGED;
    if (!reserve(to, TABLE_BYTES))
        return NO_MEMORY;
    memcpy(to->data + to->size, stored, (size_t)(COUNTS + symbols));
    to->size += (size_t)(COUNTS + symbols);
    return write_tokens(of, &table, to);
}

/* Writes a scan of blocks behind what `to` has. A sequential one is written with `tables`, padded with
 * `padding`; a progressive one with the best table of its own, which stands before it, and ones. */
static outcome encode_scan(const int16_t *blocks, const uint8_t *tables, const scan *by, int padding,
                           writer *to)
{
    bool sequential = !by->first && by->last;
    writing_table *with = NULL;
    encoding_scan *of = NULL;
    outcome found = FINE;
    int last_dc[MOST_COMPONENTS] = {0}, restarts = 0;
    int64_t until = by->interval, unit = 0, units = by->units_wide * by->units_high;
    if (sequential ? !(with = calloc(TABLES, sizeof *with)) : !(of = calloc(1, sizeof *of)))
        return NO_MEMORY;
    for (int i = 0; sequential && i < TABLES; i++)
        if (!make_writing_table(tables + i * TABLE_BYTES, &with[i]))
            found = DAMAGED;
    for (int64_t y = 0; found == FINE && y < by->units_high; y++)
        for (int64_t x = 0; found == FINE && x < by->units_wide; x++) {
            for (int i = 0; found == FINE && i < by->components; i++) {
                const component *c = &by->of[i];
                for (int n = 0; found == FINE && n < c->high * c->wide; n++) {
                    int v = n / c->wide, h = n % c->wide;
                    int64_t at = c->first + (y * c->high + v) * c->stride + x * c->wide + h;
                    const int16_t *block = blocks + at * BLOCK;
                    if (!sequential)
                        found = encode_block(of, by, i, block);
                    else if (!reserve(to, MOST_BLOCK_BYTES))
                        found = NO_MEMORY;
                    else if (!write_block(to, &with[c->dc], &with[4 + c->ac], block, &last_dc[i]))
                        found = DAMAGED;
                }
            }
            if (found == FINE && sequential && ++unit < units && by->interval && !--until) {
                if (!reserve(to, 16)) {
                    found = NO_MEMORY;
                    continue;
                }
                pad_bits(to, padding);
                to->data[to->size++] = 0xFF;
                to->data[to->size++] = (uint8_t)(RESTART + (restarts++ & 7));
                memset(last_dc, 0, sizeof last_dc);
                until = by->interval;
            }
        }
    if (found == FINE && sequential) {
        if (reserve(to, 16))
            pad_bits(to, padding);
        else
            found = NO_MEMORY;
    } else if (found == FINE) {
        found = finish_progressive(of, to);
    }
    free(with);
    if (of)
        free(of->at);
    free(of);
    return found;
}

#endif
