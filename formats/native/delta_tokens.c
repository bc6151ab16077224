/* Distances of a tensor's numbers from their base, in tokens and bits.
 *
 * scan, contexts and pack_bits are what an encoder needs, whose tokens rans.c packs; decode is all
 * that a decoder does. All let go of the interpreter lock. The twin in numpy is delta_tokens.py
 * beside this, that of decode the steps of formats/model/delta/distances.py, with identical results;
 * the layout is in docs/spec/model.md, section "Codecs".
 *
 * Whatever comes from storage is hostile: every length is checked, and nothing is read or written
 * outside of the buffers given.
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes; x86-64 has faster
 * paths, chosen when the module is loaded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include <stdlib.h>

#include "delta_tokens.h"
#include "encoding.h"

/* ------------------------------------------------------------------ distances to tokens */

INLINE void tokens_block(const uint8_t *frame, const uint8_t *base, size_t count, kind kind,
                         uint8_t *tokens)
{
    union {
        U32 shorter[BLOCK];
        U64 longer[BLOCK];
    } moved;
    if (kind.size < 8) {
        short_moved(frame, base, count, kind, moved.shorter);
        short_tokens(moved.shorter, count, tokens);
        return;
    }
    moved64(frame, base, count, kind.magnitude, moved.longer);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint8_t)token_of(moved.longer[i]);
}

enum {
    CELLS = CONTEXTS * SYMBOLS,
    AT_ONCE = 4, /* tables of counts: to count the same cell twice in a row would wait for the first */
};

/* Contexts that were seen, from the lowest to the highest. */
typedef struct {
    uint8_t lowest, highest;
} seen;

INLINE void count_cells(const uint16_t *cells, size_t count, uint32_t *counts)
{
    size_t i = 0;
    for (; i + AT_ONCE <= count; i += AT_ONCE) {
        uint64_t some = load64((const uint8_t *)(cells + i));
        for (unsigned j = 0; j < AT_ONCE; j++)
            counts[j * CELLS + (uint16_t)(some >> 16 * j)]++;
    }
    for (; i < count; i++)
        counts[cells[i]]++;
}

/* Tokens, contexts, and AT_ONCE tables of how often each stands in each context, which together say
 * it. */
INLINE seen scan_body(const uint8_t *frame, const uint8_t *base, size_t count, kind kind,
                      uint8_t *tokens, uint8_t *all_contexts, uint32_t *counts)
{
    uint8_t lowest = CONTEXTS - 1, highest = 0;
    uint16_t cells[BLOCK];
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK, start = at * (size_t)kind.size;
        uint8_t *contexts = all_contexts + at;
        tokens_block(frame + start, base + start, part, kind, tokens + at);
        contexts_block(base + start, part, kind, contexts);
        for (size_t i = 0; i < part; i++) {
            uint8_t context = contexts[i];
            cells[i] = (uint16_t)(context << 8 | tokens[at + i]);
            lowest = context < lowest ? context : lowest;
            highest = context > highest ? context : highest;
        }
        count_cells(cells, part, counts);
    }
    return (seen){lowest, highest};
}

EVERY_MACHINE(seen, scan,
              (const uint8_t *frame, const uint8_t *base, size_t count, kind kind, uint8_t *tokens,
               uint8_t *contexts, uint32_t *counts),
              seen found;
              BY_SIZE(kind.size,
                      found = scan_body(frame, base, count, kind, tokens, contexts, counts))
              return found;);

/* Distances themselves, and numbers from them: for whoever stores distances in another way. */
INLINE void differ_body(const uint8_t *frame, const uint8_t *base, size_t count, kind kind,
                        uint8_t *out)
{
    switch (kind.size) {
    case 1: moved8(frame, base, count, kind.magnitude, out); break;
    case 2: moved16(frame, base, count, kind.magnitude, (U16 *)out); break;
    case 4: moved32(frame, base, count, kind.magnitude, (U32 *)out); break;
    default: moved64(frame, base, count, kind.magnitude, (U64 *)out);
    }
}

