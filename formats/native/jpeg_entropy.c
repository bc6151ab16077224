/* Entropy coding of JPEG scans, for pictures that are kept as progressive ones.
 *
 * decode_scan reads the bits of one scan into coefficients, encode_scan writes them. Both let go of the
 * interpreter lock. The twin in Python is jpeg_entropy.py beside this, with identical results.
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "jpeg_scan_read.h"
#include "jpeg_scan_write.h"

#include "parts.h"

enum {
    SCAN_NUMBERS = 8,
    COMPONENT_NUMBERS = 6,
    MOST_UNITS = 1 << 16, /* across or down: so places fit 64 bits */
    MOST_STRIDE = 1 << 20,
};

static bool known_scan(const Py_buffer *numbers_of, Py_ssize_t blocks, scan *by)
{
    const int32_t *of = numbers_of->buf;
    Py_ssize_t count = items(numbers_of, 4, "geometry");
    if (count < 0)
        return false;
    Py_ssize_t components = (count - SCAN_NUMBERS) / COMPONENT_NUMBERS;
    bool fine = components >= 1 && components <= MOST_COMPONENTS &&
                count == SCAN_NUMBERS + components * COMPONENT_NUMBERS;
    if (fine) {
        *by = (scan){of[0], of[1], of[2], (int)components, {{0}}, of[3], of[4], of[5], of[6]};
        bool sequential = !by->first && by->last == BLOCK - 1, dc = !by->first && !by->last;
        bool bands = by->first > 0 && by->first <= by->last && by->last < BLOCK && components == 1;
        fine = by->units_wide > 0 && by->units_high > 0 && by->interval >= 0 && by->low >= 0 &&
               by->low < 4 && (!by->high || by->high == by->low + 1) && !of[7] &&
               (bands || ((sequential || dc) && !by->high && !by->low)) &&
               by->units_wide <= MOST_UNITS && by->units_high <= MOST_UNITS;
    }
    for (Py_ssize_t i = 0; fine && i < components; i++, of += COMPONENT_NUMBERS) {
        const int32_t *from = of + SCAN_NUMBERS;
        component *c = &by->of[i];
        *c = (component){from[0], from[1], from[2], from[3], from[4], from[5]};
        fine = c->first >= 0 && c->stride > 0 && c->stride <= MOST_STRIDE && c->wide > 0 && c->wide <= MOST_SAMPLING &&
               c->high > 0 && c->high <= MOST_SAMPLING && c->dc >= 0 && c->dc < 4 && c->ac >= 0 &&
               c->ac < 4 &&
               c->first + (by->units_high * c->high - 1) * c->stride + by->units_wide * c->wide <=
                   blocks;
    }
    if (!fine)
        PyErr_SetString(PyExc_ValueError, "geometry: no scan of these blocks");
    return fine;
}

/* The number of blocks; -1 and an error where the buffer holds something else. */
static Py_ssize_t blocks_of(const Py_buffer *buffer)
{
    if (items(buffer, 2, "blocks") < 0 ||
        !is_size("blocks", buffer->len, buffer->len / (2 * BLOCK) * (2 * BLOCK)))
        return -1;
    return buffer->len / (2 * BLOCK);
}

static PyObject *raised(outcome found)
{
    if (found == NO_MEMORY)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, "no scan of a JPEG, or a damaged one");
    return NULL;
}

static PyObject *py_decode_scan(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    Py_ssize_t start, blocks;
    scan by;
    size_t stop;
    int padding;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*ny*y*w*", &at[0], &start, &at[1], &at[2], &at[3]))
        return NULL;
    if (start < 0 || start > at[0].len)
        PyErr_Format(PyExc_ValueError, "start %zd of %zd bytes", start, at[0].len);
    else if (is_size("tables", at[1].len, TABLES * TABLE_BYTES) &&
             (blocks = blocks_of(&at[3])) >= 0 && known_scan(&at[2], blocks, &by)) {
        outcome found;
        Py_BEGIN_ALLOW_THREADS
        found = decode_scan((const uint8_t *)at[0].buf + start, (size_t)(at[0].len - start),
                            at[1].buf, &by, at[3].buf, &stop, &padding);
        Py_END_ALLOW_THREADS
        result = found == FINE ? Py_BuildValue("ni", start + (Py_ssize_t)stop, padding)
                               : raised(found);
    }
    release(at, 4);
    return result;
}

static PyObject *py_encode_scan(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    int padding;
    scan by;
    Py_ssize_t blocks;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*i", &at[0], &at[1], &at[2], &padding))
        return NULL;
    if (is_size("tables", at[1].len, TABLES * TABLE_BYTES) &&
        (blocks = blocks_of(&at[0])) >= 0 && known_scan(&at[2], blocks, &by)) {
        outcome found;
        writer to = {0};
        Py_BEGIN_ALLOW_THREADS
        found = encode_scan(at[0].buf, at[1].buf, &by, padding, &to);
        Py_END_ALLOW_THREADS
        result = found == FINE ? PyBytes_FromStringAndSize((char *)to.data, (Py_ssize_t)to.size)
                               : raised(found);
        free(to.data);
    }
    release(at, 3);
    return result;
}

static PyMethodDef METHODS[] = {
    {"decode_scan", py_decode_scan, METH_VARARGS, NULL},
    {"encode_scan", py_encode_scan, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_jpeg_entropy(PyObject *module)
{
    return PyModule_AddFunctions(module, METHODS);
}
