/* Nearest signatures: of each of some rows of bits the others that differ in fewest of them.
 *
 * Each row is compared with all, eight at a time, so that a row of the table is read once for
 * these. Lets go of the interpreter lock. The twin in numpy is signatures.py beside this, with
 * identical results: no two rows are equally far, as places decide.
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include "targets.h"

enum { AT_ONCE = 8, MOST_FEW = 16 };

#if defined(__x86_64__)
#define COUNTING                                                                                   \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi2,popcnt")))
#endif

typedef struct {
    const uint64_t *words; /* (rows, width) */
    const uint8_t *known;  /* of each row whether it has a signature */
    size_t rows, width, few;
} table;

/* Rows that are nearest to one: their keys, ascending. */
typedef struct {
    uint64_t keys[MOST_FEW];
    int64_t places[MOST_FEW];
} ranking;

INLINE void rank(ranking *best, size_t few, uint64_t key, size_t place)
{
    if (key >= best->keys[few - 1])
        return;
    size_t at = few - 1;
    for (; at && best->keys[at - 1] > key; at--) {
        best->keys[at] = best->keys[at - 1];
        best->places[at] = best->places[at - 1];
    }
    best->keys[at] = key;
    best->places[at] = (int64_t)place;
}

INLINE void nearest_body(const table *of, size_t first, size_t count, ranking *best)
{
    for (size_t q = 0; q < count; q++)
        for (size_t i = 0; i < of->few; i++)
            best[q].keys[i] = UINT64_MAX;
    for (size_t row = 0; row < of->rows; row++) {
        const uint64_t *it = of->words + row * of->width;
        for (size_t q = 0; q < count; q++) {
            size_t at = first + q, apart = row < at ? at - row : row - at;
            if (row == at)
                continue;
            uint64_t bits = 0;
            if (of->known[row] && of->known[at]) {
                const uint64_t *one = of->words + at * of->width;
                for (size_t i = 0; i < of->width; i++)
                    bits += (uint64_t)__builtin_popcountll(it[i] ^ one[i]);
            }
            rank(&best[q], of->few, bits << 41 | (uint64_t)apart << 1 | (row > at), row);
        }
    }
}

EVERY_MACHINE(void, nearest, (const table *of, size_t first, size_t count, ranking *best),
              nearest_body(of, first, count, best););

#if defined(COUNTING)
COUNTING static void nearest_counting(const table *of, size_t first, size_t count, ranking *best)
{
    nearest_body(of, first, count, best);
}
#endif

/* ------------------------------------------------------------------ Python */

static bool makes_sense(const table *of, Py_ssize_t few, Py_ssize_t first, Py_ssize_t count)
{
    if (few >= 1 && few <= MOST_FEW && (size_t)few < of->rows && first >= 0 &&
        (size_t)first <= of->rows && (size_t)count <= of->rows - (size_t)first)
        return true;
    PyErr_Format(PyExc_ValueError, "no %zd nearest of %zd rows from %zd among %zu", few, count,
                 first, of->rows);
    return false;
}

static PyObject *nearest_signatures(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    Py_ssize_t few, first, words, places;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*nnw*", &at[0], &at[1], &few, &first, &at[2]))
        return NULL;
    table of = {at[0].buf, at[1].buf, (size_t)at[1].len, 0, (size_t)few};
    if ((words = items(&at[0], 8, "words")) >= 0 && (places = items(&at[2], 8, "out")) >= 0 &&
        makes_sense(&of, few, first, places / (few > 0 ? few : 1)) &&
        is_size("words", at[0].len, words / at[1].len * at[1].len * 8) &&
        is_size("out", at[2].len, places / few * few * 8)) {
        size_t count = (size_t)(places / few);
        int64_t *out = at[2].buf;
        of.width = (size_t)(words / at[1].len);
        Py_BEGIN_ALLOW_THREADS
        for (size_t done = 0; done < count; done += AT_ONCE) {
            ranking best[AT_ONCE];
            size_t some = count - done < AT_ONCE ? count - done : AT_ONCE;
            best_nearest(&of, (size_t)first + done, some, best);
            for (size_t q = 0; q < some; q++)
                memcpy(out + (done + q) * of.few, best[q].places, of.few * sizeof *out);
        }
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, 3);
    return found;
}

static PyMethodDef METHODS[] = {
    {"nearest_signatures", nearest_signatures, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_signatures(PyObject *module)
{
    if (is_wide())
        best_nearest = nearest_wide;
#if defined(COUNTING)
    if (is_newest() && __builtin_cpu_supports("avx512vpopcntdq"))
        best_nearest = nearest_counting;
#endif
    return PyModule_AddFunctions(module, METHODS);
}