INLINE void restore_body(const uint8_t *distances, const uint8_t *base, size_t count, kind kind,
                         uint8_t *out)
{
    switch (kind.size) {
    case 1: restored8(distances, base, count, kind.magnitude, out); break;
    case 2: restored16((const U16 *)distances, base, count, kind.magnitude, out); break;
    case 4: restored32((const U32 *)distances, base, count, kind.magnitude, out); break;
    default: restored64((const U64 *)distances, base, count, kind.magnitude, out);
    }
}

typedef void mover(const uint8_t *, const uint8_t *, size_t, kind, uint8_t *);

EVERY_MACHINE(void, differ,
              (const uint8_t *frame, const uint8_t *base, size_t count, kind kind, uint8_t *out),
              differ_body(frame, base, count, kind, out););
EVERY_MACHINE(void, restore,
              (const uint8_t *from, const uint8_t *base, size_t count, kind kind, uint8_t *out),
              restore_body(from, base, count, kind, out););
EVERY_MACHINE(Py_ssize_t, pack_bits,
              (const uint8_t *frame, const uint8_t *base, const uint8_t *tokens, size_t count,
               kind kind, uint8_t *out, size_t room),
              Py_ssize_t used;
              BY_SIZE(kind.size, used = pack_bits_body(frame, base, tokens, count, kind, out, room))
              return used;);

/* One byte of each distance, counted from the lowest. */
INLINE void layer_body(const uint8_t *moved, size_t count, int size, int byte, uint8_t *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = moved[i * (size_t)size + (size_t)byte];
}

EVERY_MACHINE(void, layer,
              (const uint8_t *moved, size_t count, int size, int byte, uint8_t *out),
              BY_SIZE(size, layer_body(moved, count, size, byte, out)));

#if defined(__x86_64__)
#include "delta_bits_wide.h"
#include "delta_tokens_wide.h"

#include "delta_rows_wide.h"
#endif

static void choose(void)
{
    choose_unpacking();
    CHOOSE(scan);
    CHOOSE(differ);
    CHOOSE(restore);
    CHOOSE(contexts);
    CHOOSE(regroup);
    CHOOSE(layer);
    choose_step();
    if (!is_wide())
        return;
#if defined(__x86_64__)
    best_pack_bits = pack_bits_eight;
    best_apply = apply_wide;
    best_skip = is_widest() ? skip_widest : skip_wide;
    if (is_newest()) {
        best_pack_bits = pack_bits_sixteen;
        best_pass = pass_newest;
        best_apply = apply_newest;
        best_contexts = contexts_by_permutation;
        best_regroup = regroup_by_shuffles;
    }
#endif
}

/* ------------------------------------------------------------------ a frame in one go
 *
 * bytes of the coded tokens | tables | coded tokens | bits */

enum {
    RUN = 2048, /* numbers of a sample */
    RUNS = 4,
};

static _Thread_local made_tables tables_of_thread;

/* AT_ONCE tables. */
static uint32_t *token_counts(void)
{
    return zeros(TOKEN_COUNTS, AT_ONCE * CELLS * sizeof(uint32_t));
}

/* The counts of a context in the first of the tables, and zeros in the others. */
static void add_up(uint32_t *counts, size_t context)
{
    uint32_t *one = counts + context * SYMBOLS;
    for (size_t j = 1; j < AT_ONCE; j++) {
        uint32_t *other = one + j * CELLS;
        for (size_t i = 0; i < SYMBOLS; i++)
            one[i] += other[i];
        memset(other, 0, SYMBOLS * sizeof *other);
    }
}

typedef struct {
    const uint8_t *frame, *base;
    size_t count;
    kind kind;
    uint8_t *tokens, *contexts;
    uint8_t *room; /* for the head, tokens of at most `coded_room` and bits of at most `bits_room` */
    uint8_t *out;  /* what was written there */
    size_t coded_room, bits_room;
    const made_tables *tables;
    uint64_t bits;   /* below the tokens */
    double expected; /* bytes of coded tokens and bits */
} encoding;

