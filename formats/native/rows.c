/* Gather of rows at many addresses into one array, checked by their sums on the way.
 *
 * take_rows copies rows that are named by run and row, copy_rows rows that are named by address;
 * both compare each with its row sum on the way, so that memory is read once instead of twice.
 * copy_spans copies rows of any length, check_spans compares spans with their sums where they lie.
 * Large jobs let go of the interpreter lock and are shared among threads. The twin in numpy is
 * rows.py beside this.
 *
 * Addresses are taken on trust: they come from gather.InMemory, which keeps alive what they point
 * into. All sizes are checked here. No Python object is made for a row.
 *
 * Only what Python 3.11's limited API has is used, so one build serves every later version. Plain
 * C11 with GNU attributes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"
#include "copyrow.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    FIRST_ADDRESS = 4096,          /* nothing lies before it */
    AHEAD_BYTES = 4096,            /* how far ahead rows are asked for while others are copied */
    MOST_AHEAD = 16,               /* rows */
    MOST_THREADS = 16,
    LOCKED_BYTES = 512 << 10,      /* less is copied sooner than the lock would come back */
    STREAMED_BYTES = 1 << 20,      /* results from here on leave no room in a cache: go around it */
    THREAD_BYTES = 1 << 20,        /* what pays for starting a thread */
    PART_BYTES = 128 << 10,        /* what a thread takes at a time */
    CHECKED_PART_BYTES = 2 << 20,  /* the same of spans that are compared, several abreast */
    MOST_PARTS = 128,
};

/* Set once, when the module is loaded. */
static copy_summed *copy_and_sum;
static sum_row *sum_span;
static sum_rows_abreast *sum_abreast;

/* ------------------------------------------------------------------ many rows */

typedef struct {
    const int64_t *from;      /* address of each row, or of the first row of each run */
    const int64_t *sums;      /* address of the sum of each, at most 0 where there is none; or NULL */
    const int64_t *run, *row; /* of each row; NULL: `from` and `sums` are by row */
    const int64_t *lengths;   /* of each row; NULL: all are row_bytes long */
    const uint64_t *checks;   /* xxh3 of each; then nothing is copied, and `to` is NULL */
    size_t row_bytes, step_bytes; /* from row to row of a run */
    size_t first, last; /* rows [first, last) */
    uint8_t *to;        /* of row `first` */
    bool around;
    Py_ssize_t wrong; /* the first row that is not what its sum says, or -1 */
} job;

static inline const uint8_t *pointer(int64_t address)
{
    return (const uint8_t *)(intptr_t)address;
}

static inline const uint8_t *row_at(const job *job, size_t row)
{
    if (!job->run)
        return pointer(job->from[row]);
    return pointer(job->from[job->run[row]] + job->row[row] * (int64_t)job->step_bytes);
}

/* NULL where a row has no sum. */
static inline const uint8_t *sum_at(const job *job, size_t row)
{
    if (!job->sums)
        return NULL;
    int64_t address = job->run ? job->sums[job->run[row]] + job->row[row] * (int64_t)sizeof(uint32_t)
                               : job->sums[row];
    return address > 0 ? pointer(address) : NULL;
}

static void copy_equal(job *job)
{
    size_t length = job->row_bytes, ahead = AHEAD_BYTES / length;
    ahead = ahead < 1 ? 1 : ahead > MOST_AHEAD ? MOST_AHEAD : ahead;
    uint8_t *to = job->to;
    for (size_t row = job->first; row < job->last; row++, to += length) {
        const uint8_t *from = row_at(job, row), *sum = sum_at(job, row), *next = NULL;
        if (row + ahead < job->last)
            next = row_at(job, row + ahead);
        if (!sum) {
            copy_one(to, from, length, next, job->around);
            continue;
        }
        uint32_t expected;
        memcpy(&expected, sum, sizeof expected);
        if ((uint32_t)copy_and_sum(to, from, length, next, job->around) != expected) {
            job->wrong = (Py_ssize_t)row;
            return;
        }
    }
}

