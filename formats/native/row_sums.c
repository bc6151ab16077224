/* Sums of rows that lie one behind the other, copied on the way: the low halves of their XXH3 of 64
 * bits, seed 0. Pages of rows of one size are filled with rows and sums, and summed themselves.
 *
 * Rows of every length, unlike those that rows.c compares on the way. The interpreter lock is let
 * go of once for all of them. The twin in Python is row_sums.py beside this.
 *
 * Only what Python 3.11's limited API has is used.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"
#include "copyrow.h"

#include <stdlib.h>

enum { LOCKED_BYTES = 32 << 10 }; /* less is summed sooner than the lock would come back */

#define PRIME_MX2 0x9FB21C651E98DF25u

/* ------------------------------------------------------------------ XXH3 of up to 240 bytes */

static inline uint32_t half(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t turned(uint64_t value, int by)
{
    return value << by | value >> (64 - by);
}

static inline uint64_t spread64(uint64_t sum)
{
    sum = (sum ^ sum >> 33) * PRIME64_2;
    sum = (sum ^ sum >> 29) * PRIME64_3;
    return sum ^ sum >> 32;
}

static inline uint64_t spread(uint64_t sum)
{
    sum = (sum ^ sum >> 37) * PRIME_MX1;
    return sum ^ sum >> 32;
}

static inline uint64_t sixteen(const uint8_t *data, const uint8_t *secret)
{
    return folded(word(data) ^ word(secret), word(data + 8) ^ word(secret + 8));
}

static uint64_t summed_upto_16(const uint8_t *data, size_t length)
{
    if (length > 8) {
        uint64_t low = word(data) ^ word(SECRET + 24) ^ word(SECRET + 32);
        uint64_t high = word(data + length - 8) ^ word(SECRET + 40) ^ word(SECRET + 48);
        return spread(length + __builtin_bswap64(low) + high + folded(low, high));
    }
    if (length >= 4) {
        uint64_t keyed = half(data + length - 4) + ((uint64_t)half(data) << 32);
        keyed ^= word(SECRET + 8) ^ word(SECRET + 16);
        keyed ^= turned(keyed, 49) ^ turned(keyed, 24);
        keyed *= PRIME_MX2;
        keyed ^= (keyed >> 35) + length;
        keyed *= PRIME_MX2;
        return keyed ^ keyed >> 28;
    }
    if (!length)
        return spread64(word(SECRET + 56) ^ word(SECRET + 64));
    uint32_t keyed = (uint32_t)data[0] << 16 | (uint32_t)data[length >> 1] << 24 |
                     (uint32_t)data[length - 1] | (uint32_t)length << 8;
    return spread64(keyed ^ half(SECRET) ^ half(SECRET + 4));
}

static uint64_t summed_upto_240(const uint8_t *data, size_t length)
{
    uint64_t sum = length * PRIME64_1;
    if (length <= 128) {
        for (size_t at = (length - 1) / 32 + 1; at-- > 0;) {
            sum += sixteen(data + 16 * at, SECRET + 32 * at);
            sum += sixteen(data + length - 16 * (at + 1), SECRET + 32 * at + 16);
        }
        return spread(sum);
    }
    for (size_t at = 0; at < 8; at++)
        sum += sixteen(data + 16 * at, SECRET + 16 * at);
    sum = spread(sum);
    for (size_t at = 8; at < length / 16; at++)
        sum += sixteen(data + 16 * at, SECRET + 16 * (at - 8) + 3);
    return spread(sum + sixteen(data + length - 16, SECRET + 136 - 17));
}

/* ------------------------------------------------------------------ rows */

/* Of rows of more than 240 bytes; set once, when the module is loaded. */
static sum_row *sum_long;
static copy_summed *copy_long;

static uint64_t short_sum(const uint8_t *data, size_t length)
{
    return length > 16 ? summed_upto_240(data, length) : summed_upto_16(data, length);
}

static uint64_t any_sum(const uint8_t *data, size_t length)
{
    return length < LEAST_SUMMED ? short_sum(data, length) : sum_long(data, length);
}

/* What is summed is what was copied: a byte of a mapped file may change meanwhile. */
static uint64_t copied_sum(uint8_t *to, const uint8_t *from, size_t length)
{
    if (length >= LEAST_SUMMED)
        return copy_long(to, from, length, NULL, false);
    return short_sum(length ? memcpy(to, from, length) : to, length);
}

typedef struct {
    const uint8_t *data;
    const int64_t *bounds;
    size_t rows;
    uint32_t *sums;
    uint8_t *to; /* of the first row, or NULL */
} job;

static void sum_all(const job *job)
{
    uint8_t *to = job->to;
    for (size_t row = 0; row < job->rows; row++) {
        const uint8_t *from = job->data + job->bounds[row];
        size_t length = (size_t)(job->bounds[row + 1] - job->bounds[row]);
        uint64_t sum = to ? copied_sum(to, from, length) : any_sum(from, length);
        job->sums[row] = (uint32_t)sum;
        if (to)
            to += length;
    }
}

/* ------------------------------------------------------------------ pages */

enum { PAD = 64, SUM = 4 }; /* parts of a page begin at multiples of PAD; its head is one */

static size_t padded(size_t size)
{
    return (size + PAD - 1) / PAD * PAD;
}

/* A page is head | rows | a sum for each, both padded with zeros. */
enum { ROWS, HEAD, ROOM, PARTS };
typedef struct {
    Py_buffer parts[PARTS];
} page;

static size_t page_bytes(size_t size, size_t row_bytes)
{
    return PAD + padded(size) + padded(size / row_bytes * SUM);
}

/* Pads a part of a page; where the next one begins. */
static uint8_t *pad(uint8_t *from, size_t size)
{
    memset(from + size, 0, padded(size) - size);
    return from + padded(size);
}

static uint64_t filled_page(const page *page, size_t row_bytes)
{
    const uint8_t *from = page->parts[ROWS].buf;
    size_t size = (size_t)page->parts[ROWS].len, rows = size / row_bytes;
    uint8_t *room = memcpy(page->parts[ROOM].buf, page->parts[HEAD].buf, PAD);
    uint8_t *to = room + PAD, *sums = pad(to, size);
    for (size_t row = 0; row < rows; row++) {
        uint32_t sum = (uint32_t)copied_sum(to + row * row_bytes, from + row * row_bytes, row_bytes);
        memcpy(sums + row * SUM, &sum, SUM);
    }
    pad(sums, rows * SUM);
    return any_sum(room, (size_t)page->parts[ROOM].len);
}

/* ------------------------------------------------------------------ Python */

static PyObject *rows_summed(const Py_buffer *data, const Py_buffer *bounds, const Py_buffer *sums,
                             const Py_buffer *to)
{
    Py_ssize_t count = items(bounds, 8, "bounds"), rows = items(sums, 4, "sums");
    if (count < 0 || rows < 0)
        return NULL;
    const int64_t *at = bounds->buf;
    bool fits = count == rows + 1 && at[0] >= 0 && at[rows] <= data->len;
    for (Py_ssize_t row = 0; fits && row < rows; row++)
        fits = at[row] <= at[row + 1];
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "%zd bounds for %zd rows of %zd bytes", count, rows,
                            data->len);
    if (to->obj && !is_size("the copy", to->len, at[rows] - at[0]))
        return NULL;
    job job = {.data = data->buf, .bounds = at, .rows = (size_t)rows, .sums = sums->buf,
               .to = to->obj ? to->buf : NULL};
    if (at[rows] - at[0] < LOCKED_BYTES) {
        sum_all(&job);
    } else {
        Py_BEGIN_ALLOW_THREADS
        sum_all(&job);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *sum_rows(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer buffers[4] = {{0}};
    PyObject *done = NULL, *to;
    if (PyArg_ParseTuple(arguments, "y*y*w*O", &buffers[0], &buffers[1], &buffers[2], &to) &&
        (to == Py_None || !PyObject_GetBuffer(to, &buffers[3], PyBUF_WRITABLE)))
        done = rows_summed(&buffers[0], &buffers[1], &buffers[2], &buffers[3]);
    release(buffers, 4);
    return done;
}

static bool fits(const page *page, Py_ssize_t row_bytes)
{
    Py_ssize_t size = page->parts[ROWS].len;
    return is_size("the head", page->parts[HEAD].len, PAD) &&
           is_size("rows", size, size / row_bytes * row_bytes) &&
           is_size("the page", page->parts[ROOM].len,
                   (Py_ssize_t)page_bytes((size_t)size, (size_t)row_bytes));
}

/* Page number `at` of the lists; false and an error where there is none. Its buffers must be released
 * in any case. */
static bool page_taken(PyObject *const *lists, Py_ssize_t at, page *page)
{
    static const int FLAGS[PARTS] = {PyBUF_SIMPLE, PyBUF_SIMPLE, PyBUF_WRITABLE};
    for (int part = 0; part < PARTS; part++) {
        PyObject *item = PyList_GetItem(lists[part], at);
        if (!item || PyObject_GetBuffer(item, &page->parts[part], FLAGS[part]))
            return false;
    }
    return true;
}

static PyObject *pages_filled(PyObject *const *lists, page *pages, Py_ssize_t count,
                              Py_ssize_t row_bytes, uint64_t *checksums)
{
    for (Py_ssize_t at = 0; at < count; at++)
        if (!page_taken(lists, at, &pages[at]) || !fits(&pages[at], row_bytes))
            return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < count; at++)
        checksums[at] = filled_page(&pages[at], (size_t)row_bytes);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *fill_pages(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *lists[PARTS], *done = NULL;
    Py_ssize_t row_bytes;
    Py_buffer checksums;
    if (!PyArg_ParseTuple(arguments, "O!O!O!nw*", &PyList_Type, &lists[ROWS], &PyList_Type,
                          &lists[HEAD], &PyList_Type, &lists[ROOM], &row_bytes, &checksums))
        return NULL;
    Py_ssize_t count = items(&checksums, 8, "checksums");
    page *pages = count < 0 ? NULL : calloc((size_t)count + 1, sizeof *pages);
    if (count >= 0 && row_bytes < 1) {
        PyErr_Format(PyExc_ValueError, "rows of %zd bytes", row_bytes);
    } else if (pages) {
        done = pages_filled(lists, pages, count, row_bytes, checksums.buf);
    } else if (count >= 0) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t at = 0; pages && at < count; at++)
        release(pages[at].parts, PARTS);
    free(pages);
    PyBuffer_Release(&checksums);
    return done;
}

static PyMethodDef METHODS[] = {
    {"fill_pages", fill_pages, METH_VARARGS, NULL},
    {"sum_rows", sum_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_row_sums(PyObject *module)
{
    sum_long = best_sum();
    copy_long = best_summed();
    return PyModule_AddFunctions(module, METHODS);
}
