/* Frequency tables: contexts that are alike brought together, and counts scaled to what coders take.
 *
 * A frame asks for a table for each of its planes; in numpy that took longer than to encode it. The
 * twin is frequency_tables.py beside this, with identical results, as far as both round logarithms
 * alike; the stored form is in docs/spec/model.md, section "Coder".
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include <math.h>
#include <stdlib.h>

#include "encoding.h"
#include "targets.h"

enum {
    SYMBOLS = 256,
    CONTEXTS = 256,
    TABLE_BITS = 12,
    TABLE = 1 << TABLE_BITS,
    MAX_GROUPS = 16,
    MOST_COMPARED = 48,
    RAREST = 4096,
    WORTH_A_TABLE = 256,
    UNITS = 256,
    SYMBOL_COST = 10 * UNITS,
    KNOWN_WEIGHTS = 4096,
};

/* Counts of neighbouring contexts, of which `start` is the first; those outside of [first, stop) are
 * zero. */
typedef struct {
    int start;
    size_t first, stop;
    int64_t cost;
    int64_t saved; /* by bringing it together with the one behind it */
    int64_t counts[SYMBOLS];
} group;

static double bits_in[KNOWN_WEIGHTS]; /* count * log2(count) */
static int64_t weights[KNOWN_WEIGHTS];
static double widths[TABLE + 1]; /* log2 of frequencies */

static double computed_bits(int64_t count)
{
    return count ? (double)count * log2((double)count) : 0;
}

static int64_t computed_weight(int64_t count)
{
    return (int64_t)rint(computed_bits(count) * UNITS);
}

static int64_t weight(int64_t count)
{
    return count < KNOWN_WEIGHTS ? weights[count] : computed_weight(count);
}

static size_t least(size_t one, size_t other)
{
    return one < other ? one : other;
}

static size_t most_of(size_t one, size_t other)
{
    return one > other ? one : other;
}

/* What symbols and table take, in parts of a bit: those of one group, or of two together. */
static int64_t cost(const group *one, const group *other)
{
    static const int64_t none[SYMBOLS];
    const int64_t *left = one->counts, *right = other ? other->counts : none;
    size_t first = other ? least(one->first, other->first) : one->first;
    size_t stop = other ? most_of(one->stop, other->stop) : one->stop;
    int64_t total = 0, inside = 0, known = 0;
    for (size_t i = first; i < stop; i++) {
        int64_t count = left[i] + right[i];
        total += count;
        inside += weight(count);
        known += count != 0;
    }
    return weight(total) - inside + known * SYMBOL_COST;
}

static int64_t sum(const int64_t *counts)
{
    int64_t total = 0;
    for (size_t i = 0; i < SYMBOLS; i++)
        total += counts[i];
    return total;
}

static void add(group *to, const group *from)
{
    for (size_t i = from->first; i < from->stop; i++)
        to->counts[i] += from->counts[i];
    to->first = least(to->first, from->first);
    to->stop = most_of(to->stop, from->stop);
}

/* Rare neighbours brought together without a look, to no more than `most`: the place of each, and how
 * many places there are. `sums` become those of the places. */
static size_t few(int64_t *sums, size_t count, int64_t most, int64_t total, size_t *places)
{
    size_t kept = 0;
    int64_t before = 0, place = -1;
    for (size_t i = 0; i < count; i++) {
        int64_t here = sums[i];
        before += here;
        int64_t at = (before - 1) * most / total;
        if (at != place)
            sums[kept++] = here;
        else
            sums[kept - 1] += here;
        places[i] = kept - 1;
        place = at;
    }
    return kept;
}

static void compare(group *one, const group *other)
{
    one->saved = one->cost + other->cost - cost(one, other);
}

/* The two neighbours that save most brought together, while they save or are too many. `order` says
 * which are left, from the first to the last. */