/* Rows whose length the compiler knows, without sums. */
static inline void copy_short(const job *job, const size_t length)
{
    uint8_t *to = job->to;
    for (size_t row = job->first; row < job->last; row++, to += length) {
        if (row + MOST_AHEAD < job->last)
            fetch_line(row_at(job, row + MOST_AHEAD));
        memcpy(to, row_at(job, row), length);
    }
}

static void copy_unequal(job *job)
{
    uint8_t *to = job->to;
    for (size_t row = job->first; row < job->last; row++) {
        size_t length = (size_t)job->lengths[row];
        if (row + 2 < job->last && job->lengths[row + 2])
            fetch_line(pointer(job->from[row + 2]));
        if (length) /* an empty row may have no address: not even memcpy may be told of it */
            copy_one(to, pointer(job->from[row]), length, NULL, false);
        to += length;
    }
}

/* Pages are mostly of one length, but for the last one. */
static bool are_alike(const job *job, size_t row)
{
    if (job->last - row < ABREAST)
        return false;
    bool alike = true;
    for (size_t next = 1; next < ABREAST; next++)
        alike &= job->lengths[row + next] == job->lengths[row];
    return alike;
}

static void check_unequal(job *job)
{
    for (size_t row = job->first, count; row < job->last; row += count) {
        size_t length = (size_t)job->lengths[row];
        uint64_t sums[ABREAST];
        count = are_alike(job, row) ? ABREAST : 1;
        if (count == ABREAST) {
            const uint8_t *from[ABREAST];
            for (size_t at = 0; at < ABREAST; at++)
                from[at] = pointer(job->from[row + at]);
            sum_abreast(from, length, sums);
        } else {
            sums[0] = sum_span(pointer(job->from[row]), length);
        }
        for (size_t at = 0; at < count; at++) {
            if (sums[at] != job->checks[row + at]) {
                job->wrong = (Py_ssize_t)(row + at);
                return;
            }
        }
    }
}

static void work(job *one)
{
    if (one->checks)
        check_unequal(one);
    else if (one->lengths)
        copy_unequal(one);
    else if (one->row_bytes == 1)
        copy_short(one, 1);
    else if (one->row_bytes == 4)
        copy_short(one, 4);
    else if (one->row_bytes == 8)
        copy_short(one, 8);
    else if (one->row_bytes == 16)
        copy_short(one, 16);
    else
        copy_equal(one);
    finish_streaming();
}

/* Cut a job into parts of about as many bytes each. */
static void cut(const job *whole, size_t bytes, job *parts, size_t count)
{
    size_t row = whole->first, done = 0;
    for (size_t part = 0; part < count; part++) {
        size_t goal = bytes / count * (part + 1);
        parts[part] = *whole;
        parts[part].first = row;
        parts[part].to = whole->to ? whole->to + done : NULL;
        if (part + 1 == count) {
            row = whole->last;
        } else if (!whole->lengths) {
            row = whole->first + (whole->last - whole->first) * (part + 1) / count;
            done = (row - whole->first) * whole->row_bytes;
        } else {
            while (row < whole->last && done < goal)
                done += (size_t)whole->lengths[row++];
        }
        parts[part].last = row;
    }
}

/* What the threads of one call share. Whoever lets go of it last frees it: a helper that was never
 * given a core finds nothing left to do, and nobody has waited for it. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    size_t count, taken, done, holders;
    job parts[MOST_PARTS];
} crew;

static void let_go(crew *crew)
{
    bool last = --crew->holders == 0;
    pthread_mutex_unlock(&crew->lock);
    if (!last)
        return;
    pthread_cond_destroy(&crew->all_done);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
}

/* Work on parts until none is left; returns with the lock held. */
static void work_off(crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    while (crew->taken < crew->count) {
        job *mine = &crew->parts[crew->taken++];
        pthread_mutex_unlock(&crew->lock);
        work(mine);
        pthread_mutex_lock(&crew->lock);
        if (++crew->done == crew->count)
            pthread_cond_signal(&crew->all_done);
    }
}

