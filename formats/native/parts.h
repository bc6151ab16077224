/* Parts of the two extension modules: each adds its functions, and chooses its paths for this machine.
 *
 * Only what Python 3.11's limited API has is used, so one build serves every later version.
 */
#ifndef TENSORREPO_PARTS_H
#define TENSORREPO_PARTS_H

#include <Python.h>

#define PART __attribute__((visibility("hidden")))

/* What `_kernels` is made of. */
PART int add_digests(PyObject *module);
PART int add_files(PyObject *module);
PART int add_order(PyObject *module);
PART int add_planes(PyObject *module);
PART int add_rows(PyObject *module);

/* What `_codecs` is made of. */
PART int add_coder(PyObject *module);
PART int add_distances(PyObject *module);

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
