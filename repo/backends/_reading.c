/* Small files read by one call, and a folder listed by one.
 *
 * A collection reads a hundred thousand small files, a check a million. Around each open, read and
 * close a thread of Python gives the interpreter away and waits for it again: here it does so once
 * for some hundreds, and a second thread reads half of them. The twins in Python are small_files.py
 * and disk.py beside this.
 *
 * A file is opened without following a link and without waiting, and read into memory of exactly
 * the size that the caller expects: one that is shorter or longer is none.
 *
 * Only what Python 3.11's limited API and POSIX have is used.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    READ = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
    MOST_THREADS = 2,  /* what is cached is bound by the processor, and others need it, too */
    FILES_EACH = 64,   /* a thread for fewer costs more than it saves */
};

/* ------------------------------------------------------------------ files */

typedef struct {
    int folder; /* descriptor of its folder */
    const char *name;
    PyObject *data; /* bytes of the size that is expected, to be filled */
    char *to;
    size_t bytes;
    bool whole;
} file;

typedef struct {
    file *first;
    Py_ssize_t count;
} part;

static bool read_whole(file *one)
{
    int fd;
    do
        fd = openat(one->folder, one->name, READ);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return false;
    char beyond; /* a byte more than expected tells that there are more */
    size_t have = 0;
    ssize_t got;
    do {
        struct iovec to[] = {{one->to + have, one->bytes - have}, {&beyond, 1}};
        got = readv(fd, to, 2);
        if (got > 0)
            have += (size_t)got;
        /* A short read of a file is its end, but for one that a signal cut. */
    } while ((got < 0 && errno == EINTR) || (got > 0 && have < one->bytes));
    close(fd);
    return got >= 0 && have == one->bytes;
}

static void *read_part(void *argument)
{
    const part *some = argument;
    for (Py_ssize_t at = 0; at < some->count; at++)
        some->first[at].whole = read_whole(&some->first[at]);
    return NULL;
}

static void read_files(file *files, Py_ssize_t count)
{
    part parts[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    Py_ssize_t wanted = count / FILES_EACH;
    wanted = wanted < 1 ? 1 : wanted > MOST_THREADS ? MOST_THREADS : wanted;
    int begun = 0;
    Py_ssize_t at = 0;
    for (Py_ssize_t left = wanted; left > 1; left--) {
        Py_ssize_t some = (count - at) / left;
        parts[begun] = (part){files + at, some};
        if (pthread_create(&threads[begun], NULL, read_part, &parts[begun]))
            break;
        begun++;
        at += some;
    }
    part last = {files + at, count - at};
    read_part(&last);
    while (begun)
        pthread_join(threads[--begun], NULL);
}

static bool take_file(file *one, PyObject *item)
{
    Py_ssize_t bytes;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a file is (descriptor of its folder, name, bytes)");
        return false;
    }
    if (!PyArg_ParseTuple(item, "isn", &one->folder, &one->name, &bytes))
        return false;
    if (bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "a file has no less than 0 bytes");
        return false;
    }
    one->data = PyBytes_FromStringAndSize(NULL, bytes);
    if (!one->data)
        return false;
    one->to = PyBytes_AsString(one->data);
    one->bytes = (size_t)bytes;
    return true;
}

/* Bytes of each file, None for what is none of that size. Takes what `files` own. */
static PyObject *answer_of(file *files, Py_ssize_t count)
{
    PyObject *answer = PyList_New(count);
    for (Py_ssize_t at = 0; answer && at < count; at++) {
        PyObject *one = files[at].whole ? files[at].data : Py_None;
        Py_INCREF(one);
        if (PyList_SetItem(answer, at, one)) {
            Py_DECREF(answer);
            return NULL;
        }
    }
    return answer;
}

