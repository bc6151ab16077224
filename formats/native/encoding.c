/* Byte planes packed in one call, a look for repeated runs, and memory that a thread keeps for what
 * it encodes.
 *
 * pack_bytes is what delta.plane_codec does with a plane step by step, pack_planes what it does with
 * all of a small frame, where zstd need not be asked; the layout is in docs/spec/model.md, section
 * "Coder". The twin of look_back is in frequency_tables.py beside this.
 *
 * Only what Python 3.11's limited API has is used.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "encoding.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { BYTES = 256 };

/* ------------------------------------------------------------------ memory of a thread */

enum { MOST_IDLE = 4 };

typedef struct {
    size_t size;
    uint8_t *bytes;
    void *zeros[ZEROS];
} kept;

static pthread_key_t key;
static bool has_key;
/* Of threads that ended, for those that begin. Without a lock, which a fork could leave locked. */
static _Atomic(kept *) idle[MOST_IDLE];

static void let_go(void *of_thread)
{
    kept *it = of_thread;
    for (size_t i = 0; i < MOST_IDLE; i++) {
        kept *none = NULL;
        if (atomic_compare_exchange_strong(&idle[i], &none, it))
            return;
    }
    for (size_t i = 0; i < ZEROS; i++)
        free(it->zeros[i]);
    free(it->bytes);
    free(it);
}

static kept *of_thread(void)
{
    kept *it = pthread_getspecific(key);
    if (it)
        return it;
    for (size_t i = 0; i < MOST_IDLE && !it; i++)
        it = atomic_exchange(&idle[i], NULL);
    if (!it)
        it = calloc(1, sizeof *it);
    if (it && pthread_setspecific(key, it)) {
        let_go(it);
        return NULL;
    }
    return it;
}

uint8_t *scratch(size_t size)
{
    kept *it = of_thread();
    if (!it)
        return NULL;
    if (it->size < size) {
        free(it->bytes);
        it->bytes = malloc(size);
        it->size = it->bytes ? size : 0;
    }
    return it->bytes;
}

void *zeros(enum zeros use, size_t size)
{
    kept *it = of_thread();
    if (it && !it->zeros[use])
        it->zeros[use] = calloc(1, size);
    return it ? it->zeros[use] : NULL;
}

/* ------------------------------------------------------------------ byte planes */

static _Thread_local made_tables tables_of_thread;

typedef struct {
    double expected; /* bytes of the symbols alone */
    uint32_t largest; /* how often the most frequent byte stands there */
    const uint8_t *begin;
    size_t size; /* of all that is stored; 0 where it is no smaller than the plane */
    size_t lanes;
} packing;

/* Whether there was memory. */
static bool pack_plane(const uint8_t *plane, size_t count, double most, packing *it)
{
    uint32_t counts[BYTES] = {0}, others[BYTES] = {0};
    count_symbols(plane, NULL, count, counts, others);
    for (size_t i = 0; i < BYTES; i++) {
        counts[i] += others[i];
        it->largest = counts[i] > it->largest ? counts[i] : it->largest;
    }
    if (!make_tables(counts, 1, NULL, &tables_of_thread))
        return false;
    it->expected = tables_of_thread.bits / 8;
    if (it->expected > most || it->largest == count)
        return true;
    size_t room = 2 * count + PACK_SLACK;
    uint8_t *at = scratch(MOST_TABLE_BYTES + room);
    if (!at)
        return false;
    size_t head = write_tables(&tables_of_thread, at);
    /* A small plane of many values would be no smaller with its tables, whatever the coder makes of
     * it: a state is at least 16 times a frequency when a symbol comes to it, so what divisions lose
     * there, and where it hands over a word, is less than a fifth of a bit. */
    if ((double)head + it->expected - (double)count / 40 >= (double)count)
        return true;
    uint8_t *coded = pack_by_tables(plane, NULL, count, &tables_of_thread,
                                    lanes_for(count, tables_of_thread.bits), at + MOST_TABLE_BYTES,
                                    room);
    memmove(coded - head, at, head);
    it->begin = coded - head;
    it->lanes = lanes_for(count, tables_of_thread.bits);
    it->size = (size_t)(at + MOST_TABLE_BYTES + room - it->begin);
    if (it->size >= count)
        it->size = 0;
    return true;
}

