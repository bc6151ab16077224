/* The extension module `_kernels`: rows, their sums and digests, orders, files,
 * memory of results. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

static int (*PARTS[])(PyObject *) = {add_files,         add_jpeg_header,    add_number_spans,
                                     add_order,         add_packed_numbers, add_result_memory,
                                     add_row_digests,   add_row_sums,       add_rows,
                                     NULL};

EXTENSION(_kernels, PARTS)