static size_t brought_together(group *groups, size_t count, uint8_t *order)
{
    for (size_t i = 0; i < count; i++) {
        order[i] = (uint8_t)i;
        groups[i].cost = cost(&groups[i], NULL);
    }
    for (size_t i = 0; i + 1 < count; i++)
        compare(&groups[i], &groups[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (groups[order[i]].saved > groups[order[best]].saved)
                best = i;
        group *one = &groups[order[best]], *other = &groups[order[best + 1]];
        if (one->saved <= 0 && count <= MAX_GROUPS)
            break;
        one->cost += other->cost - one->saved;
        add(one, other);
        memmove(order + best + 1, order + best + 2, count - best - 2);
        count--;
        if (best + 1 < count)
            compare(one, &groups[order[best + 1]]);
        if (best)
            compare(&groups[order[best - 1]], one);
    }
    return count;
}

/* Counts scaled to add up to TABLE; what was counted keeps at least 1. */
static void scale(const group *from, uint16_t *frequencies)
{
    const int64_t *counts = from->counts;
    int64_t total = sum(counts), scaled[SYMBOLS], left = -TABLE;
    memset(frequencies, 0, SYMBOLS * sizeof *frequencies);
    for (size_t i = from->first; i < from->stop; i++) {
        scaled[i] = counts[i] ? (counts[i] * TABLE + total / 2) / total : 0;
        if (counts[i] && !scaled[i])
            scaled[i] = 1;
        left += scaled[i];
    }
    while (left) {
        size_t largest = from->first;
        for (size_t i = from->first + 1; i < from->stop; i++)
            if (scaled[i] > scaled[largest])
                largest = i;
        int64_t taken = left > 0 && left > scaled[largest] / 4 ? scaled[largest] / 4 : left;
        scaled[largest] -= taken;
        left -= taken;
    }
    for (size_t i = from->first; i < from->stop; i++)
        frequencies[i] = (uint16_t)scaled[i];
}

/* Adds a row of counts, of which one is not zero. */
static void add_row(group *to, const uint32_t *row)
{
    size_t first = 0, stop = SYMBOLS;
    while (!row[first])
        first++;
    while (!row[stop - 1])
        stop--;
    for (size_t i = first; i < stop; i++)
        to->counts[i] += row[i];
    to->first = least(to->first, first);
    to->stop = most_of(to->stop, stop);
}

/* Kept from plane to plane. */
static _Thread_local group groups_of_thread[MOST_COMPARED];

/* The groups of `contexts` rows of counts, in `order`; none of them when nothing was counted. Rows
 * that are not `used`, if that is said, are not looked at. */
static size_t grouped(const uint32_t *counts, size_t contexts, const uint8_t *used, uint8_t *order)
{
    size_t rows[CONTEXTS], places[CONTEXTS], further[CONTEXTS], known = 0;
    int64_t sums[CONTEXTS], total = 0;
    for (size_t context = 0; context < contexts; context++) {
        int64_t here = 0;
        if (used && !used[context])
            continue;
        for (size_t i = 0; i < SYMBOLS; i++)
            here += counts[context * SYMBOLS + i];
        rows[known] = context;
        places[known] = further[known] = known;
        sums[known] = here;
        known += here != 0;
        total += here;
    }
    if (!total)
        return 0;
    int64_t most = 1 + total / WORTH_A_TABLE;
    most = most < RAREST ? most : RAREST;
    size_t count = known;
    if ((int64_t)count > most || most > MOST_COMPARED)
        count = few(sums, count, most, total, places);
    if (count > MOST_COMPARED)
        count = few(sums, count, MOST_COMPARED, total, further);
    for (size_t i = 0; i < known; i++) {
        size_t place = further[places[i]];
        group *to = &groups_of_thread[place];
        if (!i || place != further[places[i - 1]])
            *to = (group){.start = (int)rows[i], .first = SYMBOLS};
        add_row(to, counts + rows[i] * SYMBOLS);
    }
    return brought_together(groups_of_thread, count, order);
}

/* Bits that counted symbols take. */
static double bits_of(const group *from, const uint16_t *frequencies)
{
    double bits = 0;
    for (size_t i = from->first; i < from->stop; i++)
        if (from->counts[i])
            bits += (double)from->counts[i] * (TABLE_BITS - widths[frequencies[i]]);
    return bits;
}

bool make_tables(const uint32_t *counts, size_t contexts, const uint8_t *used, made_tables *made)
{
    uint8_t order[MOST_COMPARED];
    made->rows = grouped(counts, contexts, used, order);
    made->bits = 0;
    memset(made->groups, 0, CONTEXTS);
    for (size_t i = 0; i < made->rows; i++) {
        const group *one = &groups_of_thread[order[i]];
        uint16_t *frequencies = made->frequencies + i * SYMBOLS;
        if (i)
            memset(made->groups + one->start, (int)i, (size_t)(CONTEXTS - one->start));
        memcpy(made->counted + i * SYMBOLS, one->counts, sizeof one->counts);
        scale(one, frequencies);
        made->bits += bits_of(one, frequencies);
    }
    return made->rows;
}

/* group_counts(counts, groups, frequencies, counted): how many rows of `frequencies` and `counted`
 * are set, and the bits that the symbols take. */
static PyObject *made(Py_buffer *at)
{
    Py_ssize_t cells = items(&at[0], 4, "counts");
    size_t contexts = (size_t)(cells < 0 ? 0 : cells) / SYMBOLS;
    if (cells < 0)
        return NULL;
    if (!contexts || contexts > CONTEXTS || cells % SYMBOLS)
        return PyErr_Format(PyExc_ValueError, "no counts of %zu contexts", contexts);
    if (!is_size("groups", at[1].len, CONTEXTS) ||
        !is_size("frequencies", at[2].len, MAX_GROUPS * SYMBOLS * 2) ||
        !is_size("counted", at[3].len, MAX_GROUPS * SYMBOLS * 8) ||
        items(&at[2], 2, "frequencies") < 0 || items(&at[3], 8, "counted") < 0)
        return NULL;
    made_tables *tables = calloc(1, sizeof *tables);
    if (!tables)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    make_tables(at[0].buf, contexts, NULL, tables);
    Py_END_ALLOW_THREADS
    size_t rows = tables->rows, cells_made = rows * SYMBOLS;
    double bits = tables->bits;
    memcpy(at[1].buf, tables->groups, CONTEXTS);
    memcpy(at[2].buf, tables->frequencies, cells_made * sizeof *tables->frequencies);
    memcpy(at[3].buf, tables->counted, cells_made * sizeof *tables->counted);
    free(tables);
    return Py_BuildValue("nd", (Py_ssize_t)rows, bits);
}

static PyObject *group_counts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    if (!PyArg_ParseTuple(arguments, "y*w*w*w*", &at[0], &at[1], &at[2], &at[3]))
        return NULL;
    PyObject *found = made(at);
    release(at, 4);
    return found;
}