/* ------------------------------------------------------------------ repeated runs
 *
 * Whether a dictionary coder would find anything, for a tenth of what it takes itself: of all places
 * one in so many is an anchor, which a hash of its first 8 bytes leads to, and as many places that
 * follow each other are compared with them in each window. So a run of 19 bytes
 * that stood there before is found wherever that was. */

enum {
    ANCHORS_APART = 8,
    WINDOW_BYTES = 64,
    RUN = 12, /* bytes: shorter ones take no less than what they stand for */
    HASH_BITS = 13,
    MOST_LOOKED_AT = 1 << 18, /* bytes: anchors are numbered in 16 bits */
};

static size_t hash_of(uint64_t bytes)
{
    return bytes * 0x9E3779B97F4A7C15 >> (64 - HASH_BITS);
}

static bool same_run(const uint8_t *one, const uint8_t *other)
{
    return load64(one) == load64(other) && load32(one + 8) == load32(other + 8);
}

/* How many windows begin with a run that stood at an anchor of an earlier one: of the anchors that
 * share a hash, the last. */
static size_t windows_repeated(const uint8_t *plane, size_t count)
{
    uint16_t anchors[1 << HASH_BITS] = {0}; /* place / ANCHORS_APART + 1 */
    size_t found = 0;
    for (size_t at = 0; at + WINDOW_BYTES <= count; at += WINDOW_BYTES) {
        bool repeated = false;
        for (size_t i = at; i < at + ANCHORS_APART && !repeated; i++) {
            size_t anchor = anchors[hash_of(load64(plane + i))];
            repeated = anchor && same_run(plane + (anchor - 1) * ANCHORS_APART, plane + i);
        }
        found += repeated;
        for (size_t i = at; i < at + WINDOW_BYTES && i + RUN <= count; i += ANCHORS_APART)
            anchors[hash_of(load64(plane + i))] = (uint16_t)(i / ANCHORS_APART + 1);
    }
    return found;
}

/* How many windows of a sample repeat something, and the bits of its bytes by how frequent they are. */
static size_t looked_back(const uint8_t *sample, size_t count, double *bits)
{
    uint32_t counts[BYTES] = {0}, others[BYTES] = {0};
    count_symbols(sample, NULL, count, counts, others);
    *bits = entropy_bits(counts, 1);
    return windows_repeated(sample, count);
}

/* look_back(plane): how many of its whole windows repeat something, and the bits of its bytes by how
 * frequent they are, see entropy. */
static PyObject *look_back(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at = {0};
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*", &at))
        return NULL;
    if (at.len > MOST_LOOKED_AT) {
        PyErr_Format(PyExc_ValueError, "%zd bytes to look at, at most %d", at.len, MOST_LOOKED_AT);
    } else {
        double bits;
        PyThreadState *state = at.len < ALONE ? NULL : PyEval_SaveThread();
        size_t windows = looked_back(at.buf, (size_t)at.len, &bits);
        if (state)
            PyEval_RestoreThread(state);
        found = Py_BuildValue("nd", (Py_ssize_t)windows, bits);
    }
    release(&at, 1);
    return found;
}

/* ------------------------------------------------------------------ planes of one frame that are large
 *
 * The twin is delta.plane_codec, which says what the numbers are for. */

enum {
    SAMPLE_BLOCK = 1 << 10,
    BLOCKS_APART = 16,
    LEAST_BLOCKS = 16,
    SAMPLE = 32 << 10,
    NOISE_SAMPLE = 8 << 10,
    LEAST_SAMPLE = 4 << 10,
    REPEATED = 64,
};

static const double NOISE = 0.99, ALIKE = 0.97;

/* Share of a plane's bytes that a sample says it takes; 0 where it is too small to ask. */
static double noise_share(const uint8_t *plane, size_t count)
{
    enum { STRIDE = SAMPLE_BLOCK * BLOCKS_APART };
    size_t blocks = count / STRIDE, size = blocks * SAMPLE_BLOCK;
    uint32_t counts[BYTES] = {0}, others[BYTES] = {0};
    uint8_t *sample = blocks < LEAST_BLOCKS ? NULL : scratch(size);
    if (!sample)
        return 0;
    for (size_t i = 0; i < blocks; i++)
        memcpy(sample + i * SAMPLE_BLOCK,
               plane + i * STRIDE + i * 7 % BLOCKS_APART * SAMPLE_BLOCK, SAMPLE_BLOCK);
    count_symbols(sample, NULL, size, counts, others);
    return entropy_bits(counts, 1) / 8 / (double)size;
}

