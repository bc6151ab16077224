/* Memory of results that is used again: new pages cost more than what is written to them.
 *
 * A room belongs to whoever looks at it: arrays and tensors made of it keep it, each one its own. Once
 * nobody does, it waits for the next result of its size. Of what waits the system may take the pages
 * (MADV_FREE), but for the newest: to be written again costs such pages, too. Of too much the oldest is
 * given back. Rooms are mapped alone, so that none keeps another's memory, and large ones lie where
 * huge pages do.
 *
 * The interpreter lock guards what waits. Only what Python 3.11's limited API has is used.
 */
#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include <string.h>
#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

enum {
    PAGE = 1 << 16, /* the largest of machines that this is compiled for; what is not touched is none */
    HUGE_PAGE = 2 << 20,
    MOST_IDLE = 512,
    MOST_IDLE_BYTES = 128 << 20,
    KEPT_BYTES = 32 << 20, /* of those, which the system may not take */
};

typedef struct {
    uint8_t *bytes;
    size_t size; /* whole pages */
    bool is_kept;
} mapping;

/* The oldest first. */
static mapping idle[MOST_IDLE];
static size_t idle_count, idle_bytes;

static mapping idle_without(size_t at)
{
    mapping found = idle[at];
    idle_count--;
    idle_bytes -= found.size;
    memmove(idle + at, idle + at + 1, (idle_count - at) * sizeof *idle);
    return found;
}

/* NULL where there is no memory. */
static uint8_t *mapped(size_t size)
{
    size_t more = size < HUGE_PAGE ? 0 : HUGE_PAGE;
    uint8_t *found = mmap(NULL, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        return NULL;
    if (!more)
        return found;
    size_t before = (HUGE_PAGE - (uintptr_t)found % HUGE_PAGE) % HUGE_PAGE;
    if (before)
        munmap(found, before);
    munmap(found + before + size, more - before);
    found += before;
#ifdef MADV_HUGEPAGE
    madvise(found, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return found;
}

/* The oldest of what waits, until at most so many bytes and rooms are left. */
static void give_back(size_t most_bytes, size_t most_rooms)
{
    while (idle_bytes > most_bytes || idle_count > most_rooms) {
        mapping oldest = idle_without(0);
        munmap(oldest.bytes, oldest.size);
    }
}

static mapping take(size_t size)
{
    for (size_t at = idle_count; at--;)
        if (idle[at].size == size)
            return idle_without(at);
    uint8_t *found = mapped(size);
    if (!found && idle_count) { /* addresses may be limited */
        give_back(0, 0);
        found = mapped(size);
    }
    return (mapping){found, size, true};
}

/* What waits behind the newest. */
static void let_system_take(void)
{
#ifdef MADV_FREE
    size_t newer = 0;
    for (size_t at = idle_count; at--;) {
        mapping *it = idle + at;
        newer += it->size;
        if (!it->is_kept || newer <= KEPT_BYTES)
            continue;
        madvise(it->bytes, it->size, MADV_FREE);
        it->is_kept = false;
    }
#endif
}

static void give(mapping it)
{
    if (it.size > MOST_IDLE_BYTES) {
        munmap(it.bytes, it.size);
        return;
    }
    give_back(MOST_IDLE_BYTES - it.size, MOST_IDLE - 1);
    it.is_kept = true;
    idle[idle_count++] = it;
    idle_bytes += it.size;
    let_system_take();
}

/* ------------------------------------------------------------------ Python */

typedef struct {
    PyObject_HEAD
    mapping memory;
    size_t size;
} room;

static void room_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (((room *)self)->memory.bytes)
        give(((room *)self)->memory);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int room_buffer(PyObject *self, Py_buffer *view, int flags)
{
    room *it = (room *)self;
    return PyBuffer_FillInfo(view, self, it->memory.bytes, (Py_ssize_t)it->size, 0, flags);
}

static PyType_Slot ROOM_SLOTS[] = {
    {Py_tp_dealloc, room_dealloc},
    {Py_bf_getbuffer, room_buffer},
    {0, NULL},
};
static PyType_Spec ROOM = {
    .name = "tensorrepo.formats.native._kernels.Room",
    .basicsize = sizeof(room),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = ROOM_SLOTS,
};
static PyTypeObject *room_type;

/* result_room(size): a writable buffer of so many bytes, of any value. */
static PyObject *result_room(PyObject *Py_UNUSED(module), PyObject *size)
{
    Py_ssize_t bytes = PyNumber_AsSsize_t(size, PyExc_OverflowError);
    if (bytes == -1 && PyErr_Occurred())
        return NULL;
    if (bytes < 1 || bytes > PY_SSIZE_T_MAX - HUGE_PAGE - PAGE)
        return PyErr_Format(PyExc_ValueError, "no result of %zd bytes", bytes);
    room *made = PyObject_New(room, room_type);
    if (!made)
        return NULL;
    made->size = (size_t)bytes;
    made->memory = take((made->size + PAGE - 1) / PAGE * PAGE);
    if (!made->memory.bytes) {
        Py_DECREF(made);
        return PyErr_Format(PyExc_MemoryError, "there is no memory for a result of %zd bytes", bytes);
    }
    return (PyObject *)made;
}

static PyMethodDef METHODS[] = {
    {"result_room", result_room, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int add_result_memory(PyObject *module)
{
    if (!room_type)
        room_type = (PyTypeObject *)PyType_FromSpec(&ROOM);
    return room_type ? PyModule_AddFunctions(module, METHODS) : -1;
}
