/* Rows of a frame beside those of a base: which are alike, and how far most of their numbers moved.
 *
 * Weight decay moves a number by an amount that follows from its class, the eight bits below the
 * exponent. frequent counts distances by class, in a sample; step adds them to a base; alike counts
 * equal numbers in each row; take_rows copies rows that moved, and others, to where each lie together.
 * All let go of the interpreter lock. The twin in numpy is row_moves.py beside this, with identical
 * results; the layout is in docs/spec/model.md, section "Decay".
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include "encoding.h"
#include "numbers.h"
#include "row_steps.h"

enum {
    FARTHEST = 2047, /* a distance that is counted */
    DISTANCES = FARTHEST + 1,
};

/* ------------------------------------------------------------------ alike */

INLINE uint32_t alike_run(const uint8_t *one, const uint8_t *other, size_t count, int size)
{
    uint32_t found = 0;
    switch (size) {
    case 1:
        for (size_t i = 0; i < count; i++)
            found += one[i] == other[i];
        break;
    case 2:
        for (size_t i = 0; i < count; i++)
            found += load16(one + 2 * i) == load16(other + 2 * i);
        break;
    case 4:
        for (size_t i = 0; i < count; i++)
            found += load32(one + 4 * i) == load32(other + 4 * i);
        break;
    default:
        for (size_t i = 0; i < count; i++)
            found += load64(one + 8 * i) == load64(other + 8 * i);
    }
    return found;
}

/* Of each row; `skipped` numbers of the first one lie before the frame, and the last may be cut. */
INLINE void alike_body(const uint8_t *one, const uint8_t *other, size_t count, int size,
                       size_t columns, size_t skipped, uint32_t *rows)
{
    for (size_t at = 0, row = 0; at < count; row++) {
        size_t left = columns - (row ? 0 : skipped), start = at * (size_t)size;
        size_t part = count - at < left ? count - at : left;
        rows[row] = alike_run(one + start, other + start, part, size);
        at += part;
    }
}

EVERY_MACHINE(void, alike,
              (const uint8_t *one, const uint8_t *other, size_t count, int size, size_t columns,
               size_t skipped, uint32_t *rows),
              BY_SIZE(size, alike_body(one, other, count, size, columns, skipped, rows)));

/* ------------------------------------------------------------------ frequent distances */

typedef struct {
    const uint8_t *frame, *base;
    size_t count, stride;
    classing by;
} sampling;

/* Distances of the sampled numbers, FARTHEST + 1 for what is farther, and the class of each. */
INLINE void sampled_body(const sampling *of, size_t samples, uint16_t *distances, uint8_t *classes)
{
    union {
        U32 of32[BLOCK];
        U64 of64[BLOCK];
    } frame, base, moved;
    size_t size = (size_t)of->by.size, step = of->stride * size;
    for (size_t at = 0; at < samples; at += BLOCK) {
        size_t part = samples - at < BLOCK ? samples - at : BLOCK;
        const uint8_t *one = of->frame + at * step, *other = of->base + at * step;
        if (size == 4) {
            for (size_t i = 0; i < part; i++) {
                frame.of32[i] = load32(one + i * step);
                base.of32[i] = load32(other + i * step);
            }
            moved32((const uint8_t *)&frame, (const uint8_t *)&base, part, true, moved.of32);
            for (size_t i = 0; i < part; i++) {
                U32 distance = moved.of32[i];
                distances[at + i] = (uint16_t)(distance > FARTHEST ? FARTHEST + 1 : distance);
                classes[at + i] = (uint8_t)(base.of32[i] >> of->by.below);
            }
        } else {
            for (size_t i = 0; i < part; i++) {
                frame.of64[i] = load64(one + i * step);
                base.of64[i] = load64(other + i * step);
            }
            moved64((const uint8_t *)&frame, (const uint8_t *)&base, part, true, moved.of64);
            for (size_t i = 0; i < part; i++) {
                U64 distance = moved.of64[i];
                distances[at + i] = (uint16_t)(distance > FARTHEST ? FARTHEST + 1 : distance);
                classes[at + i] = (uint8_t)(base.of64[i] >> of->by.below);
            }
        }
    }
}

EVERY_MACHINE(void, sampled,
              (const sampling *of, size_t samples, uint16_t *distances, uint8_t *classes),
              sampled_body(of, samples, distances, classes););

/* The most frequent of some distances, the least of several; `moved` is how often the most frequent
 * one above 0 stands there. `counts` are zero, and are left so. */
static uint16_t most_frequent(const uint16_t *distances, size_t count, uint32_t *counts,
                              uint32_t *moved)
{
    uint16_t each[DISTANCES + 1], found = 0; /* no branch asks whether one was there before */
    uint32_t most = 0;
    size_t differing = 0;
    for (size_t i = 0; i < count; i++) {
        each[differing] = distances[i];
        differing += !counts[distances[i]]++;
    }
    *moved = 0;
    for (size_t i = 0; i < differing; i++) {
        uint16_t distance = each[i];
        uint32_t here = counts[distance];
        counts[distance] = 0;
        if (here > most || (here == most && distance < found)) {
            most = here;
            found = distance;
        }
        if (distance && here > *moved)
            *moved = here;
    }
    return found;
}