/* Whether a look at a sample says that zstd may find more than how frequent each byte is. */
static bool may_repeat(const uint8_t *plane, size_t count, double share)
{
    size_t most = share > NOISE ? NOISE_SAMPLE : SAMPLE;
    size_t size = count / 4 > LEAST_SAMPLE ? count / 4 : LEAST_SAMPLE;
    size = size < most ? size : most;
    size_t middle = count > size ? (count - size) / 2 : 0;
    double bits;
    size_t windows = looked_back(plane + middle, count < size ? count : size, &bits);
    return windows * REPEATED >= size / WINDOW_BYTES || bits / 8 <= ALIKE * share * (double)size;
}

typedef struct {
    packing packed;
    double share; /* that is expected of the plane's bytes */
    bool may_repeat;
} outcome;

/* Whether there was memory. */
static bool pack_large(const uint8_t *plane, size_t count, double most, outcome *it)
{
    it->share = noise_share(plane, count);
    if (!(it->share > NOISE)) {
        if (!pack_plane(plane, count, most, &it->packed))
            return false;
        it->share = it->packed.expected / (double)count;
    }
    it->may_repeat = it->packed.largest != count && may_repeat(plane, count, it->share);
    return true;
}

/* pack_bytes(plane, most): share of its bytes that is expected; how often the most frequent one stands
 * there; what is stored: None where that is no smaller than the plane, or more than `most` are
 * expected, or it is noise, or all bytes are the same; whether zstd may store less; and how many
 * coders took turns. */
static PyObject *pack_bytes(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at = {0};
    double most;
    outcome it = {0};
    if (!PyArg_ParseTuple(arguments, "y*d", &at, &most))
        return NULL;
    if (!at.len) {
        release(&at, 1);
        return PyErr_Format(PyExc_ValueError, "no bytes to pack");
    }
    PyThreadState *state = at.len < ALONE ? NULL : PyEval_SaveThread();
    bool fine = pack_large(at.buf, (size_t)at.len, most, &it);
    if (state)
        PyEval_RestoreThread(state);
    release(&at, 1);
    if (!fine)
        return PyErr_NoMemory();
    const char *bytes = it.packed.size ? (const char *)it.packed.begin : NULL; /* NULL: None */
    return Py_BuildValue("dIy#Ni", it.share, it.packed.largest, bytes, (Py_ssize_t)it.packed.size,
                         PyBool_FromLong(it.may_repeat), (int)it.packed.lanes);
}

/* ------------------------------------------------------------------ small planes of one frame */

enum {
    MOST_SMALL = 4096,
    SLOT_BITS = 13,
    ZSTD_ROOM = 13, /* bytes of magic, heads of frame, block and literals, tree and count of sequences */
};

/* Whether three bytes of a plane of at most MOST_SMALL follow each other in it once more. */
static bool repeats(const uint8_t *plane, size_t count)
{
    uint16_t slots[1 << SLOT_BITS]; /* where each three are, counted from 1 */
    unsigned bits = SLOT_BITS;
    while (bits > 6 && (size_t)1 << (bits - 1) >= 2 * count)
        bits--;
    size_t last = ((size_t)1 << bits) - 1;
    memset(slots, 0, (last + 1) * sizeof *slots);
    for (size_t i = 0; i + 3 <= count; i++) {
        uint32_t three = plane[i] | (uint32_t)plane[i + 1] << 8 | (uint32_t)plane[i + 2] << 16;
        size_t slot = three * 2654435761u >> (32 - bits);
        for (; slots[slot]; slot = (slot + 1) & last) {
            if (!memcmp(plane + slots[slot] - 1, plane + i, 3))
                return true;
        }
        slots[slot] = (uint16_t)(i + 1);
    }
    return false;
}

/* Whether zstd cannot be smaller than `expected` says: a match of its format has three bytes at
 * least, so there is none; and what a prefix code takes is never less than the entropy, from which
 * frequencies are as far as ln x <= x - 1 says, at most. */
