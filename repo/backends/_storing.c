/* Small files stored by one call: written, synced, named, and the folders of their names synced. And
 * the parts of a large file written by one call.
 *
 * A group of commits stores a dozen files by some hundred calls of the system, a file of 64 MiB takes
 * 256 of them. Around each of them a thread of Python gives the interpreter away, and waits for it
 * once more: here it does so once. The steps are those of disk.py beside this, in the same order and
 * for the same reasons.
 *
 * Only what Python 3.11's limited API and Linux have is used. Where there are no files without a
 * name (O_TMPFILE) the caller never asks.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, /* a link is never followed */
    MOST_THREADS = 8, /* syncs that wait at once share the drive's answer */
    SYNCS_EACH = 4,   /* a thread for fewer costs more than it saves */
    MOST_PARTS = 1024,           /* IOV_MAX */
    UNINTERRUPTED_BYTES = 64 << 20, /* are written before Ctrl-C is asked for */
};

/* Steps, as disk.py has them by these numbers. LOOK changes nothing, and is not written down. */
typedef enum { LOOK, STAGE, SYNC, LINK, SYNC_FOLDER } verb;

typedef struct {
    verb verb;
    int place; /* of a file, or of a folder */
    int error; /* of the system; 0: nothing failed */
} failure;

typedef struct {
    const char *name, *data;
    size_t bytes;
    int folder;
    int fd; /* -1: its key is taken */
    bool created;
} file;

typedef struct {
    const char *root;
    const char **folders;
    int *opened; /* descriptors of the folders, -1 where none is open */
    file *files;
    int folder_count, file_count;
    int synced; /* so many of the folders, the first, are synced at the end */
    failure failure;
    /* For tests: (verb, place) of each step before it is done. Where they are full, all ends there,
     * as for a process that dies. */
    bool noted;
    int32_t *steps;
    int room;
    atomic_int begun;
} job;

static bool fails(job *job, verb verb, int place, int error)
{
    job->failure = (failure){verb, place, error};
    return false;
}

static bool begins(job *job, verb verb, int place)
{
    if (!job->noted)
        return true;
    int at = atomic_fetch_add(&job->begun, 1);
    if (at >= job->room)
        return false;
    job->steps[2 * at] = verb;
    job->steps[2 * at + 1] = place;
    return true;
}

/* ------------------------------------------------------------------ syncs side by side */

typedef struct {
    job *job;
    verb verb;
    int count;
    atomic_int next, stopped;
    pthread_mutex_t lock; /* of what failed */
} syncs;

static int descriptor(const syncs *all, int place)
{
    return all->verb == SYNC ? all->job->files[place].fd : all->job->opened[place];
}

static int sync_one(int fd)
{
    int result;
    do
        result = fsync(fd);
    while (result && errno == EINTR);
    return result ? errno : 0;
}

static void *sync_some(void *argument)
{
    syncs *all = argument;
    int place;
    while (!atomic_load(&all->stopped) && (place = atomic_fetch_add(&all->next, 1)) < all->count) {
        int fd = descriptor(all, place);
        if (fd < 0)
            continue;
        int error = begins(all->job, all->verb, place) ? sync_one(fd) : ECANCELED;
        if (error == EINVAL && all->verb == SYNC_FOLDER)
            error = 0; /* some file systems can't, and say so in this way */
        if (error) {
            pthread_mutex_lock(&all->lock);
            fails(all->job, all->verb, place, error);
            pthread_mutex_unlock(&all->lock);
            atomic_store(&all->stopped, 1);
        }
    }
    return NULL;
}

