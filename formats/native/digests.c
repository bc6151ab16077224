/* Batch BLAKE3 of buffers: digests, or a check against them, and a copy on the way.
 *
 * Each input is hashed by BLAKE3 with a key made of a context, as the blake3 package does it, and
 * copied on the way, while it is in the cache. Chunks of all inputs stand side by side, so small
 * ones cost no more a byte than large ones; and the interpreter lock is let go of once for all. The
 * twin in Python is digests.py beside this.
 *
 * Only what Python 3.11's limited API has is used, and vectors that GCC 12 and Clang know.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE /* madvise */
#include <Python.h>

#include "parts.h"
#include "blake3wide.h"

#include <stdlib.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    COPIED = WIDE * CHUNK,
    FAULTED_BYTES = 32 << 10, /* less is faulted in sooner than asked for */
    MOST_CHUNKS = 1 << 22,  /* of an input: 4 GiB */
    ALONE_BYTES = 1 << 16,  /* below, the interpreter lock is kept: to hand it over takes longer */
    GROUP_CHUNKS = 1 << 10, /* of the inputs whose chunks stand side by side */
};

typedef struct {
    Py_buffer from, to; /* `to.buf` is NULL where nothing is copied */
} input;

typedef struct {
    input *inputs;
    const uint8_t *digests; /* that are expected; NULL: none */
    uint8_t *found;         /* where they go then */
    size_t count;
    uint32_t key[8];
    uint8_t *values; /* of the chunks of a group, DIGEST bytes each */
} job;

/* What waits for others, until there are WIDE of them. */
typedef struct {
    side_by_side all;
    int waiting;
    uint8_t padded[WIDE][CHUNK]; /* chunks that may be shorter than others beside them */
} lane_queue;

static const hasher *best; /* set once, when the module is loaded */

static size_t chunks_in(size_t bytes)
{
    return bytes ? (bytes + CHUNK - 1) / CHUNK : 1;
}

static size_t chunks_of(const input *one)
{
    return chunks_in((size_t)one->from.len);
}

static void flush(const job *job, lane_queue *queue)
{
    uint8_t nowhere[DIGEST];
    side_by_side *all = &queue->all;
    if (!queue->waiting)
        return;
    for (int i = queue->waiting; i < WIDE; i++) {
        all->from[i] = all->from[0];
        all->length[i] = all->counter[i] = 0;
        all->flags[i] = all->start[i] = all->end[i] = 0;
        all->to[i] = nowhere;
    }
    best->any(job->key, all, queue->waiting);
    queue->waiting = 0;
}

static void push(const job *job, lane_queue *queue, const uint8_t *from, size_t length,
                 size_t counter, uint32_t flags, uint32_t start, uint32_t end, uint8_t *to)
{
    side_by_side *all = &queue->all;
    int at = queue->waiting++;
    all->from[at] = from;
    if (start && length < CHUNK) { /* others beside it are read to their end */
        memcpy(queue->padded[at], from, length);
        memset(queue->padded[at] + length, 0, CHUNK - length);
        all->from[at] = queue->padded[at];
    }
    all->length[at] = (uint32_t)length;
    all->counter[at] = (uint32_t)counter;
    all->flags[at] = flags | KEY_MATERIAL;
    all->start[at] = start;
    all->end[at] = end;
    all->to[at] = to;
    if (queue->waiting == WIDE)
        flush(job, queue);
}

/* What is hashed, once it is where it belongs: a byte of a mapped file may change meanwhile. Copied
 * are as many bytes as stay in the nearest caches, when the first of them are asked for. */
static const uint8_t *copied(const input *one, size_t at)
{
    size_t size = (size_t)one->from.len, more = size - at < COPIED ? size - at : COPIED;
    const uint8_t *from = one->from.buf;
    if (!size)
        return (const uint8_t *)"";
    if (!one->to.buf)
        return from + at;
    if (at % COPIED == 0)
        memcpy((uint8_t *)one->to.buf + at, from + at, more);
    return (const uint8_t *)one->to.buf + at;
}

/* Ask for all pages of new memory at once: a fault for each takes twice as long. Who knows no such
 * advice is none the worse. */
static void fault_in(const Py_buffer *room)
{
#if defined(MADV_POPULATE_WRITE)
    if (!room->buf || room->len < FAULTED_BYTES)
        return;
    uintptr_t start = ((uintptr_t)room->buf + PAGE - 1) / PAGE * PAGE;
    uintptr_t stop = ((uintptr_t)room->buf + (uintptr_t)room->len) / PAGE * PAGE;
    (void)madvise((void *)start, stop - start, MADV_POPULATE_WRITE);
#else
    (void)room;
#endif
}

