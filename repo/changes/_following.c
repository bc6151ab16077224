/* Links followed in the table of a collection: rows are found and marked by one call an object.
 *
 * A million links are looked up, nine or ten for each object that has any. The twin in Python is
 * gc_marks.py beside this, which says what arguments and results are.
 *
 * Only what Python 3.11's limited API and C11 have is used. Nothing outside of the buffers is read
 * or written, whatever they hold: each number is compared with their sizes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    DIGEST = 32,
    ROW = 48,  /* begins with a digest */
    LINK = 40, /* digest, bytes (6), kind, flags */
    LEAF = 1,
    BUCKETS = 1 << 16, /* rows are found by the first 16 bits of their digests */
};

static const uint32_t SEVERAL = UINT32_MAX;

typedef struct {
    Py_buffer rows, starts, owners, links;
    uint32_t owner;
} job;

/* Number of the first row of a digest, -1 where it has none. */
static int64_t find(const job *job, const uint8_t *digest)
{
    const uint8_t *rows = job->rows.buf;
    const uint64_t *starts = job->starts.buf;
    uint64_t count = (uint64_t)job->rows.len / ROW;
    unsigned bucket = (unsigned)digest[0] << 8 | digest[1];
    uint64_t low = starts[bucket], stop = starts[bucket + 1], high = stop;
    if (low > stop || stop > count)
        return -1;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (memcmp(rows + middle * ROW, digest, DIGEST) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < stop && !memcmp(rows + low * ROW, digest, DIGEST) ? (int64_t)low : -1;
}

/* Results are as large as all links at most, and most of them are empty. */
typedef struct {
    uint64_t *pending;
    uint8_t *unlisted;
    Py_ssize_t pending_count, unlisted_count, marked;
} found;

static void follow_all(const job *job, found *found)
{
    uint32_t *owners = job->owners.buf;
    const uint8_t *end = (const uint8_t *)job->links.buf + job->links.len;
    for (const uint8_t *link = job->links.buf; link < end; link += LINK) {
        int64_t number = find(job, link);
        if (number < 0) {
            memcpy(found->unlisted + LINK * found->unlisted_count++, link, LINK);
            continue;
        }
        uint32_t known = owners[number];
        if (known == job->owner || known == SEVERAL)
            continue;
        owners[number] = known ? SEVERAL : job->owner;
        found->marked += !known;
        if (!(link[LINK - 1] & LEAF))
            found->pending[found->pending_count++] = (uint64_t)number;
    }
}

static bool fits(const job *job)
{
    return job->rows.len % ROW == 0 && job->links.len % LINK == 0 &&
           job->starts.len == (BUCKETS + 1) * (Py_ssize_t)sizeof(uint64_t) &&
           job->owners.len >= job->rows.len / ROW * (Py_ssize_t)sizeof(uint32_t);
}

static PyObject *follow_in(const job *job)
{
    size_t links = (size_t)(job->links.len / LINK);
    found found = {
        .pending = PyMem_Malloc(links * sizeof *found.pending + 1),
        .unlisted = PyMem_Malloc(links * LINK + 1),
    };
    PyObject *answer = NULL;
    if (!found.pending || !found.unlisted) {
        PyErr_NoMemory();
    } else {
        follow_all(job, &found);
        answer = Py_BuildValue(
            "(ny#y#)", found.marked, (const char *)found.pending,
            found.pending_count * (Py_ssize_t)sizeof *found.pending, (const char *)found.unlisted,
            found.unlisted_count * LINK);
    }
    PyMem_Free(found.pending);
    PyMem_Free(found.unlisted);
    return answer;
}

/* follow(rows, starts, owners, owner, links) */
static PyObject *follow(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    job job = {0};
    unsigned long owner;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*w*ky*", &job.rows, &job.starts, &job.owners, &owner,
                          &job.links))
        return NULL;
    job.owner = (uint32_t)owner;
    if (fits(&job))
        answer = follow_in(&job);
    else
        PyErr_SetString(PyExc_ValueError, "rows, starts, owners and links disagree in length");
    PyBuffer_Release(&job.rows);
    PyBuffer_Release(&job.starts);
    PyBuffer_Release(&job.owners);
    PyBuffer_Release(&job.links);
    return answer;
}

static PyMethodDef METHODS[] = {
    {"follow", follow, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_following", NULL, 0, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__following(void)
{
    return PyModule_Create(&MODULE);
}
