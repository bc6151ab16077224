/* Bulk reads of image files into one buffer, without Python between one file and the next.
 *
 * look says of each file which image format it begins as and how large it is. read takes files in
 * whole, one behind the other, and finds what a JPEG such as encoders write says of itself; of any
 * other image the caller finds out. Both let go of the interpreter lock once for all the files:
 * around each call of the system, a thread would wait for it several times a file. The twin in
 * Python is files.py beside this.
 *
 * Whatever files hold, nothing is read or written outside of the buffers, whose sizes are checked
 * here. A file may grow, shrink or vanish meanwhile: its bytes are those that the system gave.
 *
 * Only what Python 3.11's limited API and POSIX have is used.
 */
#define PY_SSIZE_T_CLEAN
#define _POSIX_C_SOURCE 200809L
#include <Python.h>

#include "jpeg_walk.h"
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 32,              /* what tells the format */
    FIRST_BYTES = 64 << 10,       /* most images, and not much of what is none */
    MOST_BYTES = 1 << 30,         /* that one call of the system is asked for */
};

/* What is found out about a file; RECORD in files.py. */
typedef struct {
    int64_t end;           /* look: bytes of the file; read: where it ends in the buffer */
    uint32_t height, width; /* of a JPEG that was walked through */
    int32_t error;         /* of the system; this was the last file then */
    uint8_t codec;         /* 0: no image */
    uint8_t components;    /* 0: not walked through, height and width are not known */
    uint8_t unused[2];
} record;

_Static_assert(sizeof(record) == 24, "files.py knows records of 24 bytes");

/* ------------------------------------------------------------------ what bytes are */

enum { NO_IMAGE, PNG, JPEG, GIF, BMP, TIFF, WEBP }; /* places in CODECS of files.py */

static bool begins(const uint8_t *head, size_t size, const char *magic, size_t length)
{
    return size >= length && !memcmp(head, magic, length);
}

static bool is_bmp(const uint8_t *head, size_t size)
{
    /* Two letters are thin evidence: the size of the second header must be a known one too. */
    static const uint8_t KNOWN[] = {12, 40, 52, 56, 64, 108, 124};
    if (size < 18 || head[15] || head[16] || head[17])
        return false;
    return memchr(KNOWN, head[14], sizeof KNOWN) != NULL;
}

/* The format of a file of which `size` bytes were read: HEAD_BYTES at least, or all there are. */
static uint8_t codec_of(const uint8_t *head, size_t size)
{
    if (begins(head, size, "\xff\xd8\xff", 3))
        return JPEG;
    if (begins(head, size, "\x89PNG\r\n\x1a\n", 8))
        return PNG;
    if (begins(head, size, "GIF87a", 6) || begins(head, size, "GIF89a", 6))
        return GIF;
    if (begins(head, size, "II*\0", 4) || begins(head, size, "MM\0*", 4) ||
        begins(head, size, "II+\0", 4) || begins(head, size, "MM\0+", 4))
        return TIFF;
    if (begins(head, size, "RIFF", 4))
        return size >= 12 && !memcmp(head + 8, "WEBP", 4) ? WEBP : NO_IMAGE;
    if (begins(head, size, "BM", 2))
        return is_bmp(head, size) ? BMP : NO_IMAGE;
    return NO_IMAGE;
}

static bool ends_behind(const uint8_t *data, size_t size, size_t at)
{
    while (size-- > at + 1) {
        if (data[size] == 0xD9 && data[size - 1] == 0xFF)
            return true;
    }
    return false;
}

/* Segment after segment to the first scan, then from the end to the mark of the end. Whatever is
 * unusual, or wrong, is left to the caller: padding, markers without a length, no frame, no pixels,
 * a file cut short. */
static void walk_jpeg(const uint8_t *data, size_t size, record *found)
{
    size_t at = JPEG_FIRST, frame = 0;
    for (; is_segment(data, size, at) && data[at + 1] != JPEG_SCAN; at += 2 + pair(data + at + 2)) {
        if (is_frame(data[at + 1]) && !frame)
            frame = at + 2;
    }
    if (!is_segment(data, size, at))
        return;
    /* The frame: length (2 bytes), bits, height (2), width (2), components. */
    if (!frame || size - frame < JPEG_FRAME_BYTES || !ends_behind(data, size, at + 2))
        return;
    uint32_t height = pair(data + frame + 3), width = pair(data + frame + 5);
    if (!height || !width || !data[frame + 7])
        return;
    found->height = height;
    found->width = width;
    found->components = data[frame + 7];
}

/* ------------------------------------------------------------------ one file */

static int open_file(const char *path)
{
    int file;
    do
        file = open(path, O_RDONLY | O_CLOEXEC);
    while (file < 0 && errno == EINTR);
    return file;
}

static ssize_t read_some(int file, uint8_t *to, size_t most)
{
    ssize_t got;
    do
        got = read(file, to, most < MOST_BYTES ? most : MOST_BYTES);
    while (got < 0 && errno == EINTR);
    return got;
}

/* The beginning of a file: at least HEAD_BYTES, or all of it, which `*ended` says then.
 * -1: the system refused. */
