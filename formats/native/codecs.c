/* The extension module `_codecs`: what encodes and decodes delta frames. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

static int (*PARTS[])(PyObject *) = {add_coder, add_distances, NULL};

EXTENSION(_codecs, PARTS)
