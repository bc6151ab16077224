/* What encodes a plane in one call: the parts of `_codecs` for one another.
 *
 * Callers check sizes; nothing here touches Python.
 */
#ifndef TENSORREPO_ENCODING_H
#define TENSORREPO_ENCODING_H

#include "numbers.h"
#include "parts.h"

enum {
    ALONE = 1 << 14,  /* symbols: below, the interpreter lock is kept: to hand it over takes longer */
    PACK_SLACK = 384, /* bytes that packing needs beside two for each symbol */
    MOST_TABLES = 16,
    MOST_TABLE_BYTES = 3 * MOST_TABLES + 3 * MOST_TABLES * 256 / 2,
};

/* Numbers of plane codecs, see docs/spec/model.md. */
enum {
    STORED_RAW = 0,
    STORED_CONSTANT = 3,
    STORED_CODED = 4,
    STORED_LONG_CODED = 7,
};

/* Tables for symbols that were counted by context. */
typedef struct {
    size_t rows;
    double bits; /* that all symbols take */
    uint8_t groups[256];
    uint16_t frequencies[MOST_TABLES * 256];
    int64_t counted[MOST_TABLES * 256];
} made_tables;

/* False where nothing was counted. Counts of contexts that are not `used` are
 * zero; NULL: any may be. */
PART bool make_tables(const uint32_t *counts, size_t contexts, const uint8_t *used,
                      made_tables *made);
/* At most MOST_TABLE_BYTES. */
PART size_t write_tables(const made_tables *made, uint8_t *out);
PART double entropy_bits(const uint32_t *counts, size_t contexts);

/* How often each symbol stands in each context, added to `counts`; `others` is as large, and zero. */
PART void count_symbols(const uint8_t *symbols, const uint8_t *contexts, size_t count,
                        uint32_t *counts, uint32_t *others);
/* How many coders take turns over so many symbols, which are expected to take so many bits. */
PART size_t lanes_for(size_t count, double bits);
/* Where in `out` the packed symbols begin, up to its end, if so many coders take turns; NULL where they
 * do not fit. */
PART uint8_t *pack_by_tables(const uint8_t *symbols, const uint8_t *contexts, size_t count,
                             const made_tables *by, size_t lanes, uint8_t *out, size_t room);

/* Numbers of `size` bytes: 1, 2, 4 or 8, that have these planes, which do not overlap `out`. */
PART void join_planes(const uint8_t *const *planes, size_t count, int size, bool turn, uint8_t *out);

/* Bytes of this thread's own, the same at each call unless more are asked for: memory that is got
 * anew costs more, page by page, than what it is for. A thread that begins gets those of one that
 * ended. NULL where there is none. */
PART uint8_t *scratch(size_t size);

/* Memory of this thread for each of these uses, always of one size. It is zero at first, and whoever
 * asks for counts leaves them zero: a small frame clears little. Not thread-local variables: those of
 * every thread would be cleared whole when it first uses one. NULL where there is none. */
enum zeros { TOKEN_COUNTS, SLOTS, ZEROS };
PART void *zeros(enum zeros use, size_t size);

#endif
