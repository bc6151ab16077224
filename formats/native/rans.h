/* How are symbols taken out of the states of rANS, and how are their tables read?
 *
 * For coder.c and distances.c, which say which of the paths is best. INLINE comes from there.
 *
 * Whatever comes from storage is hostile: every length is checked, tables are checked before they
 * are used, and nothing is read or written outside of the buffers given.
 */
#ifndef TENSORREPO_RANS_H
#define TENSORREPO_RANS_H

#include "numbers.h"
#include "targets.h"

enum {
    SYMBOLS = 256,
    CONTEXTS = 256,
    TABLE_BITS = 12,
    TABLE = 1 << TABLE_BITS, /* what the frequencies of a context add up to */
    SLOT_SLACK = 16,         /* slots after the last table: whole runs of them are written */
    LANES = 32,              /* coders that take turns; short planes have FEW of them */
    FEW = 4,
    ROUND = 2 * LANES, /* bytes: the most words that a round of turns asks for */
};
#define LOWEST 65536u /* of a coder's state */

/* Per slot of a table: symbol, frequency - 1 (12 bits), slot - start of the symbol (12 bits). What
 * follows the table is overwritten, SLOT_SLACK slots at most: a RUN is written for each symbol, and
 * only those longer than that are asked for more. */
INLINE void fill_body(const uint16_t *frequencies, uint32_t *slots)
{
    enum { RUN = 16 };
    for (uint32_t symbol = 0; symbol < SYMBOLS; symbol++) {
        uint32_t frequency = frequencies[symbol], entry = symbol | (frequency - 1) << 8, i = 0;
        do {
            for (uint32_t j = 0; j < RUN; j++)
                slots[i + j] = entry + (j << 20);
            entry += RUN << 20;
            i += RUN;
        } while (i < frequency);
        slots += frequency;
    }
}

typedef void filler(const uint16_t *frequencies, uint32_t *slots);

static void fill_portable(const uint16_t *frequencies, uint32_t *slots)
{
    fill_body(frequencies, slots);
}

static filler *best_fill = fill_portable;

/* Words of 16 bits that are left; `left` is below 0 once more were asked for. */
typedef struct {
    const uint8_t *words;
    ptrdiff_t left;
    const uint8_t *end; /* of what may be read, though it may be something else than words */
    uint8_t *tail;      /* 2 * ROUND bytes: the last words, and zeros */
} reading;

/* The last words again where as many zeros follow as a round may ask for. By value: what others know
 * the address of is not kept in registers. */
__attribute__((noinline)) static reading moved_to_tail(reading from)
{
    memset(from.tail, 0, 2 * ROUND);
    memcpy(from.tail, from.words, 2 * (size_t)from.left);
    return (reading){from.tail, from.left, from.tail + 2 * ROUND, from.tail};
}

/* Whether no word was missing until now; then a whole ROUND may be read. */
INLINE bool words_ready(reading *from)
{
    if (__builtin_expect(from->left < 0, 0))
        return false;
    if (__builtin_expect(from->end - from->words < ROUND, 0))
        *from = moved_to_tail(*from);
    return true;
}

/* Each of so many coders takes a turn; words_ready was asked before. */
INLINE void unpack_round(const uint32_t *slots, const uint8_t *contexts, size_t turns,
                         uint32_t *states, reading *from, uint8_t *out)
{
    const uint8_t *words = from->words;
    for (size_t lane = 0; lane < turns; lane++) {
        uint32_t state = states[lane], slot = state & (TABLE - 1);
        uint32_t entry = slots[(contexts ? (size_t)contexts[lane] << TABLE_BITS : 0) + slot];
        out[lane] = (uint8_t)entry;
        state = ((entry >> 8 & 0xFFF) + 1) * (state >> TABLE_BITS) + (entry >> 20);
        bool low = state < LOWEST; /* no branch: nobody could predict it */
        states[lane] = state << 16 * low | (load16(words) & (0u - low));
        words += 2 * low;
    }
    from->left -= (words - from->words) / 2;
    from->words = words;
}

/* Whole rounds of LANES; how many symbols that were: fewer where words were missing. */
typedef size_t rounds(const uint32_t *slots, const uint8_t *contexts, size_t count,
                      uint32_t *states, reading *from, uint8_t *out);