static void *help(void *argument)
{
    crew *crew = argument;
    work_off(crew);
    let_go(crew);
    return NULL;
}

static void start_helpers(crew *crew, size_t helpers)
{
    pthread_attr_t detached;
    if (pthread_attr_init(&detached))
        return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (helpers--) {
        pthread_mutex_lock(&crew->lock);
        crew->holders++;
        pthread_mutex_unlock(&crew->lock);
        if (!pthread_create(&thread, &detached, help, crew))
            continue;
        pthread_mutex_lock(&crew->lock);
        crew->holders--;
        pthread_mutex_unlock(&crew->lock);
    }
    pthread_attr_destroy(&detached);
}

static crew *gathered_crew(const job *whole, size_t bytes)
{
    crew *crew = malloc(sizeof *crew);
    if (!crew)
        return NULL;
    size_t parts = bytes / (whole->checks ? CHECKED_PART_BYTES : PART_BYTES);
    crew->count = parts > MOST_PARTS ? MOST_PARTS : parts;
    crew->taken = crew->done = 0;
    crew->holders = 1;
    cut(whole, bytes, crew->parts, crew->count);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->all_done, NULL);
    return crew;
}

/* The first wrong row, or -1. Threads take small parts, so that one whose core is busy with
 * something else holds up nobody, and live as long as the work: there is nothing to close, and
 * nothing to break in a fork. */
static Py_ssize_t run(job *whole, size_t bytes, size_t threads)
{
    size_t most = bytes / (whole->checks ? CHECKED_PART_BYTES : THREAD_BYTES);
    threads = threads < most ? threads : most;
    crew *crew = threads > 1 ? gathered_crew(whole, bytes) : NULL;
    if (!crew) {
        work(whole);
        return whole->wrong;
    }
    start_helpers(crew, threads - 1);
    work_off(crew);
    while (crew->done < crew->count)
        pthread_cond_wait(&crew->all_done, &crew->lock);
    Py_ssize_t wrong = -1;
    for (size_t part = crew->count; part-- > 0;) {
        if (crew->parts[part].wrong >= 0)
            wrong = crew->parts[part].wrong;
    }
    let_go(crew);
    return wrong;
}

/* ------------------------------------------------------------------ Python */

/* With `or_none`, 0 and less stand for what is not there. */
static bool are_addresses(const int64_t *addresses, Py_ssize_t count, bool or_none)
{
    bool fine = true;
    for (Py_ssize_t at = 0; at < count; at++)
        fine &= addresses[at] >= FIRST_ADDRESS || (or_none && addresses[at] <= 0);
    if (!fine)
        PyErr_SetString(PyExc_ValueError, "a row has no address");
    return fine;
}

