/* How far apart the smallest and the largest of some numbers are, without and with a sign.
 *
 * The twin in numpy is number_spans.py beside this. Only what Python 3.11's limited API has is used.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"
#include "targets.h"

enum { LOCKED_BYTES = 256 << 10 }; /* less is read sooner than the lock would come back */

/* Of all numbers, and of the same read as signed ones, as they stand in an unsigned item. */
typedef struct {
    uint64_t low, high, signed_low, signed_high;
} span;

#define SPAN(BITS)                                                                                 \
    INLINE span span##BITS(const uint8_t *data, size_t count)                                      \
    {                                                                                              \
        const uint##BITS##_t top = (uint##BITS##_t)((uint##BITS##_t)1 << (BITS - 1));              \
        uint##BITS##_t low = (uint##BITS##_t)-1, high = 0, turned_low = low, turned_high = 0;      \
        for (size_t at = 0; at < count; at++) {                                                    \
            uint##BITS##_t number;                                                                 \
            memcpy(&number, data + at * sizeof number, sizeof number);                             \
            uint##BITS##_t turned = number ^ top; /* in the order of signed ones */                \
            low = number < low ? number : low;                                                     \
            high = number > high ? number : high;                                                  \
            turned_low = turned < turned_low ? turned : turned_low;                                \
            turned_high = turned > turned_high ? turned : turned_high;                             \
        }                                                                                          \
        return (span){low, high, (uint##BITS##_t)(turned_low ^ top),                               \
                      (uint##BITS##_t)(turned_high ^ top)};                                        \
    }
SPAN(8)
SPAN(16)
SPAN(32)
SPAN(64)

EVERY_MACHINE(span, span_of, (const uint8_t *data, size_t count, Py_ssize_t size), {
    switch (size) {
    case 1: return span8(data, count);
    case 2: return span16(data, count);
    case 4: return span32(data, count);
    default: return span64(data, count);
    }
});

static PyObject *number_spans(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer data;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "y*n", &data, &size))
        return NULL;
    bool fits = (size == 1 || size == 2 || size == 4 || size == 8) && data.len && !(data.len % size);
    span found = {0};
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no numbers of %zd", data.len, size);
    } else if (data.len < LOCKED_BYTES) {
        found = best_span_of(data.buf, (size_t)(data.len / size), size);
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = best_span_of(data.buf, (size_t)(data.len / size), size);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return fits ? Py_BuildValue("KKKK", found.low, found.high, found.signed_low, found.signed_high)
                : NULL;
}

static PyMethodDef METHODS[] = {
    {"number_spans", number_spans, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_number_spans(PyObject *module)
{
#if defined(__x86_64__)
    if (is_wide())
        best_span_of = span_of_wide;
#endif
    return PyModule_AddFunctions(module, METHODS);
}