/* Whether there was memory. */
static bool begin_encoding(encoding *it)
{
    size_t head = HEAD + MOST_TABLE_BYTES, count = it->count;
    it->coded_room = 2 * count + PACK_SLACK;
    it->bits_room = count * (size_t)it->kind.size + 2 * SLACK;
    it->tokens = scratch(2 * count + head + it->coded_room + it->bits_room);
    if (!it->tokens)
        return false;
    it->contexts = it->tokens + count;
    it->room = it->contexts + count + head;
    return true;
}

/* Which contexts were counted, and perhaps some between them: to look each number's up takes longer
 * than to add up what is zero, but for few numbers. */
static void mark_used(encoding *it, seen seen, uint8_t *used)
{
    if (it->count >= MANY) {
        memset(used + seen.lowest, 1, (size_t)(seen.highest - seen.lowest) + 1);
        return;
    }
    for (size_t i = 0; i < it->count; i++)
        used[it->contexts[i]] = 1;
}

/* Tokens, tables, and what will be left of them; false where nothing was counted. */
static bool plan(encoding *it)
{
    uint8_t used[CONTEXTS] = {0};
    uint32_t *counts = token_counts();
    if (!counts)
        return false;
    seen seen = best_scan(it->frame, it->base, it->count, it->kind, it->tokens, it->contexts,
                          counts);
    mark_used(it, seen, used);
    for (size_t context = seen.lowest; context <= seen.highest; context++)
        if (used[context])
            add_up(counts, context);
    bool fine = make_tables(counts, CONTEXTS, used, &tables_of_thread);
    for (size_t context = seen.lowest; context <= seen.highest; context++)
        if (used[context])
            memset(counts + context * SYMBOLS, 0, SYMBOLS * sizeof *counts);
    it->tables = &tables_of_thread;
    it->bits = 0;
    for (size_t i = 0; fine && i < it->tables->rows * SYMBOLS; i++)
        it->bits += (uint64_t)it->tables->counted[i] * bits_of((unsigned)(i % SYMBOLS));
    it->expected = (it->tables->bits + (double)it->bits) / 8;
    return fine;
}

/* Bits of symbols in a sample, each in its context. */
static double sampled_bits(const uint8_t *symbols, const uint8_t *contexts, size_t count,
                           size_t rows)
{
    uint32_t counts[2][MOST_TABLES * SYMBOLS] = {0};
    count_symbols(symbols, contexts, count, counts[0], counts[1]);
    for (size_t i = 0; i < rows * SYMBOLS; i++)
        counts[0][i] += counts[1][i];
    return entropy_bits(counts[0], rows);
}

/* Whether a sample says that the bits below the tokens are no noise. */
static bool layers_seem_better(const encoding *it)
{
    _Alignas(64) uint8_t moved[8 * RUN], tokens[RUNS * RUN];
    _Alignas(64) uint8_t contexts[RUNS * RUN], layers[8][RUNS * RUN];
    size_t size = (size_t)it->kind.size, taken = 0, rows = it->tables->rows, before = 0;
    if (size == 1 || it->bits < 2 * it->count || it->count < RUN)
        return false;
    grouping by = grouping_of(it->tables->groups);
    double left = 0, found = 0;
    for (size_t run = 0; run < RUNS; run++) {
        size_t start = (it->count - RUN) * run / (RUNS - 1);
        if (run && start == before)
            continue;
        before = start;
        best_contexts(it->base + start * size, RUN, it->kind, &by, contexts + taken);
        best_differ(it->frame + start * size, it->base + start * size, RUN, it->kind, moved);
        memcpy(tokens + taken, it->tokens + start, RUN);
        for (size_t i = 0; i < RUN; i++)
            for (size_t byte = 0; byte < size; byte++)
                layers[byte][taken + i] = moved[i * size + byte];
        taken += RUN;
    }
    for (size_t i = 0; i < taken; i++)
        left += bits_of(tokens[i]);
    double enough = 0.9 * (sampled_bits(tokens, contexts, taken, rows) + left);
    for (size_t byte = 0; byte < size && found < enough; byte++) /* the last is noise, if any is */
        found += sampled_bits(layers[byte], contexts, taken, rows);
    return found < enough;
}

