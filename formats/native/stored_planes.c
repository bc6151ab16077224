/* The byte planes of a frame as they are stored, unpacked and joined in one go.
 *
 * A block of numbers at a time, so that what is unpacked is joined while it is in cache. The twin are
 * the steps of formats/model/delta/frame_codec.py, with identical results; the layout is in
 * docs/spec/model.md, sections "Codecs" and "Coder". Lets go of the interpreter lock.
 *
 * Whatever comes from storage is hostile: every length is checked, and nothing is read or written
 * outside of the buffers given.
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes; x86-64 has faster
 * paths, chosen when the module is loaded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include "encoding.h"
#include "rans.h"

enum {
    MOST_PLANES = 8,
    UNPACKED = 1 << 14, /* numbers of a block: tables of one plane push out those of the other */
    TABLE_SLOTS = TABLE + SLOT_SLACK,
};
_Static_assert(UNPACKED % MOST_LANES == 0, "all blocks but the last are whole rounds");

/* A plane, and where its next block lies. */
typedef struct {
    int codec;
    const uint8_t *at;
    size_t size; /* stored bytes */
    uint8_t *block;
    decoder symbols;
} stored_plane;

static bool is_coded(const stored_plane *it)
{
    return it->codec == STORED_CODED || it->codec == STORED_LONG_CODED;
}

/* Whether a plane is raw, constant or coded, long or not, and begins well. */
static bool begin_plane(stored_plane *it, size_t count, uint32_t *slots, uint8_t *block)
{
    it->block = block;
    if (it->codec == STORED_RAW)
        return it->size == count;
    if (it->codec == STORED_CONSTANT && it->size == 1) {
        memset(block, *it->at, count < UNPACKED ? count : UNPACKED);
        it->at = block;
        return true;
    }
    if (!is_coded(it))
        return false;
    uint8_t groups[CONTEXTS];
    uint16_t frequencies[SYMBOLS];
    Py_ssize_t used = read_tables(it->at, it->size, groups, frequencies, 1);
    if (used < 0)
        return false;
    best_fill(frequencies, slots);
    size_t size = it->size - (size_t)used;
    const uint8_t *data = it->at + used;
    it->at = block;
    size_t lanes = it->codec == STORED_LONG_CODED ? MOST_LANES : count < MANY ? FEW : LANES;
    return begin_symbols(&it->symbols, data, size, size, slots, lanes);
}

/* Whether all planes are well-formed; else `out` means nothing. */
static bool unpack_all(stored_plane *planes, int size, size_t count, bool turn, uint8_t *out)
{
    size_t slots = TABLE_SLOTS * sizeof(uint32_t), each = slots + UNPACKED;
    uint8_t *room = scratch((size_t)size * each);
    if (!room)
        return false;
    for (int i = 0; i < size; i++) {
        uint8_t *own = room + (size_t)i * each;
        if (!begin_plane(&planes[i], count, (uint32_t *)own, own + slots))
            return false;
    }
    const uint8_t *parts[MOST_PLANES];
    for (size_t at = 0; at < count; at += UNPACKED) {
        size_t part = count - at < UNPACKED ? count - at : UNPACKED;
        for (int i = 0; i < size; i++) {
            stored_plane *it = &planes[i];
            parts[i] = it->codec == STORED_RAW ? it->at + at : it->at;
            if (is_coded(it) && !next_symbols(&it->symbols, NULL, part, it->block))
                return false;
        }
        join_planes(parts, part, size, turn, out + at * (size_t)size);
    }
    for (int i = 0; i < size; i++)
        if (is_coded(&planes[i]) && !symbols_ended(&planes[i].symbols))
            return false;
    return true;
}

/* ------------------------------------------------------------------ Python */

/* Codec and stored bytes of a pair; false and an error where it is none. */
static bool stored_pair(PyObject *pair, stored_plane *plane, Py_buffer *data)
{
    if (!pair || !PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "a plane is its codec and its stored bytes");
        return false;
    }
    long codec = PyLong_AsLong(PyTuple_GetItem(pair, 0));
    if (codec == -1 && PyErr_Occurred())
        return false;
    if (PyObject_GetBuffer(PyTuple_GetItem(pair, 1), data, PyBUF_SIMPLE) < 0)
        return false;
    plane->codec = codec < 0 || codec > UINT8_MAX ? UINT8_MAX : (int)codec;
    plane->at = data->buf;
    plane->size = (size_t)data->len;
    return true;
}

/* join_stored(planes, size, turn, out): fill `out` with the numbers of `size` bytes that have these
 * stored planes. False where one is neither raw, constant nor coded, or not well-formed, or they are
 * not as many: then `out` means nothing. */
static PyObject *join_stored(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[MOST_PLANES] = {{0}}, out = {0};
    stored_plane planes[MOST_PLANES];
    int size, turn;
    Py_ssize_t count = -1;
    PyObject *pairs;
    if (!PyArg_ParseTuple(arguments, "Oiiw*", &pairs, &size, &turn, &out))
        return NULL;
    bool fine = (size == 1 || size == 2 || size == 4 || size == 8) && !(turn && size == 1);
    if (!fine)
        PyErr_Format(PyExc_ValueError, "no planes of numbers of %d bytes", size);
    fine = fine && (count = numbers(&out, size)) >= 0;
    bool complete = fine && PySequence_Size(pairs) == size;
    for (int i = 0; complete && fine && i < size; i++) {
        PyObject *pair = PySequence_GetItem(pairs, i);
        fine = stored_pair(pair, &planes[i], &at[i]);
        Py_XDECREF(pair);
    }
    if (complete && fine) {
        PyThreadState *state = count < ALONE ? NULL : PyEval_SaveThread();
        complete = unpack_all(planes, size, (size_t)count, turn != 0, out.buf);
        if (state)
            PyEval_RestoreThread(state);
    }
    release(at, MOST_PLANES);
    release(&out, 1);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(complete);
}

static PyMethodDef METHODS[] = {
    {"join_stored", join_stored, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_stored_planes(PyObject *module)
{
    choose_unpacking();
    return PyModule_AddFunctions(module, METHODS);
}