static size_t rounds_portable(const uint32_t *slots, const uint8_t *contexts, size_t count,
                              uint32_t *states, reading *from, uint8_t *out)
{
    size_t at = 0;
    for (; at + LANES <= count && words_ready(from); at += LANES)
        unpack_round(slots, contexts ? contexts + at : NULL, LANES, states, from, out + at);
    return at;
}

static rounds *best_rounds = rounds_portable;

typedef struct {
    const uint32_t *slots; /* of each context, one after the other */
    size_t lanes;
    reading from;
    uint32_t states[LANES];
    uint8_t tail[2 * ROUND];
} decoder;

/* Decoders point into themselves: they stay where they are. `readable` are the bytes from `data` on
 * that may be read, at least `size`. */
static bool begin_symbols(decoder *it, const uint8_t *data, size_t size, size_t readable,
                          const uint32_t *slots, size_t lanes)
{
    if (size < 4 * lanes || size % 2)
        return false;
    it->slots = slots;
    it->lanes = lanes;
    it->from = (reading){data + 4 * lanes, (ptrdiff_t)(size - 4 * lanes) / 2, data + readable,
                         it->tail};
    memcpy(it->states, data, 4 * lanes);
    for (size_t lane = 0; lane < lanes; lane++)
        if (it->states[lane] < LOWEST)
            return false;
    return true;
}

/* The next symbols; of all calls but the last whole rounds. Whether there were as many words. */
static bool next_symbols(decoder *it, const uint8_t *contexts, size_t count, uint8_t *out)
{
    size_t at = 0, lanes = it->lanes;
    if (lanes == LANES)
        at = best_rounds(it->slots, contexts, count, it->states, &it->from, out);
    for (; at < count && words_ready(&it->from); at += lanes) {
        size_t turns = count - at < lanes ? count - at : lanes;
        unpack_round(it->slots, contexts ? contexts + at : NULL, turns, it->states, &it->from,
                     out + at);
    }
    return it->from.left >= 0;
}

/* Whether nothing is left over. */
static bool symbols_ended(const decoder *it)
{
    if (it->from.left)
        return false;
    for (size_t lane = 0; lane < it->lanes; lane++)
        if (it->states[lane] != LOWEST)
            return false;
    return true;
}

/* ------------------------------------------------------------------ tables
 *
 * groups - 1 | where each group but the first begins | for each group first symbol, symbols - 1 | 12
 * bits for each frequency but a group's last, which is what is left of TABLE. */

/* The group of each context and the frequencies of each group; the bytes that they take, or -1 for
 * what is not well-formed. */
static Py_ssize_t read_tables(const uint8_t *data, size_t size, uint8_t *groups,
                              uint16_t *frequencies, size_t rows)
{
    if (!size || (size_t)data[0] + 1 != rows || size < 3 * rows)
        return -1;
    const uint8_t *spans = data + rows;
    size_t values = 0;
    for (size_t group = 0; group < rows; group++) {
        if (spans[2 * group] + spans[2 * group + 1] >= SYMBOLS)
            return -1;
        values += spans[2 * group + 1];
    }
    if (size < 3 * rows + (3 * values + 1) / 2)
        return -1;
    for (size_t group = 1; group < rows; group++)
        if (data[group] <= (group > 1 ? data[group - 1] : 0))
            return -1;
    for (size_t group = 0; group < rows; group++) {
        size_t begin = group ? data[group] : 0, end = group + 1 < rows ? data[group + 1] : CONTEXTS;
        memset(groups + begin, (int)group, end - begin);
    }
    const uint8_t *packed = data + 3 * rows;
    memset(frequencies, 0, rows * SYMBOLS * sizeof *frequencies);
    size_t at = 0;
    for (size_t group = 0; group < rows; group++) {
        uint16_t *row = frequencies + group * SYMBOLS + spans[2 * group];
        int32_t left = TABLE;
        size_t count = spans[2 * group + 1];
        for (size_t i = 0; i < count; i++, at++) {
            uint32_t both = load16(packed + 3 * at / 2);
            row[i] = (uint16_t)(at % 2 ? both >> 4 : both & (TABLE - 1));
            left -= row[i];
        }
        if (left <= 0)
            return -1;
        row[count] = (uint16_t)left;
    }
    if (values % 2 && packed[3 * values / 2] >> 4)
        return -1;
    return (Py_ssize_t)(3 * rows + (3 * values + 1) / 2);
}

#endif