static bool one_each(const made_tables *tables)
{
    for (size_t row = 0; row < tables->rows; row++) {
        uint16_t largest = 0;
        for (size_t i = 0; i < SYMBOLS; i++) {
            uint16_t frequency = tables->frequencies[row * SYMBOLS + i];
            largest = frequency > largest ? frequency : largest;
        }
        if (largest != TABLE)
            return false;
    }
    return true;
}

/* The plane, where `out` says; its bytes. Tokens are packed from their end: what stands before them
 * is put there when it is known how many they are. */
static size_t write_plane(encoding *it)
{
    uint8_t tables[HEAD + MOST_TABLE_BYTES], *end = it->room + it->coded_room, *begin = end;
    size_t head = HEAD + write_tables(it->tables, tables + HEAD);
    if (!one_each(it->tables)) {
        grouping by = grouping_of(it->tables->groups);
        best_regroup(it->contexts, it->count, &by);
        /* A symbol takes 12 bits at most: there is room. */
        begin = pack_by_tables(it->tokens, it->contexts, it->count, it->tables,
                               lanes_for(it->count, it->tables->bits), end - it->coded_room,
                               it->coded_room);
    }
    store32(tables, (uint32_t)(end - begin));
    it->out = begin - head;
    memcpy(it->out, tables, head);
    Py_ssize_t bits = 0;
    if (it->bits)
        bits = best_pack_bits(it->frame, it->base, it->tokens, it->count, it->kind, end,
                              it->bits_room);
    return (size_t)(end - it->out) + (size_t)bits;
}

/* ------------------------------------------------------------------ layers in one go
 *
 * Of each byte of the distances, the most significant first: bytes that follow, tables, coded bytes. */

typedef struct {
    const uint8_t *base;
    size_t count;
    kind kind;
    uint8_t *moved, *symbols, *contexts, *groups, *room;
    size_t coded_room;
    uint8_t used[CONTEXTS];
    uint8_t *out;
} layering;

/* Whether there was memory. */
static bool begin_layers(layering *it, const uint8_t *frame)
{
    size_t count = it->count, size = (size_t)it->kind.size;
    uint8_t map[CONTEXTS];
    it->coded_room = 2 * count + PACK_SLACK;
    /* A symbol takes 12 bits at most. */
    size_t most = HEAD + MOST_TABLE_BYTES + 2 * count + PACK_SLACK;
    it->moved = scratch((size + 3) * count + it->coded_room + size * most);
    if (!it->moved)
        return false;
    it->symbols = it->moved + size * count;
    it->contexts = it->symbols + count;
    it->groups = it->contexts + count;
    it->room = it->groups + count;
    it->out = it->room + it->coded_room;
    for (unsigned i = 0; i < CONTEXTS; i++)
        map[i] = (uint8_t)i;
    grouping each = grouping_of(map);
    best_contexts(it->base, count, it->kind, &each, it->contexts);
    best_differ(frame, it->base, count, it->kind, it->moved);
    for (size_t i = 0; i < count; i++)
        it->used[it->contexts[i]] = 1;
    return true;
}

/* Behind what was written before it; whether there was memory. */
static bool write_layer(layering *it, int byte)
{
    uint32_t *counts = token_counts();
    if (!counts)
        return false;
    uint32_t *others = counts + CELLS;
    best_layer(it->moved, it->count, it->kind.size, byte, it->symbols);
    count_symbols(it->symbols, it->contexts, it->count, counts, others);
    for (size_t context = 0; context < CONTEXTS; context++)
        if (it->used[context])
            add_up(counts, context);
    bool fine = make_tables(counts, CONTEXTS, it->used, &tables_of_thread);
    for (size_t context = 0; context < CONTEXTS; context++)
        if (it->used[context])
            memset(counts + context * SYMBOLS, 0, SYMBOLS * sizeof *counts);
    if (!fine)
        return false;
    uint8_t *at = it->out + HEAD;
    at += write_tables(&tables_of_thread, at);
    if (!one_each(&tables_of_thread)) {
        grouping by = grouping_of(tables_of_thread.groups);
        best_contexts(it->base, it->count, it->kind, &by, it->groups);
        uint8_t *end = it->room + it->coded_room;
        uint8_t *coded = pack_by_tables(it->symbols, it->groups, it->count, &tables_of_thread,
                                        it->count < MANY ? FEW : LANES, it->room, it->coded_room);
        memcpy(at, coded, (size_t)(end - coded));
        at += end - coded;
    }
    store32(it->out, (uint32_t)(at - it->out - HEAD));
    it->out = at;
    return true;
}