/* read(((descriptor of a folder, name, bytes), ...)) */
static PyObject *read_all(PyObject *Py_UNUSED(module), PyObject *wanted)
{
    if (!PyTuple_Check(wanted)) /* nobody can change one: the names that are pointed to stay */
        return PyErr_Format(PyExc_TypeError, "files to be read are a tuple");
    Py_ssize_t count = PyTuple_Size(wanted), taken = 0;
    file *files = calloc((size_t)count + 1, sizeof *files);
    PyObject *answer = NULL;
    if (!files)
        return PyErr_NoMemory();
    while (taken < count && take_file(&files[taken], PyTuple_GetItem(wanted, taken)))
        taken++;
    if (taken == count) {
        Py_BEGIN_ALLOW_THREADS
        read_files(files, count);
        Py_END_ALLOW_THREADS
        answer = answer_of(files, count);
    }
    for (Py_ssize_t at = 0; at < count; at++)
        Py_XDECREF(files[at].data);
    free(files);
    return answer;
}

/* ------------------------------------------------------------------ folders */

typedef struct {
    char *name;
    struct stat status;
} entry;

typedef struct {
    entry *entries;
    size_t count, room;
} listing;

static bool add_entry(listing *all, const char *name, const struct stat *status)
{
    if (all->count == all->room) {
        size_t room = all->room ? 2 * all->room : 256;
        entry *moved = realloc(all->entries, room * sizeof *moved);
        if (!moved)
            return false;
        all->entries = moved;
        all->room = room;
    }
    char *kept = strdup(name);
    if (!kept)
        return false;
    all->entries[all->count++] = (entry){kept, *status};
    return true;
}

/* 0, or what the system said. */
static int list_entries(DIR *folder, listing *all)
{
    for (;;) {
        errno = 0;
        struct dirent *each = readdir(folder);
        if (!each)
            return errno;
        if (!strcmp(each->d_name, ".") || !strcmp(each->d_name, ".."))
            continue;
        struct stat status;
        if (fstatat(dirfd(folder), each->d_name, &status, AT_SYMLINK_NOFOLLOW)) {
            if (errno == ENOENT)
                continue; /* deleted meanwhile */
            return errno;
        }
        if (!add_entry(all, each->d_name, &status))
            return ENOMEM;
    }
}

static int list_folder(int fd, listing *all)
{
    /* Of an own descriptor: where the listing stands belongs to it, and closing closes it. */
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = own < 0 ? NULL : fdopendir(own);
    if (!folder) {
        int error = errno;
        if (own >= 0)
            close(own);
        return error;
    }
    int error = list_entries(folder, all);
    closedir(folder);
    return error;
}

static PyObject *entries_of(const listing *all)
{
    PyObject *answer = PyList_New((Py_ssize_t)all->count);
    for (size_t at = 0; answer && at < all->count; at++) {
        const entry *each = &all->entries[at];
        const struct timespec *changed = &each->status.st_mtim;
        double seconds = (double)changed->tv_sec + 1e-9 * (double)changed->tv_nsec;
        PyObject *one = Py_BuildValue("(NILd)", PyUnicode_DecodeFSDefault(each->name),
                                      (unsigned)each->status.st_mode,
                                      (long long)each->status.st_size, seconds);
        if (!one || PyList_SetItem(answer, (Py_ssize_t)at, one)) {
            Py_DECREF(answer);
            return NULL;
        }
    }
    return answer;
}

/* scan(descriptor of a folder): (name, mode, bytes, seconds of its change) of each entry. */
static PyObject *scan(PyObject *Py_UNUSED(module), PyObject *argument)
{
    long fd = PyLong_AsLong(argument);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    listing all = {0};
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = list_folder((int)fd, &all);
    Py_END_ALLOW_THREADS
    PyObject *answer = NULL;
    errno = error;
    if (error)
        PyErr_SetFromErrno(PyExc_OSError);
    else
        answer = entries_of(&all);
    while (all.count)
        free(all.entries[--all.count].name);
    free(all.entries);
    return answer;
}

static PyMethodDef METHODS[] = {
    {"read", read_all, METH_O, NULL},
    {"scan", scan, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_reading", NULL, 0, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__reading(void)
{
    return PyModule_Create(&MODULE);
}