static void hash_chunks(const job *job, const input *one, lane_queue *queue, uint8_t *values)
{
    size_t bytes = (size_t)one->from.len, chunks = chunks_of(one), chunk = 0;
    for (; bytes >= (chunk + WIDE) * CHUNK; chunk += WIDE, values += WIDE * DIGEST)
        best->chunks(job->key, copied(one, chunk * CHUNK), (uint32_t)chunk, values);
    for (; chunk < chunks; chunk++, values += DIGEST) {
        size_t at = chunk * CHUNK, length = bytes - at < CHUNK ? bytes - at : CHUNK;
        push(job, queue, copied(one, at), length, chunk, 0, CHUNK_START,
             CHUNK_END | (chunks > 1 ? 0 : ROOT), values);
    }
}

/* Pairs of all inputs become one, level by level; a last one without a partner goes up as it is.
 * `left` says how many chunks each input has. */
static void join_chunks(const job *job, lane_queue *queue, size_t *left, size_t count)
{
    for (bool again = true; again;) {
        again = false;
        uint8_t *values = job->values;
        for (size_t one = 0; one < count; values += chunks_of(&job->inputs[one++]) * DIGEST) {
            uint32_t root = left[one] == 2 ? ROOT : 0;
            size_t pair = 0;
            for (; pair + WIDE <= left[one] / 2; pair += WIDE)
                best->pairs(job->key, values + pair * BLOCK, values + pair * DIGEST);
            for (; pair < left[one] / 2; pair++)
                push(job, queue, values + pair * BLOCK, BLOCK, 0, PARENT, 0, root,
                     values + pair * DIGEST);
        }
        flush(job, queue);
        values = job->values;
        for (size_t one = 0; one < count; values += chunks_of(&job->inputs[one++]) * DIGEST) {
            if (left[one] > 1 && left[one] % 2)
                memmove(values + left[one] / 2 * DIGEST, values + (left[one] - 1) * DIGEST, DIGEST);
            left[one] = (left[one] + 1) / 2;
            again |= left[one] > 1;
        }
    }
}

/* The first input from `at` on that is not of the group that begins there. */
static size_t group_stop(const job *job, size_t at, size_t *chunks)
{
    *chunks = 0;
    size_t stop = at;
    while (stop < job->count) {
        size_t more = chunks_of(&job->inputs[stop]);
        if (stop > at && *chunks + more > GROUP_CHUNKS)
            break;
        *chunks += more;
        stop++;
    }
    return stop;
}

/* The first input of a group that is not what its digest says, or -1. */
static Py_ssize_t check_group(const job *job, lane_queue *queue, size_t *left, size_t count)
{
    uint8_t *values = job->values;
    for (size_t one = 0; one < count; one++) {
        left[one] = chunks_of(&job->inputs[one]);
        if (job->digests)
            fault_in(&job->inputs[one].to);
        hash_chunks(job, &job->inputs[one], queue, values);
        values += left[one] * DIGEST;
    }
    flush(job, queue);
    join_chunks(job, queue, left, count);
    values = job->values;
    for (size_t one = 0; one < count; one++) {
        if (!job->digests)
            memcpy(job->found + one * DIGEST, values, DIGEST);
        else if (memcmp(values, job->digests + one * DIGEST, DIGEST))
            return (Py_ssize_t)one;
        values += chunks_of(&job->inputs[one]) * DIGEST;
    }
    return -1;
}

/* The first input that is not what its digest says, or -1. */
static Py_ssize_t work(const job *whole, size_t *left)
{
    lane_queue queue = {.waiting = 0};
    for (size_t at = 0, chunks; at < whole->count;) {
        size_t stop = group_stop(whole, at, &chunks);
        job group = *whole;
        group.inputs += at;
        if (group.digests)
            group.digests += at * DIGEST;
        else
            group.found += at * DIGEST;
        Py_ssize_t wrong = check_group(&group, &queue, left, stop - at);
        if (wrong >= 0)
            return (Py_ssize_t)at + wrong;
        at = stop;
    }
    return -1;
}

/* ------------------------------------------------------------------ Python */

static void release_inputs(input *inputs, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; at < count; at++) {
        PyBuffer_Release(&inputs[at].from);
        if (inputs[at].to.buf)
            PyBuffer_Release(&inputs[at].to);
    }
}

/* Buffer number `at` of a list, as bytes. */
static bool taken(PyObject *list, Py_ssize_t at, int flags, Py_buffer *buffer)
{
    PyObject *item = PyList_GetItem(list, at);
    return item && !PyObject_GetBuffer(item, buffer, flags);
}