static PyObject *started(job *job, Py_ssize_t bytes, Py_ssize_t threads)
{
    size_t touched = (size_t)bytes + (job->last - job->first) * LINE;
    threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    job->around = bytes >= STREAMED_BYTES && !job->lengths && job->row_bytes % 16 == 0 &&
                  (uintptr_t)job->to % 16 == 0;
    job->wrong = -1;
    Py_ssize_t wrong = -1;
    if (bytes && touched < LOCKED_BYTES && !job->checks) {
        wrong = run(job, (size_t)bytes, 1);
    } else if (bytes) {
        Py_BEGIN_ALLOW_THREADS
        wrong = run(job, (size_t)bytes, (size_t)threads);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromSsize_t(wrong);
}

/* Whether so many rows, and sums, are what `out` takes. */
static bool sizes_fit(Py_ssize_t rows, Py_ssize_t row_bytes, const Py_buffer *out, bool summed,
                      Py_ssize_t sums, Py_ssize_t wanted_sums)
{
    Py_ssize_t fitting = row_bytes > 0 ? PY_SSIZE_T_MAX / row_bytes : PY_SSIZE_T_MAX;
    if (row_bytes < 0 || rows > fitting || rows * row_bytes != out->len || sums != wanted_sums) {
        PyErr_Format(PyExc_ValueError, "%zd rows of %zd bytes, %zd sums, for %zd bytes", rows,
                     row_bytes, sums, out->len);
        return false;
    }
    if (summed && row_bytes < LEAST_SUMMED) {
        PyErr_Format(PyExc_ValueError, "rows of %zd bytes have no sums", row_bytes);
        return false;
    }
    return true;
}

static PyObject *rows_checked(const Py_buffer *from, Py_ssize_t row_bytes, const Py_buffer *out,
                              const Py_buffer *sums, Py_ssize_t threads)
{
    Py_ssize_t rows = items(from, 8, "addresses"), summed_rows = sums->obj ? items(sums, 8, "sums") : rows;
    if (rows < 0 || summed_rows < 0 ||
        !sizes_fit(rows, row_bytes, out, sums->obj != NULL, summed_rows, rows))
        return NULL;
    if (!are_addresses(from->buf, row_bytes ? rows : 0, false) ||
        (sums->obj && !are_addresses(sums->buf, rows, true)))
        return NULL;
    job job = {.from = from->buf, .sums = sums->obj ? sums->buf : NULL,
               .row_bytes = (size_t)row_bytes, .last = (size_t)rows, .to = out->buf};
    return started(&job, out->len, threads);
}

static PyObject *copy_rows(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer from, out, sums;
    Py_ssize_t row_bytes, threads;
    if (!PyArg_ParseTuple(arguments, "y*nw*z*n", &from, &row_bytes, &out, &sums, &threads))
        return NULL;
    PyObject *wrong = rows_checked(&from, row_bytes, &out, &sums, threads);
    PyBuffer_Release(&from);
    PyBuffer_Release(&out);
    PyBuffer_Release(&sums);
    return wrong;
}

/* Whether each row is one of an open run. */
static bool are_rows(const job *job, const int64_t *live, size_t runs)
{
    for (size_t at = job->first; at < job->last; at++) {
        int64_t run = job->run[at], row = job->row[at];
        /* As an unsigned number, a run below zero is too large. */
        if ((uint64_t)run >= runs || row < 0 || row >= live[run]) {
            PyErr_Format(PyExc_IndexError, "row %lld of run %lld is beyond its end", (long long)row,
                         (long long)run);
            return false;
        }
        if (job->from[run] < FIRST_ADDRESS) {
            PyErr_Format(PyExc_IndexError, "run %lld is not open", (long long)run);
            return false;
        }
    }
    return true;
}

typedef struct {
    Py_buffer live, from, sums, run, row, out;
    Py_ssize_t step_bytes, row_bytes, threads;
} taken;

static PyObject *taken_checked(const taken *given)
{
    Py_ssize_t runs = items(&given->live, 8, "rows of runs"), known = items(&given->from, 8, "addresses");
    Py_ssize_t rows = items(&given->row, 8, "rows"), named = items(&given->run, 8, "runs");
    bool summed = given->sums.obj != NULL;
    Py_ssize_t sums = summed ? items(&given->sums, 8, "sums") : known;
    if (runs < 0 || known < 0 || rows < 0 || named < 0 || sums < 0)
        return NULL;
    if (runs != known || rows != named)
        return PyErr_Format(PyExc_ValueError, "%zd runs at %zd addresses, %zd rows of %zd runs", runs,
                            known, rows, named);
    if (!sizes_fit(rows, given->row_bytes, &given->out, summed, sums, known))
        return NULL;
    job job = {.from = given->from.buf, .sums = summed ? given->sums.buf : NULL,
               .run = given->run.buf, .row = given->row.buf,
               .row_bytes = (size_t)given->row_bytes, .step_bytes = (size_t)given->step_bytes,
               .last = (size_t)rows, .to = given->out.buf};
    if (!are_rows(&job, given->live.buf, (size_t)runs))
        return NULL;
    return started(&job, given->out.len, given->threads);
}

static PyObject *take_rows(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    taken given;
    if (!PyArg_ParseTuple(arguments, "y*y*z*y*y*nnw*n", &given.live, &given.from, &given.sums,
                          &given.run, &given.row, &given.step_bytes, &given.row_bytes, &given.out,
                          &given.threads))
        return NULL;
    PyObject *wrong = taken_checked(&given);
    Py_buffer *every[] = {&given.live, &given.from, &given.sums, &given.run, &given.row, &given.out};
    for (size_t at = 0; at < sizeof every / sizeof *every; at++)
        PyBuffer_Release(every[at]);
    return wrong;
}

static PyObject *spans_checked(const Py_buffer *from, const Py_buffer *lengths,
                               const Py_buffer *out, Py_ssize_t threads)
{
    Py_ssize_t rows = items(from, 8, "addresses"), counted = items(lengths, 8, "lengths");
    if (rows < 0 || counted < 0)
        return NULL;
    const int64_t *addresses = from->buf, *bytes = lengths->buf;
    Py_ssize_t left = out->len;
    bool fine = rows == counted;
    for (Py_ssize_t row = 0; fine && row < rows; row++) {
        fine = bytes[row] >= 0 && bytes[row] <= left && (!bytes[row] || addresses[row] >= FIRST_ADDRESS);
        left -= fine ? (Py_ssize_t)bytes[row] : 0;
    }
    if (!fine || left)
        return PyErr_Format(PyExc_ValueError,
                            "%zd addresses and %zd lengths do not make up %zd bytes", rows, counted,
                            out->len);
    job job = {.from = addresses, .lengths = bytes, .last = (size_t)rows, .to = out->buf};
    return started(&job, out->len, threads);
}

static PyObject *copy_spans(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer from, lengths, out;
    Py_ssize_t threads;
    if (!PyArg_ParseTuple(arguments, "y*y*w*n", &from, &lengths, &out, &threads))
        return NULL;
    PyObject *wrong = spans_checked(&from, &lengths, &out, threads);
    PyBuffer_Release(&from);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&out);
    return wrong;
}

