/* The extension module `_codecs`: what encodes and decodes delta frames. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

static int (*PARTS[])(PyObject *) = {add_delta_tokens, add_encoding,  add_frequency_tables,
                                     add_jpeg_entropy, add_planes,    add_rans,
                                     add_row_moves,    add_products,  add_signatures,
                                     add_stored_planes, NULL};

EXTENSION(_codecs, PARTS)