/* ------------------------------------------------------------------ Python */

static bool known_kind(int size, int magnitude, int exponent, kind *found)
{
    bool fine = (size == 1 || size == 2 || size == 4 || size == 8) && exponent >= 0 &&
                exponent < 8 * size;
    if (!fine)
        PyErr_Format(PyExc_ValueError, "no numbers of %d bytes with exponents of %d bits", size,
                     exponent);
    *found = (kind){size, magnitude != 0, exponent};
    return fine;
}

static PyObject *scanned(Py_buffer *at, kind kind)
{
    Py_ssize_t count = numbers(&at[0], kind.size);
    if (count < 0 || !is_size("base", at[1].len, at[0].len) ||
        !is_size("tokens", at[2].len, count) ||
        !is_size("counts", at[3].len, (Py_ssize_t)CONTEXTS * SYMBOLS * 4))
        return NULL;
    if ((uintptr_t)at[3].buf % 4)
        return PyErr_Format(PyExc_ValueError, "counts are not aligned");
    uint32_t *counts = at[3].buf, *own = token_counts();
    uint8_t *contexts = scratch((size_t)count + 1);
    if (!own || !contexts)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    seen seen = best_scan(at[0].buf, at[1].buf, (size_t)count, kind, at[2].buf, contexts, own);
    for (size_t context = seen.lowest; context <= seen.highest; context++) {
        uint32_t *found = own + context * SYMBOLS;
        add_up(own, context);
        for (size_t i = 0; i < SYMBOLS; i++)
            counts[context * SYMBOLS + i] += found[i];
        memset(found, 0, SYMBOLS * sizeof *found);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *scan(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    int size, magnitude, exponent;
    kind kind;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iiiw*w*", &at[0], &at[1], &size, &magnitude, &exponent,
                          &at[2], &at[3]))
        return NULL;
    if (known_kind(size, magnitude, exponent, &kind))
        found = scanned(at, kind);
    release(at, 4);
    return found;
}

static PyObject *contexts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    int size, exponent;
    kind kind;
    Py_ssize_t count;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*iiy*w*", &at[0], &size, &exponent, &at[1], &at[2]))
        return NULL;
    if (known_kind(size, 0, exponent, &kind) && (count = numbers(&at[0], size)) >= 0 &&
        is_size("map", at[1].len, CONTEXTS) && is_size("contexts", at[2].len, count)) {
        grouping by = grouping_of(at[1].buf);
        Py_BEGIN_ALLOW_THREADS
        best_contexts(at[0].buf, (size_t)count, kind, &by, at[2].buf);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, 3);
    return found;
}

static PyObject *pack_bits(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    int size, magnitude;
    kind kind;
    Py_ssize_t count, used = -1;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*iiw*", &at[0], &at[1], &at[2], &size, &magnitude,
                          &at[3]))
        return NULL;
    if (known_kind(size, magnitude, 0, &kind) && (count = numbers(&at[0], size)) >= 0 &&
        is_size("base", at[1].len, at[0].len) && is_size("tokens", at[2].len, count)) {
        Py_BEGIN_ALLOW_THREADS
        used = best_pack_bits(at[0].buf, at[1].buf, at[2].buf, (size_t)count, kind, at[3].buf,
                              (size_t)at[3].len);
        Py_END_ALLOW_THREADS
        found = PyLong_FromSsize_t(used);
    }
    release(at, 4);
    return found;
}

