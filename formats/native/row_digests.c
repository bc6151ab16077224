/* Digests of rows: two lanes of 64 bits a row, into which its cells are mixed column by column.
 *
 * They tell rows apart within one process and are stored nowhere. Every step is one-to-one in the
 * lane and in the word, as in xxHash's rounds, and the lanes take other constants: no cell can blind
 * what came before it. They prove nothing against somebody who forges.
 *
 * The twin in numpy is row_digests.py beside this, with identical results.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include "numbers.h"

static const uint64_t FIRST = 0x9E3779B185EBCA87u, SECOND = 0xC2B2AE3D27D4EB4Fu,
                      THIRD = 0x165667B19E3779F9u, FOURTH = 0x85EBCA77C2B2AE63u;

INLINE uint64_t turned_left(uint64_t word, int by)
{
    return word << by | word >> (64 - by);
}

INLINE uint64_t mixed(uint64_t lane, uint64_t word, uint64_t one, uint64_t two)
{
    return turned_left(lane ^ word * two, 31) * one;
}

INLINE uint64_t finished(uint64_t lane)
{
    lane = (lane ^ lane >> 33) * SECOND;
    lane = (lane ^ lane >> 29) * THIRD;
    return lane ^ lane >> 32;
}

/* A cell that is null has no bytes, and a length that no other cell has. */
INLINE void mix_cell(uint64_t *lanes, const uint8_t *cell, size_t length, bool is_null)
{
    uint64_t told = is_null ? UINT64_MAX : length;
    uint64_t first = mixed(lanes[0], told, FIRST, SECOND);
    uint64_t second = mixed(lanes[1], told, THIRD, FOURTH);
    length = is_null ? 0 : length;
    size_t at = 0;
    for (; at + 8 <= length; at += 8) {
        uint64_t word = load64(cell + at);
        first = mixed(first, word, FIRST, SECOND);
        second = mixed(second, word, THIRD, FOURTH);
    }
    if (at < length) {
        uint8_t rest[8] = {0};
        memcpy(rest, cell + at, length - at);
        first = mixed(first, load64(rest), FIRST, SECOND);
        second = mixed(second, load64(rest), THIRD, FOURTH);
    }
    lanes[0] = finished(first);
    lanes[1] = finished(second);
}

/* Whether offsets of `rows` cells ascend within `size` bytes. */
static bool offsets_fit(const int64_t *offsets, Py_ssize_t rows, Py_ssize_t size)
{
    bool fit = offsets[0] >= 0 && offsets[rows] <= size;
    for (Py_ssize_t row = 0; row < rows; row++)
        fit &= offsets[row] <= offsets[row + 1];
    if (!fit)
        PyErr_Format(PyExc_ValueError, "offsets do not ascend within %zd bytes", size);
    return fit;
}

static PyObject *cells_mixed(const Py_buffer *data, const Py_buffer *offsets, const Py_buffer *valid,
                             const Py_buffer *lanes)
{
    Py_ssize_t bounds = items(offsets, 8, "offsets"), words = items(lanes, 8, "lanes");
    if (bounds < 0 || words < 0)
        return NULL;
    if (bounds < 1 || words != 2 * (bounds - 1)) {
        PyErr_Format(PyExc_ValueError, "%zd offsets for %zd lanes", bounds, words);
        return NULL;
    }
    if (valid->obj && !is_size("valid", valid->len, bounds - 1))
        return NULL;
    const int64_t *at = offsets->buf;
    const uint8_t *is_valid = valid->obj ? valid->buf : NULL;
    if (!offsets_fit(at, bounds - 1, data->len))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row + 1 < bounds; row++)
        mix_cell((uint64_t *)lanes->buf + 2 * row, (const uint8_t *)data->buf + at[row],
                 (size_t)(at[row + 1] - at[row]), is_valid && !is_valid[row]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *mix_cells(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer buffers[4] = {{0}};
    PyObject *done = NULL;
    if (PyArg_ParseTuple(arguments, "y*y*z*w*", &buffers[0], &buffers[1], &buffers[2], &buffers[3]))
        done = cells_mixed(&buffers[0], &buffers[1], &buffers[2], &buffers[3]);
    release(buffers, 4);
    return done;
}

static PyMethodDef METHODS[] = {
    {"mix_cells", mix_cells, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_row_digests(PyObject *module)
{
    return PyModule_AddFunctions(module, METHODS);
}
