/* Parts of the two extension modules: each adds its functions, and chooses its paths for this machine.
 *
 * Only what Python 3.11's limited API has is used, so one build serves every later version.
 */
#ifndef TENSORREPO_PARTS_H
#define TENSORREPO_PARTS_H

#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#define PART __attribute__((visibility("hidden")))

/* What `_kernels` is made of. */
PART int add_files(PyObject *module);
PART int add_jpeg_header(PyObject *module);
PART int add_number_spans(PyObject *module);
PART int add_order(PyObject *module);
PART int add_packed_numbers(PyObject *module);
PART int add_result_memory(PyObject *module);
PART int add_row_digests(PyObject *module);
PART int add_row_sums(PyObject *module);
PART int add_rows(PyObject *module);

/* What `_codecs` is made of. */
PART int add_delta_tokens(PyObject *module);
PART int add_encoding(PyObject *module);
PART int add_frequency_tables(PyObject *module);
PART int add_jpeg_entropy(PyObject *module);
PART int add_planes(PyObject *module);
PART int add_rans(PyObject *module);
PART int add_row_moves(PyObject *module);
PART int add_products(PyObject *module);
PART int add_signatures(PyObject *module);
PART int add_stored_planes(PyObject *module);

/* Sets an error where a size is not what it must be. */
static inline bool is_size(const char *name, Py_ssize_t found, Py_ssize_t expected)
{
    if (found != expected)
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes, expected %zd", name, found, expected);
    return found == expected;
}

/* The items of a buffer, `width` bytes each; -1 and an error where it holds something else. */
static inline Py_ssize_t items(const Py_buffer *buffer, Py_ssize_t width, const char *name)
{
    if (buffer->len % width || (uintptr_t)buffer->buf % (size_t)width) {
        PyErr_Format(PyExc_ValueError, "%s: %zd bytes are not aligned numbers of %zd", name,
                     buffer->len, width);
        return -1;
    }
    return buffer->len / width;
}

/* Numbers of a frame, aligned or not; -1 and an error where its bytes are not whole numbers. */
static inline Py_ssize_t numbers(const Py_buffer *frame, int size)
{
    return is_size("frame", frame->len, frame->len / size * size) ? frame->len / size : -1;
}

/* Of buffers that were never filled nothing is released, if they are zero. */
static inline void release(Py_buffer *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        PyBuffer_Release(&buffers[i]);
}

/* The extension module of this name, whose `parts` end in NULL. */
#define EXTENSION(name, parts)                                                                \
    static int filled(PyObject *module)                                                       \
    {                                                                                         \
        for (int (**part)(PyObject *) = parts; *part; part++)                                 \
            if ((*part)(module))                                                              \
                return -1;                                                                    \
        return 0;                                                                             \
    }                                                                                         \
    static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)filled}, {0, NULL}};             \
    static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = #name, .m_slots = SLOTS};   \
    PyMODINIT_FUNC PyInit_##name(void)                                                        \
    {                                                                                         \
        return PyModuleDef_Init(&MODULE);                                                     \
    }

#endif
