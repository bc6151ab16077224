/* Batch BLAKE3 of buffers: digests, or a check against them, and a copy on the way; and of one input
 * that lies in parts.
 *
 * Each input is hashed by BLAKE3 with a key made of a context, as the blake3 package does it, and
 * copied on the way, while it is in the cache. Chunks of all inputs stand side by side, so small
 * ones cost no more a byte than large ones; and the interpreter lock is let go of once for all. The
 * twin in Python is hasher.py beside this.
 *
 * Only what Python 3.11's limited API has is used, and vectors that GCC 12 and Clang know.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE /* madvise */
#include <Python.h>

#include "blake3wide.h"

#include <stdlib.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    COPIED = WIDE * CHUNK,
    FAULTED_BYTES = 32 << 10, /* less is faulted in sooner than asked for */
    MOST_CHUNKS = 1 << 22,  /* of an input: 4 GiB */
    MOST_IN_PARTS = 1 << 30, /* chunks of parts: 1 TiB */
    ALONE_BYTES = 1 << 16,  /* below, the interpreter lock is kept: to hand it over takes longer */
    GROUP_CHUNKS = 1 << 10, /* of the inputs whose chunks stand side by side; of a part of a tree */
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
    const uint32_t *key;
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

static void begin_queue(lane_queue *queue, const uint32_t key[8])
{
    queue->key = key;
    queue->waiting = 0;
}

static void flush(lane_queue *queue)
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
    best->any(queue->key, all, queue->waiting);
    queue->waiting = 0;
}

static void push(lane_queue *queue, const uint8_t *from, size_t length, size_t counter,
                 uint32_t flags, uint32_t start, uint32_t end, uint8_t *to)
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
        flush(queue);
}

/* ------------------------------------------------------------------ trees */

/* A tree, or a part of it: what is left of its values, DIGEST bytes each, level by level. */
typedef struct {
    uint8_t *values;
    size_t left;
    bool is_whole; /* the last one is its digest */
} tree;

/* Values of all trees become one each: of each pair one, and a last one without a partner goes up as
 * it is. */
static void join(lane_queue *queue, tree *trees, size_t count)
{
    for (bool again = true; again;) {
        again = false;
        for (tree *one = trees; one < trees + count; one++) {
            uint8_t *values = one->values;
            uint32_t root = one->left == 2 && one->is_whole ? ROOT : 0;
            size_t pair = 0;
            for (; pair + WIDE <= one->left / 2; pair += WIDE)
                best->pairs(queue->key, values + pair * BLOCK, values + pair * DIGEST);
            for (; pair < one->left / 2; pair++)
                push(queue, values + pair * BLOCK, BLOCK, 0, PARENT, 0, root, values + pair * DIGEST);
        }
        flush(queue);
        for (tree *one = trees; one < trees + count; one++) {
            if (one->left > 1 && one->left % 2)
                memmove(one->values + one->left / 2 * DIGEST,
                        one->values + (one->left - 1) * DIGEST, DIGEST);
            one->left = (one->left + 1) / 2;
            again |= one->left > 1;
        }
    }
}

/* ------------------------------------------------------------------ many inputs */

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