/* Sync the files, or the first folders; whether all are synced, when no thread is at work. */
static bool sync_all(job *job, verb verb, int count)
{
    syncs all = {.job = job, .verb = verb, .count = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[MOST_THREADS];
    int wanted = count / SYNCS_EACH < MOST_THREADS ? count / SYNCS_EACH : MOST_THREADS;
    int helpers = 0;
    while (helpers < wanted - 1 && !pthread_create(&threads[helpers], NULL, sync_some, &all))
        helpers++;
    sync_some(&all);
    while (helpers)
        pthread_join(threads[--helpers], NULL);
    return !atomic_load(&all.stopped);
}

/* ------------------------------------------------------------------ one step after the other */

/* A folder below `root`, reached without following a link; -1 and errno where there is none. */
static int open_folder(int root, const char *path)
{
    char name[NAME_MAX + 1];
    int at = root;
    for (size_t length; *path; path += length + (path[length] == '/')) {
        length = strcspn(path, "/");
        if (!length || length > NAME_MAX) {
            errno = ENAMETOOLONG;
            break;
        }
        memcpy(name, path, length);
        name[length] = 0;
        int inner = openat(at, name, FOLDER);
        int error = errno;
        if (at != root)
            close(at);
        errno = error;
        at = inner;
        if (at < 0)
            return -1;
    }
    if (!*path)
        return at == root ? fcntl(root, F_DUPFD_CLOEXEC, 0) : at;
    if (at != root)
        close(at);
    return -1;
}

static bool open_folders(job *job, int root)
{
    for (int place = 0; place < job->folder_count; place++) {
        job->opened[place] = open_folder(root, job->folders[place]);
        if (job->opened[place] < 0)
            return fails(job, LOOK, place, errno);
    }
    return true;
}

static bool write_whole(int fd, const char *data, size_t left)
{
    while (left) {
        ssize_t written = write(fd, data, left);
        if (written < 0 && errno != EINTR)
            return false;
        if (written > 0) {
            data += written;
            left -= (size_t)written;
        }
    }
    return true;
}

/* Files without a name, of all whose keys are free. */
static bool stage_all(job *job, int temporary)
{
    for (int place = 0; place < job->file_count; place++) {
        file *one = &job->files[place];
        struct stat status;
        if (!fstatat(job->opened[one->folder], one->name, &status, AT_SYMLINK_NOFOLLOW)) {
            if (!S_ISREG(status.st_mode))
                return fails(job, LOOK, place, EEXIST);
            continue;
        }
        if (!begins(job, STAGE, place))
            return fails(job, STAGE, place, ECANCELED);
        one->fd = openat(temporary, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
        if (one->fd < 0 || !write_whole(one->fd, one->data, one->bytes))
            return fails(job, STAGE, place, errno);
        /* The kernel begins to write it: many files begun together share one journal commit. */
        if (job->file_count > 1)
            posix_fadvise(one->fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    return true;
}

static bool link_all(job *job)
{
    char path[32];
    for (int place = 0; place < job->file_count; place++) {
        file *one = &job->files[place];
        if (one->fd < 0)
            continue;
        if (!begins(job, LINK, place))
            return fails(job, LINK, place, ECANCELED);
        snprintf(path, sizeof path, "/proc/self/fd/%d", one->fd);
        int refused =
            linkat(AT_FDCWD, path, job->opened[one->folder], one->name, AT_SYMLINK_FOLLOW);
        if (refused && errno != EEXIST)
            return fails(job, LINK, place, errno);
        one->created = !refused;
    }
    return true;
}

static bool store_below(job *job, int root, int temporary)
{
    /* A file is synced before it has its name: without that a power cut can leave the name on an
     * empty file. A folder is synced once the names are in it: only then do they stay. */
    return open_folders(job, root) && stage_all(job, temporary) &&
           sync_all(job, SYNC, job->file_count) && link_all(job) &&
           sync_all(job, SYNC_FOLDER, job->synced);
}

static void store_all(job *job, const char *temporary_name)
{
    int root = open(job->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int temporary = root < 0 ? -1 : openat(root, temporary_name, FOLDER);
    if (temporary < 0)
        fails(job, LOOK, 0, errno);
    else
        store_below(job, root, temporary);
    for (int place = 0; place < job->file_count; place++)
        if (job->files[place].fd >= 0)
            close(job->files[place].fd);
    for (int place = 0; place < job->folder_count; place++)
        if (job->opened[place] >= 0)
            close(job->opened[place]);
    if (temporary >= 0)
        close(temporary);
    if (root >= 0)
        close(root);
}

/* ------------------------------------------------------------------ Python */

static bool take_folders(job *job, PyObject *folders)
{
    for (int place = 0; place < job->folder_count; place++) {
        job->opened[place] = -1;
        job->folders[place] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(folders, place), NULL);
        if (!job->folders[place])
            return false;
    }
    return true;
}

/* All that is pointed to lives as long as the tuples do, which nobody can change. */
static bool take_files(job *job, PyObject *files)
{
    for (int place = 0; place < job->file_count; place++)
        job->files[place].fd = -1;
    for (int place = 0; place < job->file_count; place++) {
        file *one = &job->files[place];
        PyObject *each = PyTuple_GetItem(files, place), *data;
        char *bytes;
        Py_ssize_t size;
        if (!PyTuple_Check(each)) {
            PyErr_SetString(PyExc_TypeError, "a file is (place of its folder, name, bytes)");
            return false;
        }
        if (!PyArg_ParseTuple(each, "isS", &one->folder, &one->name, &data) ||
            PyBytes_AsStringAndSize(data, &bytes, &size))
            return false;
        one->data = bytes;
        one->bytes = (size_t)size;
        if (one->folder < 0 || one->folder >= job->folder_count) {
            PyErr_Format(PyExc_IndexError, "folder %d of %d", one->folder, job->folder_count);
            return false;
        }
    }
    return true;
}

/* (whether each file was created, a byte each; verb, place and error of what failed). */
static PyObject *answer_of(const job *job)
{
    PyObject *created = PyBytes_FromStringAndSize(NULL, job->file_count);
    if (!created)
        return NULL;
    char *flags = PyBytes_AsString(created);
    for (int place = 0; place < job->file_count; place++)
        flags[place] = job->files[place].created;
    return Py_BuildValue("(Niii)", created, (int)job->failure.verb, job->failure.place,
                         job->failure.error);
}

/* store(root, name of the temporary folder, folders, how many of them are synced, files, steps) */
static PyObject *store(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *root, *temporary;
    PyObject *folders, *files, *answer = NULL;
    Py_buffer steps = {0};
    job job = {0};
    if (!PyArg_ParseTuple(arguments, "ysO!iO!|w*", &root, &temporary, &PyTuple_Type, &folders,
                          &job.synced, &PyTuple_Type, &files, &steps))
        return NULL;
    job.root = root;
    job.folder_count = (int)PyTuple_Size(folders);
    job.file_count = (int)PyTuple_Size(files);
    job.noted = steps.obj != NULL;
    job.steps = steps.buf;
    job.room = (int)(steps.len / (Py_ssize_t)(2 * sizeof *job.steps));
    job.folders = calloc((size_t)job.folder_count + 1, sizeof *job.folders);
    job.opened = calloc((size_t)job.folder_count + 1, sizeof *job.opened);
    job.files = calloc((size_t)job.file_count + 1, sizeof *job.files);
    if (!job.folders || !job.opened || !job.files) {
        PyErr_NoMemory();
    } else if (job.synced < 0 || job.synced > job.folder_count) {
        PyErr_Format(PyExc_ValueError, "%d of %d folders", job.synced, job.folder_count);
    } else if (take_folders(&job, folders) && take_files(&job, files)) {
        Py_BEGIN_ALLOW_THREADS
        store_all(&job, temporary);
        Py_END_ALLOW_THREADS
        answer = answer_of(&job);
    }
    free(job.folders);
    free(job.opened);
    free(job.files);
    if (steps.obj)
        PyBuffer_Release(&steps);
    return answer;
}

/* ------------------------------------------------------------------ a large file */

typedef struct {
    struct iovec *parts; /* what is left of them */
    int count, next;
    size_t written, piece_bytes;
} large;

/* One call of the system, for what lies before the next multiple of `piece_bytes` in the file. */
static bool write_piece(int fd, large *file)
{
    struct iovec batch[MOST_PARTS];
    size_t room = file->piece_bytes - file->written % file->piece_bytes;
    int taken = 0;
    for (int at = file->next; at < file->count && taken < MOST_PARTS && room; at++, taken++) {
        batch[taken] = file->parts[at];
        if (batch[taken].iov_len > room)
            batch[taken].iov_len = room;
        room -= batch[taken].iov_len;
    }
    ssize_t done = writev(fd, batch, taken);
    if (done < 0)
        return errno == EINTR;
    file->written += (size_t)done;
    while (file->next < file->count) {
        struct iovec *part = &file->parts[file->next];
        size_t here = (size_t)done < part->iov_len ? (size_t)done : part->iov_len;
        part->iov_base = (char *)part->iov_base + here;
        part->iov_len -= here;
        done -= (ssize_t)here;
        if (part->iov_len)
            break;
        file->next++;
    }
    return true;
}

/* Whether all is written; an error of Python where it is not. */
static bool write_pieces(int fd, large *file)
{
    while (file->next < file->count) {
        size_t pause = file->written + UNINTERRUPTED_BYTES;
        bool fine = true;
        Py_BEGIN_ALLOW_THREADS
        while (fine && file->next < file->count && file->written < pause)
            fine = write_piece(fd, file);
        Py_END_ALLOW_THREADS
        if (!fine)
            PyErr_SetFromErrno(PyExc_OSError);
        if (!fine || PyErr_CheckSignals())
            return false;
    }
    return true;
}

/* write(fd, parts, bytes of a piece): all parts, one after the other, into a file that is new. */
static PyObject *write_parts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int fd;
    PyObject *list;
    Py_ssize_t piece_bytes, ready = 0;
    if (!PyArg_ParseTuple(arguments, "iO!n", &fd, &PyList_Type, &list, &piece_bytes))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (piece_bytes < 1 || count > INT_MAX)
        return PyErr_Format(PyExc_ValueError, "%zd parts in pieces of %zd", count, piece_bytes);
    Py_buffer *buffers = calloc((size_t)count + 1, sizeof *buffers);
    struct iovec *parts = calloc((size_t)count + 1, sizeof *parts);
    bool fine = buffers && parts;
    if (!fine)
        PyErr_NoMemory();
    for (; fine && ready < count; ready += fine) {
        fine = !PyObject_GetBuffer(PyList_GetItem(list, ready), &buffers[ready], PyBUF_SIMPLE);
        parts[ready] = (struct iovec){buffers[ready].buf, (size_t)buffers[ready].len};
    }
    large file = {.parts = parts, .count = (int)count, .piece_bytes = (size_t)piece_bytes};
    fine = fine && write_pieces(fd, &file);
    while (ready)
        PyBuffer_Release(&buffers[--ready]);
    free(buffers);
    free(parts);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"store", store, METH_VARARGS, NULL},
    {"write", write_parts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_storing", NULL, 0, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__storing(void)
{
    return PyModule_Create(&MODULE);
}
