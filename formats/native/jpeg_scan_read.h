/* Reading of JPEG scans: bits to coefficients. What is read may be hostile, see jpeg_entropy.h. */
#ifndef TENSORREPO_JPEG_SCAN_READ_H
#define TENSORREPO_JPEG_SCAN_READ_H

#include "jpeg_entropy.h"

/* ------------------------------------------------------------------ reading bits */

typedef struct {
    const uint8_t *at, *end;
    uint64_t bits; /* the next ones, from the top */
    int count;
    int padding; /* -1: none was seen yet */
} reader;

typedef struct {
    uint16_t quick[1 << QUICK_BITS]; /* length << 8 | value; 0: longer */
    int32_t most[COUNTS + 1];        /* last code of a length, -1: none */
    int32_t shift[COUNTS + 1];       /* from a code to its place in values */
    uint8_t values[256];
} reading_table;

static bool make_reading_table(const uint8_t *stored, reading_table *table)
{
    int place = 0;
    int32_t code = 0;
    memset(table->quick, 0, sizeof table->quick);
    memcpy(table->values, stored + COUNTS, 256);
    for (int length = 1; length <= COUNTS; length++, code <<= 1) {
        int count = stored[length - 1];
        if (place + count > 256 || code + count > (int32_t)1 << length)
            return false;
        table->shift[length] = place - code;
        for (int i = 0; i < count; i++, place++, code++)
            if (length <= QUICK_BITS)
                for (int rest = 0; rest < 1 << (QUICK_BITS - length); rest++)
                    table->quick[(code << (QUICK_BITS - length)) + rest] =
                        (uint16_t)(length << 8 | stored[COUNTS + place]);
        table->most[length] = count ? code - 1 : -1;
    }
    return true;
}

static inline void fill_bits(reader *from)
{
    while (from->count <= 56 && from->at < from->end) {
        uint8_t byte = *from->at;
        if (byte == 0xFF) {
            if (from->end - from->at < 2 || from->at[1])
                return; /* a marker */
            from->at++;
        }
        from->at++;
        from->bits |= (uint64_t)byte << (56 - from->count);
        from->count += 8;
    }
}

/* The next `count` bits, 1 to 16; false: there are not so many. */
static inline bool take_bits(reader *from, int count, uint32_t *found)
{
    if (from->count < count) {
        fill_bits(from);
        if (from->count < count)
            return false;
    }
    *found = (uint32_t)(from->bits >> (64 - count));
    from->bits <<= count;
    from->count -= count;
    return true;
}

static inline bool take_symbol(reader *from, const reading_table *table, int *found)
{
    if (from->count < 32)
        fill_bits(from);
    uint16_t quick = table->quick[from->bits >> (64 - QUICK_BITS)];
    int length = quick >> 8;
    if (length) {
        *found = quick & 0xFF;
    } else {
        int32_t code = 0;
        for (length = QUICK_BITS + 1; length <= COUNTS; length++) {
            code = (int32_t)(from->bits >> (64 - length));
            if (code <= table->most[length])
                break;
        }
        if (length > COUNTS)
            return false;
        *found = table->values[(code + table->shift[length]) & 0xFF];
    }
    if (length > from->count)
        return false;
    from->bits <<= length;
    from->count -= length;
    return true;
}

/* A number of so many bits, 1 to 16, as JPEG writes signed ones. */
static inline bool take_number(reader *from, int count, int *found)
{
    uint32_t bits;
    if (!take_bits(from, count, &bits))
        return false;
    *found = bits >> (count - 1) ? (int)bits : (int)bits - (1 << count) + 1;
    return true;
}

/* What is left of the last byte must be padding. */
static bool end_bits(reader *from)
{
    fill_bits(from);
    if (from->count > 7)
        return false;
    if (from->count) {
        uint32_t rest = (uint32_t)(from->bits >> (64 - from->count));
        int padding = rest ? 1 : 0;
        if (padding && rest != (1u << from->count) - 1)
            return false;
        if (from->padding >= 0 && from->padding != padding)
            return false;
        from->padding = padding;
    }
    from->bits = 0;
    from->count = 0;
    return true;
}

/* ------------------------------------------------------------------ reading scans */

typedef struct {
    reader from;
    int last_dc[MOST_COMPONENTS];
    int32_t run; /* blocks that have ended before they begin */
    reading_table tables[TABLES];
} decoding;

static bool read_dc(decoding *of, int place, int table, int16_t *block)
{
    int bits, moved = 0;
    if (!take_symbol(&of->from, &of->tables[table], &bits) || bits > MOST_DC_BITS)
        return false;
    if (bits && !take_number(&of->from, bits, &moved))
        return false;
    int value = of->last_dc[place] + moved;
    if (value < -MOST_DC || value >= MOST_DC)
        return false;
    of->last_dc[place] = value;
    block[0] = (int16_t)value;
    return true;
}

static bool read_sequential(decoding *of, int table, int16_t *block)
{
    for (int k = 1; k < BLOCK; k++) {
        int symbol, value;
        if (!take_symbol(&of->from, &of->tables[table], &symbol))
            return false;
        int zeros = symbol >> 4, bits = symbol & 15;
        if (!bits) {
            if (!zeros)
                return true;
            if (zeros != 15)
                return false;
            k += 15;
            continue;
        }
        k += zeros;
        if (k >= BLOCK || bits > MOST_AC_BITS || !take_number(&of->from, bits, &value))
            return false;
        block[k] = (int16_t)value;
    }
    return true;
}