static PyObject *spans_compared(const Py_buffer *from, const Py_buffer *lengths,
                                const Py_buffer *checks, Py_ssize_t threads)
{
    Py_ssize_t rows = items(from, 8, "addresses"), counted = items(lengths, 8, "lengths");
    Py_ssize_t known = items(checks, 8, "sums"), total = 0;
    if (rows < 0 || counted < 0 || known < 0)
        return NULL;
    const int64_t *addresses = from->buf, *bytes = lengths->buf;
    bool fits = counted == rows && known == rows;
    for (Py_ssize_t row = 0; fits && row < rows; row++) {
        fits = bytes[row] >= LEAST_SUMMED && bytes[row] <= PY_SSIZE_T_MAX - total;
        total += fits ? bytes[row] : 0;
    }
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "%zd addresses, %zd lengths, %zd sums of spans", rows,
                            counted, known);
    if (!are_addresses(addresses, rows, false))
        return NULL;
    job job = {.from = addresses, .lengths = bytes, .checks = checks->buf, .last = (size_t)rows};
    return started(&job, total, threads);
}

static PyObject *check_spans(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer buffers[3] = {{0}};
    Py_ssize_t threads;
    PyObject *wrong = NULL;
    if (PyArg_ParseTuple(arguments, "y*y*y*n", &buffers[0], &buffers[1], &buffers[2], &threads))
        wrong = spans_compared(&buffers[0], &buffers[1], &buffers[2], threads);
    release(buffers, 3);
    return wrong;
}

static PyMethodDef METHODS[] = {
    {"check_spans", check_spans, METH_VARARGS, NULL},
    {"take_rows", take_rows, METH_VARARGS, NULL},
    {"copy_rows", copy_rows, METH_VARARGS, NULL},
    {"copy_spans", copy_spans, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_rows(PyObject *module)
{
    copy_and_sum = best_summed();
    sum_span = best_sum();
    sum_abreast = best_abreast();
    return PyModule_AddFunctions(module, METHODS);
}
