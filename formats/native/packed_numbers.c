/* Numbers that are stored as distances of a few bits each from the smallest one.
 *
 * Bit b of distance i is bit i * width + b, so eight distances begin and end at whole bytes. The
 * twin in numpy is packed_numbers.py beside this. Only what Python 3.11's limited API has is used.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"
#include "targets.h"

enum { GROUP = 8, WINDOW = 8, MOST_BITS = 56, LOCKED_BYTES = 64 << 10 };

INLINE uint64_t window(const uint8_t *at)
{
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* `groups` groups, of which each distance lies in a window of 8 bytes that may be read. */
#define UNPACK(BITS)                                                                               \
    INLINE void unpack##BITS(const uint8_t *packed, size_t groups, unsigned width,                 \
                             uint64_t minimum, uint8_t *out)                                       \
    {                                                                                              \
        const uint64_t mask = ((uint64_t)1 << width) - 1;                                          \
        for (size_t group = 0; group < groups; group++, packed += width) {                         \
            uint##BITS##_t numbers[GROUP];                                                         \
            for (unsigned place = 0; place < GROUP; place++) {                                     \
                unsigned bit = place * width;                                                      \
                uint64_t distance = window(packed + (bit >> 3)) >> (bit & 7) & mask;               \
                numbers[place] = (uint##BITS##_t)(distance + minimum);                             \
            }                                                                                      \
            memcpy(out + group * sizeof numbers, numbers, sizeof numbers);                         \
        }                                                                                          \
    }
UNPACK(8)
UNPACK(16)
UNPACK(32)
UNPACK(64)

EVERY_MACHINE(void, unpack, (const uint8_t *packed, size_t groups, unsigned width,
                             uint64_t minimum, uint8_t *out, Py_ssize_t size), {
    switch (size) {
    case 1: unpack8(packed, groups, width, minimum, out); return;
    case 2: unpack16(packed, groups, width, minimum, out); return;
    case 4: unpack32(packed, groups, width, minimum, out); return;
    default: unpack64(packed, groups, width, minimum, out);
    }
});

/* Whole groups where they lie; what is near the end from a copy with room behind it. */
static void unpack_all(const uint8_t *packed, size_t packed_bytes, size_t count, unsigned width,
                       uint64_t minimum, uint8_t *out, Py_ssize_t size)
{
    size_t whole = packed_bytes < WINDOW ? 0 : (packed_bytes - WINDOW) / width;
    whole = whole < count / GROUP ? whole : count / GROUP;
    best_unpack(packed, whole, width, minimum, out, size);
    for (size_t at = whole * GROUP; at < count; at += GROUP) {
        uint8_t room[MOST_BITS + WINDOW] = {0};
        uint8_t numbers[GROUP * sizeof(uint64_t)];
        size_t from = at / GROUP * width, left = packed_bytes - from;
        size_t few = count - at < GROUP ? count - at : GROUP;
        memcpy(room, packed + from, left < width ? left : width);
        best_unpack(room, 1, width, minimum, numbers, size);
        memcpy(out + at * (size_t)size, numbers, few * (size_t)size);
    }
}

static PyObject *unpack_numbers(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer buffers[2] = {{0}};
    Py_buffer *packed = &buffers[0], *out = &buffers[1];
    unsigned width;
    unsigned long long minimum;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "y*IKnw*", packed, &width, &minimum, &size, out))
        return NULL;
    PyObject *result = NULL;
    if ((size != 1 && size != 2 && size != 4 && size != 8) || !width || width > MOST_BITS ||
        width > 8 * (size_t)size || out->len % size) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no numbers of %zd, of width %u", out->len,
                     size, width);
    } else {
        size_t count = (size_t)(out->len / size);
        /* In two parts, so that no count of bits overflows. */
        size_t expected = count / GROUP * width + (count % GROUP * width + 7) / 8;
        if (is_size("packed numbers", packed->len, (Py_ssize_t)expected)) {
            if (out->len < LOCKED_BYTES) {
                unpack_all(packed->buf, expected, count, width, minimum, out->buf, size);
            } else {
                Py_BEGIN_ALLOW_THREADS
                unpack_all(packed->buf, expected, count, width, minimum, out->buf, size);
                Py_END_ALLOW_THREADS
            }
            result = Py_NewRef(Py_None);
        }
    }
    release(buffers, 2);
    return result;
}

static PyMethodDef METHODS[] = {
    {"unpack_numbers", unpack_numbers, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_packed_numbers(PyObject *module)
{
#if defined(__x86_64__)
    if (is_wide())
        best_unpack = unpack_wide;
#endif
    return PyModule_AddFunctions(module, METHODS);
}