/* Numbers of 12 bits, two in three bytes, the first in the lower bits. */
typedef struct {
    uint8_t *at;
    uint32_t half; /* the first of two, where `odd` */
    bool odd;
} pairs;

static void put(pairs *to, uint32_t value)
{
    if (to->odd) {
        uint32_t both = to->half | value << TABLE_BITS;
        *to->at++ = (uint8_t)both;
        *to->at++ = (uint8_t)(both >> 8);
        *to->at++ = (uint8_t)(both >> 16);
    }
    to->half = value;
    to->odd = !to->odd;
}

/* The tables as they are stored; the bytes that they take. */
static size_t written(const uint8_t *groups, const uint16_t *frequencies, size_t rows, uint8_t *out)
{
    uint8_t *at = out;
    *at++ = (uint8_t)(rows - 1);
    for (size_t context = 1; context < CONTEXTS; context++)
        if (groups[context] != groups[context - 1])
            *at++ = (uint8_t)context;
    pairs to = {at + 2 * rows, 0, false};
    for (size_t row = 0; row < rows; row++) {
        const uint16_t *of = frequencies + row * SYMBOLS;
        size_t first = 0, last = SYMBOLS - 1;
        while (first < SYMBOLS - 1 && !of[first])
            first++;
        while (last > first && !of[last])
            last--;
        *at++ = (uint8_t)first;
        *at++ = (uint8_t)(last - first);
        for (size_t i = first; i < last; i++)
            put(&to, of[i]);
    }
    if (to.odd) {
        *to.at++ = (uint8_t)to.half;
        *to.at++ = (uint8_t)(to.half >> 8);
    }
    return (size_t)(to.at - out);
}