/* Of each class the distance that is most frequent; how many of the sampled numbers moved, by what is
 * most frequent among those of their class that did. Distances are sorted by class first: counts of
 * all classes would lie in no near cache. `memory` has room for SAMPLE_BYTES of each sample, and of one
 * more. */
enum { SAMPLE_BYTES = 2 * sizeof(uint16_t) + sizeof(uint8_t) };

static size_t frequent_in(const sampling *of, size_t samples, uint8_t *memory, uint16_t *table)
{
    uint16_t *distances = (uint16_t *)memory, *sorted = distances + samples;
    uint8_t *classes = (uint8_t *)(sorted + samples + 1);
    uint32_t counts[DISTANCES] = {0};
    size_t next[CLASSES + 1] = {0}, sum = 0;
    best_sampled(of, samples, distances, classes);
    for (size_t i = 0; i < samples; i++)
        next[classes[i] + 1] += distances[i] <= FARTHEST;
    for (size_t class = 0; class < CLASSES; class++)
        next[class + 1] += next[class];
    for (size_t i = 0; i < samples; i++) { /* what is too far goes behind all, without a branch */
        bool is_near = distances[i] <= FARTHEST;
        sorted[is_near ? next[classes[i]] : samples] = distances[i];
        next[classes[i]] += is_near;
    }
    for (size_t class = 0, start = 0; class < CLASSES; class++) {
        uint32_t moved;
        table[class] = most_frequent(sorted + start, next[class] - start, counts, &moved);
        sum += moved;
        start = next[class];
    }
    return sum;
}

/* ------------------------------------------------------------------ Python */

static bool known_classing(int size, int below, classing *found)
{
    *found = (classing){size, below};
    if ((size == 4 || size == 8) && below >= 0 && below <= 8 * size - 8)
        return true;
    PyErr_Format(PyExc_ValueError, "no classes of %d bits of numbers of %d bytes", below, size);
    return false;
}

static PyObject *alike(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    int size;
    Py_ssize_t columns, skipped, count;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*innw*", &at[0], &at[1], &size, &columns, &skipped,
                          &at[2]))
        return NULL;
    bool fine = size == 1 || size == 2 || size == 4 || size == 8;
    if (!fine || columns < 1 || skipped < 0 || skipped >= columns)
        PyErr_Format(PyExc_ValueError, "no rows of %zd numbers of %d bytes", columns, size);
    else if ((count = numbers(&at[0], size)) >= 0 && is_size("base", at[1].len, at[0].len) &&
             items(&at[2], 4, "rows") >= 0 &&
             is_size("rows", at[2].len, (count + skipped + columns - 1) / columns * 4)) {
        Py_BEGIN_ALLOW_THREADS
        best_alike(at[0].buf, at[1].buf, (size_t)count, size, (size_t)columns, (size_t)skipped,
                   at[2].buf);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, 3);
    return found;
}

static PyObject *step(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    int size, below;
    classing by;
    Py_ssize_t count;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*iiy*w*", &at[0], &size, &below, &at[1], &at[2]))
        return NULL;
    if (known_classing(size, below, &by) && (count = numbers(&at[0], size)) >= 0 &&
        is_size("table", at[1].len, CLASSES * 2) && items(&at[1], 2, "table") >= 0 &&
        is_size("out", at[2].len, at[0].len)) {
        Py_BEGIN_ALLOW_THREADS
        best_step(at[0].buf, (size_t)count, by, at[1].buf, at[2].buf);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, 3);
    return found;
}

static PyObject *frequent(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    int size, below;
    sampling of;
    Py_ssize_t count, stride;
    size_t moved;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iinw*", &at[0], &at[1], &size, &below, &stride, &at[2]))
        return NULL;
    if (stride < 1)
        PyErr_Format(PyExc_ValueError, "one number of %zd", stride);
    else if (known_classing(size, below, &of.by) && (count = numbers(&at[0], size)) >= 0 &&
             is_size("base", at[1].len, at[0].len) &&
             is_size("table", at[2].len, CLASSES * 2) && items(&at[2], 2, "table") >= 0) {
        of.frame = at[0].buf, of.base = at[1].buf;
        of.count = (size_t)count, of.stride = (size_t)stride;
        size_t samples = (of.count + of.stride - 1) / of.stride;
        uint8_t *memory = scratch((samples + 1) * SAMPLE_BYTES);
        if (memory) {
            Py_BEGIN_ALLOW_THREADS
            moved = frequent_in(&of, samples, memory, at[2].buf);
            Py_END_ALLOW_THREADS
            found = PyLong_FromSize_t(moved);
        } else {
            PyErr_NoMemory();
        }
    }
    release(at, 3);
    return found;
}

/* ------------------------------------------------------------------ rows taken apart */