/* An end of band: this block and more end here. */
static bool read_run(decoding *of, int bits)
{
    uint32_t more = 0;
    if (bits && !take_bits(&of->from, bits, &more))
        return false;
    of->run = (1 << bits) + (int32_t)more;
    return true;
}

static bool read_first(decoding *of, const scan *by, int table, int16_t *block)
{
    if (of->run) {
        of->run--;
        return true;
    }
    for (int k = by->first; k <= by->last; k++) {
        int symbol, value;
        if (!take_symbol(&of->from, &of->tables[table], &symbol))
            return false;
        int zeros = symbol >> 4, bits = symbol & 15;
        if (!bits) {
            if (zeros < 15) {
                if (!read_run(of, zeros))
                    return false;
                of->run--;
                return true;
            }
            k += 15;
            continue;
        }
        k += zeros;
        if (k > by->last || bits > MOST_AC_BITS || !take_number(&of->from, bits, &value))
            return false;
        block[k] = (int16_t)(value * (1 << by->low));
    }
    return true;
}

/* One more bit of a coefficient that is not zero. */
static inline bool correct(decoding *of, int one, int16_t *value)
{
    uint32_t bit;
    if (!take_bits(&of->from, 1, &bit))
        return false;
    if (bit && !(*value & one))
        *value = (int16_t)(*value + (*value >= 0 ? one : -one));
    return true;
}

static bool read_refinement(decoding *of, const scan *by, int table, int16_t *block)
{
    int one = 1 << by->low, k = by->first;
    for (; !of->run && k <= by->last; k++) {
        int symbol, value = 0;
        if (!take_symbol(&of->from, &of->tables[table], &symbol))
            return false;
        int zeros = symbol >> 4, bits = symbol & 15;
        if (bits) {
            uint32_t positive;
            if (bits != 1 || !take_bits(&of->from, 1, &positive))
                return false;
            value = positive ? one : -one;
        } else if (zeros < 15) {
            if (!read_run(of, zeros))
                return false;
            break;
        }
        for (; k <= by->last; k++) {
            if (block[k]) {
                if (!correct(of, one, &block[k]))
                    return false;
            } else if (--zeros < 0) {
                break;
            }
        }
        if (value) {
            if (k > by->last)
                return false;
            block[k] = (int16_t)value;
        }
    }
    if (of->run) {
        for (; k <= by->last; k++)
            if (block[k] && !correct(of, one, &block[k]))
                return false;
        of->run--;
    }
    return true;
}

static bool read_block(decoding *of, const scan *by, int place, int16_t *block)
{
    int dc = by->of[place].dc, ac = 4 + by->of[place].ac;
    if (!by->first) {
        if (!read_dc(of, place, dc, block))
            return false;
        return !by->last || read_sequential(of, ac, block);
    }
    return by->high ? read_refinement(of, by, ac, block) : read_first(of, by, ac, block);
}

static bool restart(decoding *of, int number)
{
    if (!end_bits(&of->from) || of->run || of->from.end - of->from.at < 2 ||
        of->from.at[0] != 0xFF || of->from.at[1] != RESTART + number)
        return false;
    of->from.at += 2;
    memset(of->last_dc, 0, sizeof of->last_dc);
    return true;
}

/* Reads a scan into blocks, which have what earlier scans brought, else zeros. On success *stop is
 * how much of data it took, and *padding the bit that its last bytes are filled up with, or -1. */
static outcome decode_scan(const uint8_t *data, size_t size, const uint8_t *tables, const scan *by,
                           int16_t *blocks, size_t *stop, int *padding)
{
    decoding *of = malloc(sizeof *of);
    if (!of)
        return NO_MEMORY;
    memset(of->last_dc, 0, sizeof of->last_dc);
    of->run = 0;
    of->from = (reader){.at = data, .end = data + size, .padding = -1};
    bool fine = true;
    for (int i = 0; fine && i < TABLES; i++)
        fine = make_reading_table(tables + i * TABLE_BYTES, &of->tables[i]);
    int64_t until = by->interval, unit = 0, units = by->units_wide * by->units_high;
    int restarts = 0;
    for (int64_t y = 0; fine && y < by->units_high; y++)
        for (int64_t x = 0; fine && x < by->units_wide; x++) {
            for (int i = 0; fine && i < by->components; i++) {
                const component *c = &by->of[i];
                for (int v = 0; fine && v < c->high; v++)
                    for (int h = 0; fine && h < c->wide; h++) {
                        int64_t at = c->first + (y * c->high + v) * c->stride + x * c->wide + h;
                        fine = read_block(of, by, i, blocks + at * BLOCK);
                    }
            }
            if (fine && ++unit < units && by->interval && !--until) {
                fine = restart(of, restarts++ & 7);
                until = by->interval;
            }
        }
    fine = fine && !of->run && end_bits(&of->from);
    *stop = (size_t)(of->from.at - data);
    *padding = of->from.padding;
    free(of);
    return fine ? FINE : DAMAGED;
}

#endif