static ssize_t read_head(int file, uint8_t *to, size_t most, bool *ended)
{
    size_t have = 0;
    while (have < HEAD_BYTES && !*ended) {
        ssize_t got = read_some(file, to + have, most - have);
        if (got < 0)
            return -1;
        *ended = !got;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

static bool look_into(int file, record *found)
{
    uint8_t head[HEAD_BYTES];
    bool ended = false;
    ssize_t have = read_head(file, head, sizeof head, &ended);
    off_t size = have < 0 ? -1 : lseek(file, 0, SEEK_END);
    if (size < 0)
        return false;
    found->codec = codec_of(head, (size_t)have);
    found->end = size;
    return true;
}

/* Whether a file of which more than FIRST_BYTES were found says that it is larger than the room:
 * reading it to see that could take as long as all before it. */
static bool seems_larger(int file, size_t room)
{
    struct stat status;
    return !fstat(file, &status) && S_ISREG(status.st_mode) && (uintmax_t)status.st_size > room;
}

typedef enum { TAKEN, REFUSED, TOO_LARGE } outcome;

/* An image file to its end, which is where the system says that there is no more; `*size` bytes.
 * Of any other file nothing is kept. */
static outcome take_in(int file, uint8_t *to, size_t room, size_t *size, record *found)
{
    bool ended = false;
    ssize_t got = read_head(file, to, room < FIRST_BYTES ? room : FIRST_BYTES, &ended);
    if (got < 0)
        return REFUSED;
    size_t have = (size_t)got;
    found->codec = codec_of(to, have);
    if (found->codec == NO_IMAGE)
        return TAKEN;
    if (!ended && have == FIRST_BYTES && seems_larger(file, room))
        return TOO_LARGE;
    while (!ended) {
        uint8_t behind;
        bool full = have == room;
        got = full ? read_some(file, &behind, 1) : read_some(file, to + have, room - have);
        if (got < 0)
            return REFUSED;
        if (full && got)
            return TOO_LARGE;
        ended = !got;
        have += (size_t)got;
    }
    if (found->codec == JPEG)
        walk_jpeg(to, have, found);
    *size = have;
    return TAKEN;
}

/* ------------------------------------------------------------------ many files */

typedef struct {
    const char *paths; /* each ends in a NUL */
    record *found;
    Py_ssize_t files;
    uint8_t *to;
    size_t room;
} job;

/* How many were looked into; the next one was refused, if there is one. */
static Py_ssize_t look_all(const job *job)
{
    const char *path = job->paths;
    for (Py_ssize_t at = 0; at < job->files; at++, path += strlen(path) + 1) {
        int file = open_file(path);
        bool fine = file >= 0 && look_into(file, &job->found[at]);
        if (!fine)
            job->found[at].error = errno;
        if (file >= 0)
            close(file);
        if (!fine)
            return at;
    }
    return job->files;
}

/* How many were read; the next one was refused, or did not fit, if there is one. */
static Py_ssize_t read_all(const job *job)
{
    const char *path = job->paths;
    size_t end = 0;
    for (Py_ssize_t at = 0; at < job->files; at++, path += strlen(path) + 1) {
        if (job->room - end < HEAD_BYTES)
            return at;
        int file = open_file(path);
        size_t size = 0;
        outcome what = REFUSED;
        if (file >= 0)
            what = take_in(file, job->to + end, job->room - end, &size, &job->found[at]);
        if (what == REFUSED)
            job->found[at].error = errno;
        if (file >= 0)
            close(file);
        if (what != TAKEN)
            return at;
        end += size;
        job->found[at].end = (int64_t)end;
    }
    return job->files;
}

/* ------------------------------------------------------------------ Python */

/* As many paths as records, or an error. The records are cleared. */
static bool is_complete(const Py_buffer *paths, const Py_buffer *found, job *job)
{
    const char *names = paths->buf;
    Py_ssize_t files = 0;
    for (Py_ssize_t at = 0; at < paths->len; at++)
        files += !names[at];
    bool ended = !paths->len || !names[paths->len - 1];
    if (!ended || found->len % (Py_ssize_t)sizeof(record) ||
        found->len / (Py_ssize_t)sizeof(record) != files ||
        (uintptr_t)found->buf % _Alignof(record)) {
        PyErr_Format(PyExc_ValueError, "%zd paths do not fit %zd bytes of records", files,
                     found->len);
        return false;
    }
    if (files)
        memset(found->buf, 0, (size_t)found->len);
    job->paths = names;
    job->found = found->buf;
    job->files = files;
    return true;
}

static PyObject *done_by(Py_ssize_t (*work)(const job *), const job *job)
{
    Py_ssize_t done;
    Py_BEGIN_ALLOW_THREADS
    done = work(job);
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(done);
}

static PyObject *look_files(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer paths, found;
    if (!PyArg_ParseTuple(arguments, "y*w*", &paths, &found))
        return NULL;
    job job = {0};
    PyObject *done = is_complete(&paths, &found, &job) ? done_by(look_all, &job) : NULL;
    PyBuffer_Release(&paths);
    PyBuffer_Release(&found);
    return done;
}

static PyObject *read_files(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer paths, found, out;
    if (!PyArg_ParseTuple(arguments, "y*w*w*", &paths, &found, &out))
        return NULL;
    job job = {.to = out.buf, .room = (size_t)out.len};
    PyObject *done = is_complete(&paths, &found, &job) ? done_by(read_all, &job) : NULL;
    PyBuffer_Release(&paths);
    PyBuffer_Release(&found);
    PyBuffer_Release(&out);
    return done;
}

static PyMethodDef METHODS[] = {
    {"look_files", look_files, METH_VARARGS, NULL},
    {"read_files", read_files, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_files(PyObject *module)
{
    return PyModule_AddFunctions(module, METHODS);
}