size_t write_tables(const made_tables *made, uint8_t *out)
{
    return written(made->groups, made->frequencies, made->rows, out);
}

static bool groups_ascend(const uint8_t *groups, size_t rows)
{
    bool fine = !groups[0] && groups[CONTEXTS - 1] == rows - 1;
    for (size_t i = 1; i < CONTEXTS; i++)
        fine &= groups[i] == groups[i - 1] || groups[i] == groups[i - 1] + 1;
    return fine;
}

static PyObject *encoded(Py_buffer *at)
{
    Py_ssize_t cells = items(&at[1], 2, "frequencies");
    if (cells < 0 || !is_size("groups", at[0].len, CONTEXTS))
        return NULL;
    size_t rows = (size_t)cells / SYMBOLS;
    if (!rows || rows > MAX_GROUPS || cells % SYMBOLS || !groups_ascend(at[0].buf, rows))
        return PyErr_Format(PyExc_ValueError, "no tables of %zu groups", rows);
    uint8_t out[3 * MAX_GROUPS + 3 * MAX_GROUPS * SYMBOLS / 2];
    size_t size = written(at[0].buf, at[1].buf, rows, out);
    return PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)size);
}

static PyObject *encode_groups(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[2] = {{0}};
    if (!PyArg_ParseTuple(arguments, "y*y*", &at[0], &at[1]))
        return NULL;
    PyObject *found = encoded(at);
    release(at, 2);
    return found;
}

/* Bits of symbols that were counted by context, were there as many as one likes (Miller and Madow). */
static double entropy(const uint32_t *counts, size_t contexts)
{
    double bits = 0;
    int64_t free_symbols = 0;
    for (size_t context = 0; context < contexts; context++, counts += SYMBOLS) {
        int64_t total = 0, known = 0;
        double inside = 0;
        for (size_t i = 0; i < SYMBOLS; i++) {
            uint32_t count = counts[i];
            if (!count)
                continue;
            total += count;
            known++;
            inside += count < KNOWN_WEIGHTS ? bits_in[count] : computed_bits(count);
        }
        if (known) {
            bits += computed_bits(total) - inside;
            free_symbols += known - 1;
        }
    }
    return bits + (double)free_symbols / (2 * log(2));
}

double entropy_bits(const uint32_t *counts, size_t contexts)
{
    return entropy(counts, contexts);
}

static PyObject *entropy_of(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at = {0};
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*", &at))
        return NULL;
    Py_ssize_t cells = items(&at, 4, "counts");
    if (cells >= 0 && !is_size("counts", at.len, cells / SYMBOLS * SYMBOLS * 4))
        cells = -1;
    if (cells >= 0)
        found = PyFloat_FromDouble(entropy(at.buf, (size_t)cells / SYMBOLS));
    release(&at, 1);
    return found;
}

static PyMethodDef METHODS[] = {
    {"entropy", entropy_of, METH_VARARGS, NULL},
    {"encode_groups", encode_groups, METH_VARARGS, NULL},
    {"group_counts", group_counts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_frequency_tables(PyObject *module)
{
    for (int64_t count = 0; count < KNOWN_WEIGHTS; count++) {
        bits_in[count] = computed_bits(count);
        weights[count] = computed_weight(count);
    }
    for (int frequency = 1; frequency <= TABLE; frequency++)
        widths[frequency] = log2(frequency);
    return PyModule_AddFunctions(module, METHODS);
}