static PyObject *decode(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    int size, magnitude, exponent, is_long;
    kind kind;
    Py_ssize_t count;
    bool fine;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iiiw*p", &at[0], &at[1], &size, &magnitude, &exponent,
                          &at[2], &is_long))
        return NULL;
    if (known_kind(size, magnitude, exponent, &kind) && (count = numbers(&at[2], size)) >= 0 &&
        is_size("base", at[1].len, at[2].len)) {
        frame it;
        it.base = at[1].buf, it.out = at[2].buf, it.count = (size_t)count, it.kind = kind;
        it.rows = NULL, it.is_long = is_long;
        Py_BEGIN_ALLOW_THREADS
        fine = decode_plane(&it, at[0].buf, (size_t)at[0].len);
        Py_END_ALLOW_THREADS
        found = PyBool_FromLong(fine);
    }
    release(at, 3);
    return found;
}

/* Whether rows are as many as `which` says, and a table is one of classes. */
static bool known_rows(const Py_buffer *which, const Py_buffer *table, int below, kind kind,
                       row_walk *rows)
{
    if (!rows->columns || rows->skipped >= rows->columns) {
        PyErr_Format(PyExc_ValueError, "no rows of %zu numbers, %zu of them skipped", rows->columns,
                     rows->skipped);
        return false;
    }
    size_t count = (rows->skipped + rows->count + rows->columns - 1) / rows->columns;
    if (!is_size("rows", which->len, (Py_ssize_t)count))
        return false;
    rows->which = which->buf;
    if (below < 0)
        return true;
    rows->table = table->buf;
    rows->step = (classing){kind.size, below};
    if ((kind.size != 4 && kind.size != 8) || below > 8 * kind.size - 8) {
        PyErr_Format(PyExc_ValueError, "no classes of %d bits of numbers of %d bytes", below,
                     kind.size);
        return false;
    }
    return is_size("table", table->len, CLASSES * 2) && items(table, 2, "table") >= 0;
}

/* decode_rows(plane, base, size, magnitude, exponent, out, long, which, wanted, columns, skipped,
 * below, table): as decode, of the rows whose byte in `which` is `wanted`. Below 0 there is no table. */
static PyObject *decode_some(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[5] = {{0}};
    int size, magnitude, exponent, is_long, below;
    kind kind;
    Py_ssize_t count, columns, skipped;
    bool fine;
    row_walk rows = {0};
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iiiw*py*bnniy*", &at[0], &at[1], &size, &magnitude,
                          &exponent, &at[2], &is_long, &at[3], &rows.wanted, &columns, &skipped, &below,
                          &at[4]))
        return NULL;
    if (known_kind(size, magnitude, exponent, &kind) && (count = numbers(&at[2], size)) >= 0 &&
        is_size("base", at[1].len, at[2].len)) {
        rows.columns = columns < 0 ? 0 : (size_t)columns, rows.skipped = (size_t)skipped;
        rows.count = (size_t)count;
        if (known_rows(&at[3], &at[4], below, kind, &rows)) {
            frame it;
            it.base = at[1].buf, it.out = at[2].buf, it.kind = kind, it.rows = &rows;
            it.is_long = is_long;
            Py_BEGIN_ALLOW_THREADS
            it.count = wanted_numbers(rows);
            fine = it.count && decode_plane(&it, at[0].buf, (size_t)at[0].len);
            Py_END_ALLOW_THREADS
            found = PyBool_FromLong(fine);
        }
    }
    release(at, 5);
    return found;
}

/* encode(frame, base, size, magnitude, exponent, way): bytes that are expected; whether layers seem
 * better; the plane, None where it would be no smaller than the frame, or layers seem better; and how
 * many coders took turns. Way 0 only expects, 1 asks about layers, 2 does not. */