/* How many inputs were taken; fewer than there are after an error. */
static Py_ssize_t take_all(PyObject *from, PyObject *to, input *inputs, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; at < count; at++) {
        input *one = &inputs[at];
        if (!taken(from, at, PyBUF_SIMPLE, &one->from))
            return at;
        bool fine = to == Py_None || taken(to, at, PyBUF_WRITABLE, &one->to);
        if (fine && one->from.len > (Py_ssize_t)MOST_CHUNKS * CHUNK) {
            PyErr_SetString(PyExc_ValueError, "an input of more than 4 GiB");
            fine = false;
        }
        if (fine && one->to.buf && one->to.len != one->from.len) {
            PyErr_Format(PyExc_ValueError, "%zd bytes do not fit into %zd", one->from.len,
                         one->to.len);
            fine = false;
        }
        if (!fine) {
            release_inputs(one, 1);
            return at;
        }
    }
    return count;
}

/* Do the work; false and an error where there is no memory. */
static bool done(job *job, Py_ssize_t *wrong)
{
    size_t most = 0, bytes = 0;
    for (size_t at = 0, chunks; at < job->count;) {
        at = group_stop(job, at, &chunks);
        most = chunks > most ? chunks : most;
    }
    for (size_t at = 0; at < job->count; at++)
        bytes += (size_t)job->inputs[at].from.len;
    job->values = malloc(most * DIGEST + 1);
    size_t *left = malloc((job->count + 1) * sizeof *left);
    bool fine = job->values && left;
    if (fine) {
        PyThreadState *state = bytes < ALONE_BYTES ? NULL : PyEval_SaveThread();
        *wrong = work(job, left);
        if (state)
            PyEval_RestoreThread(state);
    } else {
        PyErr_NoMemory();
    }
    free(job->values);
    free(left);
    return fine;
}

/* Whether so many inputs, and as many places for copies or None, could be taken. */
static bool begin_job(job *job, const Py_buffer *context, PyObject *from, PyObject *to)
{
    Py_ssize_t count = PyList_Size(from);
    if (context->len > CHUNK || (to != Py_None && (!PyList_Check(to) || PyList_Size(to) != count))) {
        PyErr_Format(PyExc_ValueError, "%zd inputs, and places for copies: do not fit", count);
        return false;
    }
    input *inputs = calloc((size_t)count + 1, sizeof *inputs);
    if (!inputs) {
        PyErr_NoMemory();
        return false;
    }
    Py_ssize_t ready = take_all(from, to, inputs, count);
    if (ready < count) {
        release_inputs(inputs, ready);
        free(inputs);
        return false;
    }
    key_of(context->buf, (size_t)context->len, job->key);
    job->inputs = inputs;
    job->count = (size_t)count;
    return true;
}

static void end_job(job *job)
{
    release_inputs(job->inputs, (Py_ssize_t)job->count);
    free(job->inputs);
}

/* check_frames(context, frames, rooms, digests): the first frame that is not what its digest says, or
 * -1; rooms, or None, are where frames are copied to first. */
static PyObject *check_frames(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *from, *to, *found = NULL;
    Py_buffer context, digests;
    Py_ssize_t wrong;
    if (!PyArg_ParseTuple(arguments, "y*O!Oy*", &context, &PyList_Type, &from, &to, &digests))
        return NULL;
    job job = {.digests = digests.buf};
    if (digests.len != PyList_Size(from) * DIGEST) {
        PyErr_Format(PyExc_ValueError, "%zd inputs, %zd bytes of digests: do not fit",
                     PyList_Size(from), digests.len);
    } else if (begin_job(&job, &context, from, to)) {
        if (done(&job, &wrong))
            found = PyLong_FromSsize_t(wrong);
        end_job(&job);
    }
    PyBuffer_Release(&context);
    PyBuffer_Release(&digests);
    return found;
}

/* hash_frames(context, frames, rooms): their digests, one after the other; rooms as for check_frames. */
static PyObject *hash_frames(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *from, *to, *found = NULL;
    Py_buffer context;
    Py_ssize_t none;
    if (!PyArg_ParseTuple(arguments, "y*O!O", &context, &PyList_Type, &from, &to))
        return NULL;
    job job = {.digests = NULL};
    if (begin_job(&job, &context, from, to)) {
        found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)job.count * DIGEST);
        if (found)
            job.found = (uint8_t *)PyBytes_AsString(found);
        if (found && !done(&job, &none))
            Py_CLEAR(found);
        end_job(&job);
    }
    PyBuffer_Release(&context);
    return found;
}

static PyMethodDef METHODS[] = {
    {"check_frames", check_frames, METH_VARARGS, NULL},
    {"hash_frames", hash_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_digests(PyObject *module)
{
    best = best_hasher();
    if (PyModule_AddIntConstant(module, "fast", is_fast()))
        return -1;
    return PyModule_AddFunctions(module, METHODS);
}