static void hash_chunks(lane_queue *queue, const input *one, uint8_t *values)
{
    size_t bytes = (size_t)one->from.len, chunks = chunks_of(one), chunk = 0;
    for (; bytes >= (chunk + WIDE) * CHUNK; chunk += WIDE, values += WIDE * DIGEST)
        best->chunks(queue->key, copied(one, chunk * CHUNK), (uint32_t)chunk, values);
    for (; chunk < chunks; chunk++, values += DIGEST) {
        size_t at = chunk * CHUNK, length = bytes - at < CHUNK ? bytes - at : CHUNK;
        push(queue, copied(one, at), length, chunk, 0, CHUNK_START,
             CHUNK_END | (chunks > 1 ? 0 : ROOT), values);
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
static Py_ssize_t check_group(const job *job, lane_queue *queue, tree *trees, size_t count)
{
    uint8_t *values = job->values;
    for (size_t one = 0; one < count; one++) {
        trees[one] = (tree){values, chunks_of(&job->inputs[one]), true};
        if (job->digests)
            fault_in(&job->inputs[one].to);
        hash_chunks(queue, &job->inputs[one], values);
        values += trees[one].left * DIGEST;
    }
    flush(queue);
    join(queue, trees, count);
    for (size_t one = 0; one < count; one++) {
        if (!job->digests)
            memcpy(job->found + one * DIGEST, trees[one].values, DIGEST);
        else if (memcmp(trees[one].values, job->digests + one * DIGEST, DIGEST))
            return (Py_ssize_t)one;
    }
    return -1;
}

/* The first input that is not what its digest says, or -1. */
static Py_ssize_t work(const job *whole, tree *trees)
{
    lane_queue queue;
    begin_queue(&queue, whole->key);
    for (size_t at = 0, chunks; at < whole->count;) {
        size_t stop = group_stop(whole, at, &chunks);
        job group = *whole;
        group.inputs += at;
        if (group.digests)
            group.digests += at * DIGEST;
        else
            group.found += at * DIGEST;
        Py_ssize_t wrong = check_group(&group, &queue, trees, stop - at);
        if (wrong >= 0)
            return (Py_ssize_t)at + wrong;
        at = stop;
    }
    return -1;
}

/* ------------------------------------------------------------------ one input in parts */

typedef struct {
    const Py_buffer *parts;
    size_t count, part, at; /* the next byte is number `at` of part number `part` */
} stream;

/* So many bytes, which must be there: where they lie, or in `room` where no part has all of them. */
static const uint8_t *next_bytes(stream *from, uint8_t *room, size_t bytes)
{
    for (size_t filled = 0; filled < bytes;) {
        const Py_buffer *part = &from->parts[from->part];
        const uint8_t *here = (const uint8_t *)part->buf + from->at;
        size_t more = (size_t)part->len - from->at;
        if (!more) {
            from->part++;
            from->at = 0;
            continue;
        }
        if (more >= bytes - filled) {
            more = bytes - filled;
            if (!filled) {
                from->at += more;
                return here;
            }
        }
        memcpy(room + filled, here, more);
        from->at += more;
        filled += more;
    }
    return room;
}

/* The values of chunks `chunk` to `stop` of an input of so many bytes: at least WIDE at a time, and
 * fewer only at its end. */
static void hash_next(lane_queue *queue, stream *from, size_t bytes, size_t chunk, size_t stop,
                      uint8_t *values)
{
    uint8_t room[WIDE * CHUNK];
    for (; chunk < stop && (chunk + WIDE) * CHUNK <= bytes; chunk += WIDE, values += WIDE * DIGEST)
        best->chunks(queue->key, next_bytes(from, room, sizeof room), (uint32_t)chunk, values);
    if (chunk == stop)
        return;
    const uint8_t *here = next_bytes(from, room, bytes - chunk * CHUNK);
    for (; chunk < stop; chunk++, here += CHUNK, values += DIGEST) {
        size_t length = bytes - chunk * CHUNK < CHUNK ? bytes - chunk * CHUNK : CHUNK;
        push(queue, here, length, chunk, 0, CHUNK_START,
             CHUNK_END | (bytes > CHUNK ? 0 : ROOT), values);
    }
    flush(queue);
}

/* The digest of so many bytes, at `tops`, where there is room for the value of each part of the tree:
 * GROUP_CHUNKS, whose values stay in the nearest cache. */
static void hash_stream(const uint32_t key[8], stream *from, size_t bytes, uint8_t *tops)
{
    lane_queue queue;
    uint8_t values[GROUP_CHUNKS * DIGEST];
    size_t chunks = chunks_in(bytes), groups = 0;
    begin_queue(&queue, key);
    for (size_t chunk = 0, stop; chunk < chunks; chunk = stop, groups++) {
        stop = chunk + GROUP_CHUNKS < chunks ? chunk + GROUP_CHUNKS : chunks;
        hash_next(&queue, from, bytes, chunk, stop, values);
        join(&queue, &(tree){values, stop - chunk, chunks <= GROUP_CHUNKS}, 1);
        memcpy(tops + groups * DIGEST, values, DIGEST);
    }
    join(&queue, &(tree){tops, groups, true}, 1);
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
    tree *trees = malloc((job->count + 1) * sizeof *trees);
    bool fine = job->values && trees;
    if (fine) {
        PyThreadState *state = bytes < ALONE_BYTES ? NULL : PyEval_SaveThread();
        *wrong = work(job, trees);
        if (state)
            PyEval_RestoreThread(state);
    } else {
        PyErr_NoMemory();
    }
    free(job->values);
    free(trees);
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

/* The digest of parts that were taken; NULL and an error where there is no memory. */
static PyObject *digest_of(const Py_buffer *context, const Py_buffer *parts, size_t count)
{
    uint32_t key[8];
    size_t bytes = 0;
    for (size_t at = 0; at < count; at++)
        bytes += (size_t)parts[at].len;
    if (context->len > CHUNK || chunks_in(bytes) > MOST_IN_PARTS) {
        PyErr_Format(PyExc_ValueError, "%zu bytes: do not fit", bytes);
        return NULL;
    }
    uint8_t *tops = malloc((chunks_in(bytes) / GROUP_CHUNKS + 1) * DIGEST);
    if (!tops)
        return PyErr_NoMemory();
    stream from = {parts, count, 0, 0};
    key_of(context->buf, (size_t)context->len, key);
    PyThreadState *state = bytes < ALONE_BYTES ? NULL : PyEval_SaveThread();
    hash_stream(key, &from, bytes, tops);
    if (state)
        PyEval_RestoreThread(state);
    PyObject *found = PyBytes_FromStringAndSize((const char *)tops, DIGEST);
    free(tops);
    return found;
}

/* hash_parts(context, parts): the digest of their bytes, one after the other. */
static PyObject *hash_parts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *list, *found = NULL;
    Py_buffer context;
    if (!PyArg_ParseTuple(arguments, "y*O!", &context, &PyList_Type, &list))
        return NULL;
    Py_ssize_t count = PyList_Size(list), ready = 0;
    Py_buffer *parts = calloc((size_t)count + 1, sizeof *parts);
    if (!parts)
        PyErr_NoMemory();
    while (parts && ready < count && taken(list, ready, PyBUF_SIMPLE, &parts[ready]))
        ready++;
    if (parts && ready == count)
        found = digest_of(&context, parts, (size_t)count);
    while (ready)
        PyBuffer_Release(&parts[--ready]);
    free(parts);
    PyBuffer_Release(&context);
    return found;
}

static PyMethodDef METHODS[] = {
    {"check_frames", check_frames, METH_VARARGS, NULL},
    {"hash_frames", hash_frames, METH_VARARGS, NULL},
    {"hash_parts", hash_parts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_hashing", NULL, 0, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__hashing(void)
{
    best = best_hasher();
    PyObject *module = PyModule_Create(&MODULE);
    if (module && PyModule_AddIntConstant(module, "fast", is_fast())) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