static PyObject *encoded(Py_buffer *at, kind kind, int way)
{
    Py_ssize_t count = numbers(&at[0], kind.size);
    if (count < 0 || !is_size("base", at[1].len, at[0].len))
        return NULL;
    if (!count)
        return PyErr_Format(PyExc_ValueError, "no numbers to encode");
    encoding it = {.frame = at[0].buf, .base = at[1].buf, .count = (size_t)count, .kind = kind};
    uint8_t head[MOST_TABLE_BYTES];
    size_t size = 0, raw = (size_t)at[0].len;
    bool fine, layers = false;
    PyThreadState *state = count < ALONE ? NULL : PyEval_SaveThread();
    fine = begin_encoding(&it) && plan(&it);
    if (fine && way < 2)
        layers = layers_seem_better(&it);
    size_t lanes = fine ? lanes_for(it.count, it.tables->bits) : 0;
    if (fine && !way)
        it.expected += (double)(HEAD + write_tables(it.tables, head) +
                                4 * lanes * !one_each(it.tables));
    else if (fine && !layers && it.expected < (double)raw)
        size = write_plane(&it);
    if (state)
        PyEval_RestoreThread(state);
    if (!fine)
        return PyErr_NoMemory();
    if (!size || size >= raw)
        return Py_BuildValue("dOOi", it.expected, layers ? Py_True : Py_False, Py_None, (int)lanes);
    return Py_BuildValue("dOy#i", it.expected, Py_False, it.out, (Py_ssize_t)size, (int)lanes);
}

static PyObject *encode(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[2] = {{0}};
    int size, magnitude, exponent, way;
    kind kind;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iiii", &at[0], &at[1], &size, &magnitude, &exponent,
                          &way))
        return NULL;
    if (known_kind(size, magnitude, exponent, &kind))
        found = encoded(at, kind, way);
    release(at, 2);
    return found;
}

/* encode_layers(frame, base, size, magnitude, exponent): the plane of all layers. */
static PyObject *encode_layers(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[2] = {{0}};
    int size, magnitude, exponent;
    layering it = {0};
    Py_ssize_t count;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iii", &at[0], &at[1], &size, &magnitude, &exponent))
        return NULL;
    if (known_kind(size, magnitude, exponent, &it.kind) && (count = numbers(&at[0], size)) >= 0 &&
        is_size("base", at[1].len, at[0].len)) {
        it.base = at[1].buf, it.count = (size_t)count;
        PyThreadState *state = count < ALONE ? NULL : PyEval_SaveThread();
        bool fine = count && begin_layers(&it, at[0].buf);
        uint8_t *begin = it.out;
        for (int byte = size; fine && byte; byte--)
            fine = write_layer(&it, byte - 1);
        if (state)
            PyEval_RestoreThread(state);
        if (fine)
            found = PyBytes_FromStringAndSize((const char *)begin, it.out - begin);
        else if (count)
            PyErr_NoMemory();
        else
            PyErr_Format(PyExc_ValueError, "no numbers to encode");
    }
    release(at, 2);
    return found;
}

/* differ or restore: of what and base of equal size, aligned to their numbers. */
static PyObject *move(PyObject *arguments, mover *by)
{
    Py_buffer at[3] = {{0}};
    int size, magnitude;
    kind kind;
    Py_ssize_t count;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iiw*", &at[0], &at[1], &size, &magnitude, &at[2]))
        return NULL;
    bool fine = known_kind(size, magnitude, 0, &kind) && (count = numbers(&at[0], size)) >= 0 &&
                is_size("base", at[1].len, at[0].len) && is_size("out", at[2].len, at[0].len);
    if (fine && (((uintptr_t)at[0].buf | (uintptr_t)at[2].buf) % (uintptr_t)size)) {
        PyErr_Format(PyExc_ValueError, "numbers are not aligned");
        fine = false;
    }
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        by(at[0].buf, at[1].buf, (size_t)count, kind, at[2].buf);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, 3);
    return found;
}

static PyObject *differ(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return move(arguments, best_differ);
}

static PyObject *restore(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return move(arguments, best_restore);
}

static PyMethodDef METHODS[] = {
    {"differ", differ, METH_VARARGS, NULL},
    {"restore", restore, METH_VARARGS, NULL},
    {"scan", scan, METH_VARARGS, NULL},
    {"contexts", contexts, METH_VARARGS, NULL},
    {"pack_bits", pack_bits, METH_VARARGS, NULL},
    {"decode", decode, METH_VARARGS, NULL},
    {"decode_rows", decode_some, METH_VARARGS, NULL},
    {"encode", encode, METH_VARARGS, NULL},
    {"encode_layers", encode_layers, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_delta_tokens(PyObject *module)
{
    choose();
    return PyModule_AddFunctions(module, METHODS);
}