static bool is_beyond_zstd(const uint8_t *plane, size_t count, const made_tables *made)
{
    double ratio = 0, total = 0;
    for (size_t i = 0; i < BYTES; i++) {
        double symbols = (double)made->counted[i];
        total += made->frequencies[i];
        if (symbols > 0)
            ratio += symbols * symbols / made->frequencies[i];
    }
    double excess = ratio * total / (double)count - (double)count;
    return excess * 1.4427 <= 8 * ZSTD_ROOM && !repeats(plane, count);
}

static PyObject *packed_small(const uint8_t *plane, size_t count, double most)
{
    packing it = {0};
    if (!pack_plane(plane, count, most, &it))
        return PyErr_NoMemory();
    const char *bytes = (const char *)it.begin;
    if (it.largest == count)
        return Py_BuildValue("iy#", STORED_CONSTANT, (const char *)plane, (Py_ssize_t)1);
    if (is_beyond_zstd(plane, count, &tables_of_thread)) {
        if (it.size)
            return Py_BuildValue("iy#", STORED_CODED, bytes, (Py_ssize_t)it.size);
        return Py_BuildValue("iy#", STORED_RAW, (const char *)plane, (Py_ssize_t)count);
    }
    if (!it.size)
        return Py_BuildValue("dIO", it.expected, it.largest, Py_None);
    return Py_BuildValue("dIy#", it.expected, it.largest, bytes, (Py_ssize_t)it.size);
}

/* pack_planes(planes, count, most): of each of `count` planes, which lie one after the other, its codec
 * and what is stored; where zstd might be smaller, what pack_bytes returns. */
static PyObject *pack_planes(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at = {0};
    Py_ssize_t count;
    double most;
    if (!PyArg_ParseTuple(arguments, "y*nd", &at, &count, &most))
        return NULL;
    PyObject *found = NULL;
    Py_ssize_t size = count > 0 ? at.len / count : 0;
    if (size < 2 || size > MOST_SMALL || size * count != at.len)
        PyErr_Format(PyExc_ValueError, "%zd bytes are no %zd planes of 2 to %d", at.len, count,
                     MOST_SMALL);
    else
        found = PyList_New(count);
    for (Py_ssize_t i = 0; found && i < count; i++) {
        const uint8_t *plane = (const uint8_t *)at.buf + i * size;
        PyObject *one = packed_small(plane, (size_t)size, most);
        if (!one || PyList_SetItem(found, i, one))
            Py_CLEAR(found);
    }
    release(&at, 1);
    return found;
}

/* has_more_values(numbers, size, most): whether more than `most` of these numbers of `size` bytes
 * differ; at most 256 are asked for. */
static PyObject *has_more_values(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    enum { VALUE_BITS = 10, MOST_VALUES = 256 };
    uint64_t values[1 << VALUE_BITS];
    uint8_t used[1 << VALUE_BITS] = {0};
    Py_buffer at = {0};
    int size, most;
    if (!PyArg_ParseTuple(arguments, "y*ii", &at, &size, &most))
        return NULL;
    if ((size != 2 && size != 4 && size != 8) || most < 0 || most > MOST_VALUES || at.len % size) {
        release(&at, 1);
        return PyErr_Format(PyExc_ValueError, "more than %d values of %d bytes: out of range", most,
                            size);
    }
    int found = 0;
    for (Py_ssize_t i = 0; i < at.len && found <= most; i += size) {
        uint64_t value = 0;
        memcpy(&value, (const uint8_t *)at.buf + i, (size_t)size);
        size_t slot = value * 0x9E3779B97F4A7C15u >> (64 - VALUE_BITS);
        while (used[slot] && values[slot] != value)
            slot = (slot + 1) & ((1 << VALUE_BITS) - 1);
        found += !used[slot];
        used[slot] = 1;
        values[slot] = value;
    }
    release(&at, 1);
    return PyBool_FromLong(found > most);
}

static PyMethodDef METHODS[] = {
    {"has_more_values", has_more_values, METH_VARARGS, NULL},
    {"look_back", look_back, METH_VARARGS, NULL},
    {"pack_bytes", pack_bytes, METH_VARARGS, NULL},
    {"pack_planes", pack_planes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_encoding(PyObject *module)
{
    if (!has_key && pthread_key_create(&key, let_go)) {
        PyErr_NoMemory();
        return -1;
    }
    has_key = true;
    return PyModule_AddFunctions(module, METHODS);
}
