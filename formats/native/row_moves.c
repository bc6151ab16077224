/* Rows of a frame beside those of a base: which are alike, and how far most of their numbers moved.
 *
 * Weight decay moves a number by an amount that follows from its class, the eight bits below the
 * exponent. frequent counts distances by class, in a sample; step adds them to a base; alike counts
 * equal numbers in each row. All let go of the interpreter lock. The twin in numpy is row_moves.py
 * beside this, with identical results; the layout is in docs/spec/model.md, section "Decay".
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

/* The cell of one sampled number, or -1 where its distance is too large. */
INLINE Py_ssize_t cell_of(const sampling *of, size_t i)
{
    uint64_t distance, class;
    if (of->by.size == 4) {
        U32 moved;
        moved32(of->frame + 4 * i, of->base + 4 * i, 1, true, &moved);
        distance = moved;
        class = load32(of->base + 4 * i) >> of->by.below;
    } else {
        U64 moved;
        moved64(of->frame + 8 * i, of->base + 8 * i, 1, true, &moved);
        distance = moved;
        class = load64(of->base + 8 * i) >> of->by.below;
    }
    if (distance > FARTHEST)
        return -1;
    return (Py_ssize_t)((class & (CLASSES - 1)) * DISTANCES + distance);
}

/* Of each class the distance that is most frequent, the least of several; how many of the sampled
 * numbers moved, by what is most frequent among those of their class that did. `counts` are zero, and
 * a sample touches few of them. */
static size_t frequent_in(const sampling *of, uint32_t *counts, uint16_t *table)
{
    uint32_t most[CLASSES] = {0}, moved[CLASSES] = {0};
    size_t sum = 0;
    memset(table, 0, CLASSES * sizeof *table);
    for (size_t i = 0; i < of->count; i += of->stride) {
        Py_ssize_t cell = cell_of(of, i);
        if (cell >= 0)
            counts[cell]++;
    }
    for (size_t i = 0; i < of->count; i += of->stride) {
        Py_ssize_t cell = cell_of(of, i);
        if (cell < 0)
            continue;
        size_t class = (size_t)cell / DISTANCES, distance = (size_t)cell % DISTANCES;
        uint32_t here = counts[cell];
        if (here > most[class] || (here == most[class] && distance < table[class])) {
            most[class] = here;
            table[class] = (uint16_t)distance;
        }
        if (distance && here > moved[class])
            moved[class] = here;
    }
    for (size_t i = 0; i < of->count; i += of->stride) {
        Py_ssize_t cell = cell_of(of, i);
        if (cell >= 0)
            counts[cell] = 0;
    }
    for (size_t class = 0; class < CLASSES; class++)
        sum += moved[class];
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
        uint32_t *counts = zeros(ROW_COUNTS, CLASSES * DISTANCES * sizeof *counts);
        if (counts) {
            Py_BEGIN_ALLOW_THREADS
            moved = frequent_in(&of, counts, at[2].buf);
            Py_END_ALLOW_THREADS
            found = PyLong_FromSize_t(moved);
        } else {
            PyErr_NoMemory();
        }
    }
    release(at, 3);
    return found;
}

static PyMethodDef METHODS[] = {
    {"alike", alike, METH_VARARGS, NULL},
    {"step", step, METH_VARARGS, NULL},
    {"frequent", frequent, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_row_moves(PyObject *module)
{
    if (is_wide()) {
        best_alike = alike_wide;
        best_step = step_wide;
    }
    return PyModule_AddFunctions(module, METHODS);
}