/* Rows that follow each other in two frames. */
typedef struct {
    uint8_t *frame, *base;
    size_t used; /* bytes of either */
} taken_rows;

INLINE void take_row(taken_rows *to, const uint8_t *frame, const uint8_t *base, size_t size)
{
    memcpy(to->frame + to->used, frame, size);
    memcpy(to->base + to->used, base, size);
    to->used += size;
}

typedef struct {
    const uint8_t *frame, *base;
    size_t count, columns, skipped; /* numbers: of all, of a row, of the first one before the frame */
    classing by;
    const uint16_t *table; /* NULL: rows that did not move are left out */
    uint8_t *predicted;    /* room for a row as the table says it */
    uint8_t *marks;        /* of each row: whether it moved otherwise */
    taken_rows moved, calm;
} taking;

/* A row is compared, and taken to where it belongs, while it is in cache. */
static void take_rows(taking *it)
{
    size_t size = (size_t)it->by.size;
    for (size_t at = 0, row = 0; at < it->count; row++) {
        size_t left = it->columns - (row ? 0 : it->skipped), start = at * size;
        size_t part = it->count - at < left ? it->count - at : left;
        const uint8_t *frame = it->frame + start, *base = it->base + start;
        if (it->table) {
            uint32_t alike = 0;
            best_step(base, part, it->by, it->table, it->predicted);
            best_alike(frame, it->predicted, part, it->by.size, part, 0, &alike);
            it->marks[row] = 2 * (size_t)alike <= part;
        } else {
            it->marks[row] = memcmp(frame, base, part * size) != 0;
        }
        if (it->marks[row])
            take_row(&it->moved, frame, base, part * size);
        else if (it->table)
            take_row(&it->calm, frame, it->predicted, part * size);
        at += part;
    }
}

/* Sets an error where one of the buffers does not fit. */
static bool fit_taking(const taking *it, const Py_buffer *at, bool by_table)
{
    size_t rows = (it->count + it->skipped + it->columns - 1) / it->columns;
    bool fine = is_size("base", at[1].len, at[0].len) && is_size("marks", at[3].len, (Py_ssize_t)rows);
    for (size_t i = 4; fine && i < (by_table ? 8 : 6); i++)
        fine = is_size("taken", at[i].len, at[0].len);
    return fine && (!by_table || (is_size("table", at[2].len, CLASSES * 2) &&
                                  items(&at[2], 2, "table") >= 0));
}

/* take_rows(frame, base, size, columns, skipped, below, table, marks, frame, base, calm frame, calm
 * base): marks the rows of which most numbers are not as far from the base's as the table says, and
 * copies them and their bases to the first pair, others and what the table says to the second. Below
 * 0 there is no table, and rows that are as in the base are left out. Bytes in each pair. */
static PyObject *take(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[8] = {{0}};
    int size, below;
    Py_ssize_t columns, skipped, count;
    PyObject *found = NULL;
    taking it = {0};
    if (!PyArg_ParseTuple(arguments, "y*y*inniy*w*w*w*w*w*", &at[0], &at[1], &size, &columns,
                          &skipped, &below, &at[2], &at[3], &at[4], &at[5], &at[6], &at[7]))
        return NULL;
    bool fine = size == 1 || size == 2 || size == 4 || size == 8;
    it.by = (classing){size, below};
    if (!fine || columns < 1 || skipped < 0 || skipped >= columns) {
        PyErr_Format(PyExc_ValueError, "no rows of %zd numbers of %d bytes", columns, size);
    } else if ((below < 0 || known_classing(size, below, &it.by)) &&
               (count = numbers(&at[0], size)) >= 0) {
        it.frame = at[0].buf, it.base = at[1].buf, it.count = (size_t)count;
        it.columns = (size_t)columns, it.skipped = (size_t)skipped, it.marks = at[3].buf;
        it.table = below < 0 ? NULL : at[2].buf;
        it.moved = (taken_rows){at[4].buf, at[5].buf, 0};
        it.calm = (taken_rows){at[6].buf, at[7].buf, 0};
        if (fit_taking(&it, at, below >= 0)) {
            size_t longest = columns < count ? (size_t)columns : (size_t)count;
            it.predicted = scratch(longest * (size_t)size + 1);
            if (it.predicted) {
                Py_BEGIN_ALLOW_THREADS
                take_rows(&it);
                Py_END_ALLOW_THREADS
                found = Py_BuildValue("nn", (Py_ssize_t)it.moved.used, (Py_ssize_t)it.calm.used);
            } else {
                PyErr_NoMemory();
            }
        }
    }
    release(at, 8);
    return found;
}

static PyMethodDef METHODS[] = {
    {"alike", alike, METH_VARARGS, NULL},
    {"step", step, METH_VARARGS, NULL},
    {"frequent", frequent, METH_VARARGS, NULL},
    {"take_rows", take, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_row_moves(PyObject *module)
{
    CHOOSE(alike);
    CHOOSE(sampled);
    choose_step();
    return PyModule_AddFunctions(module, METHODS);
}
