/* Byte planes: bytes of a tensor's numbers that lie together.
 *
 * split takes numbers apart into byte planes, the most significant first, join puts them together.
 * Both let go of the interpreter lock. The twin in numpy is planes.py beside this, with identical
 * results; the layout is in docs/spec/model.md, section "Codecs". Every length is checked.
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes; x86-64 has faster
 * paths, chosen when the module is loaded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include "encoding.h"

enum { MOST_PLANES = 8 };

/* ------------------------------------------------------------------ byte planes */

/* Floats keep their sign in the second plane, so that the first is the exponent alone. */
INLINE unsigned turned(unsigned high)
{
    return (high << 1 & 0xFF00) | (high >> 8 & 0x80) | (high & 0x7F);
}

INLINE unsigned turned_back(unsigned high)
{
    return (high << 8 & 0x8000) | (high >> 1 & 0x7F80) | (high & 0x7F);
}

INLINE void split_body(const uint8_t *frame, size_t count, int size, bool turn,
                       uint8_t *const *planes)
{
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK;
        const uint8_t *from = frame + at * (size_t)size;
        for (int plane = turn ? 2 : 0; plane < size; plane++) {
            uint8_t *to = planes[plane] + at;
            for (size_t i = 0; i < part; i++)
                to[i] = from[i * (size_t)size + (size_t)(size - 1 - plane)];
        }
        if (!turn)
            continue;
        uint8_t *exponents = planes[0] + at, *rest = planes[1] + at;
        for (size_t i = 0; i < part; i++) {
            unsigned high = turned(load16(from + i * (size_t)size + (size_t)(size - 2)));
            exponents[i] = (uint8_t)(high >> 8);
            rest[i] = (uint8_t)high;
        }
    }
}

/* The planes never overlap what is written: to say so lets compilers take many numbers at once. */
INLINE void join_two(const uint8_t *restrict one, const uint8_t *restrict two, size_t count,
                     bool turn, uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        unsigned high = (unsigned)one[i] << 8 | two[i];
        store16(out + 2 * i, (uint16_t)(turn ? turned_back(high) : high));
    }
}

INLINE void join_four(const uint8_t *restrict one, const uint8_t *restrict two,
                      const uint8_t *restrict three, const uint8_t *restrict four, size_t count,
                      bool turn, uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        unsigned high = (unsigned)one[i] << 8 | two[i];
        high = turn ? turned_back(high) : high;
        store32(out + 4 * i, high << 16 | (uint32_t)three[i] << 8 | four[i]);
    }
}

INLINE void join_body(const uint8_t *const *planes, size_t count, int size, bool turn, uint8_t *out)
{
    if (size == 4) {
        join_four(planes[0], planes[1], planes[2], planes[3], count, turn, out);
        return;
    }
    if (size == 2) {
        join_two(planes[0], planes[1], count, turn, out);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t number = 0;
        for (int plane = 0; plane < size; plane++)
            number |= (uint64_t)planes[plane][i] << 8 * (size - 1 - plane);
        if (turn)
            number = (uint64_t)turned_back((unsigned)(number >> 48)) << 48 | (number << 16) >> 16;
        memcpy(out + i * (size_t)size, &number, (size_t)size);
    }
}

EVERY_MACHINE(void, split,
              (const uint8_t *frame, size_t count, int size, bool turn, uint8_t *const *planes),
              BY_SIZE(size, split_body(frame, count, size, turn, planes)));
EVERY_MACHINE(void, join,
              (const uint8_t *const *planes, size_t count, int size, bool turn, uint8_t *out),
              BY_SIZE(size, join_body(planes, count, size, turn, out)));

#if defined(__x86_64__)

/* ------------------------------------------------------------------ joined, 32 numbers at once
 *
 * Compilers do as well for 2 bytes, but make shifts and masks of 4. */

enum { AT_ONCE = 32 };

typedef struct {
    __m256i low, high; /* of each half of 16 bytes: what comes of its first 8, and of its last 8 */
} interleaved;

/* The second byte of each number and the highest one, as turned_back. */
WIDE INLINE interleaved high_bytes(const uint8_t *first, const uint8_t *second, bool turn)
{
    __m256i one = _mm256_loadu_si256((const __m256i *)first);
    __m256i two = _mm256_loadu_si256((const __m256i *)second);
    if (turn) {
        const __m256i top = _mm256_set1_epi8((char)0x80);
        __m256i up = _mm256_and_si256(_mm256_slli_epi16(one, 7), top);
        __m256i down = _mm256_andnot_si256(top, _mm256_srli_epi16(one, 1));
        one = _mm256_or_si256(_mm256_and_si256(two, top), down);
        two = _mm256_or_si256(_mm256_andnot_si256(top, two), up);
    }
    return (interleaved){_mm256_unpacklo_epi8(two, one), _mm256_unpackhi_epi8(two, one)};
}

/* 64 bytes, of which each vector has one part in its lower half and one in its upper. */
WIDE INLINE void store_halves(__m256i one, __m256i other, uint8_t *lower, uint8_t *upper)
{
    _mm256_storeu_si256((__m256i *)lower, _mm256_permute2x128_si256(one, other, 0x20));
    _mm256_storeu_si256((__m256i *)upper, _mm256_permute2x128_si256(one, other, 0x31));
}

WIDE INLINE void join_fours_wide(const uint8_t *const *planes, size_t at, bool turn, uint8_t *out)
{
    interleaved high = high_bytes(planes[0] + at, planes[1] + at, turn);
    interleaved low = high_bytes(planes[2] + at, planes[3] + at, false);
    store_halves(_mm256_unpacklo_epi16(low.low, high.low), _mm256_unpackhi_epi16(low.low, high.low),
                 out, out + 64);
    store_halves(_mm256_unpacklo_epi16(low.high, high.high),
                 _mm256_unpackhi_epi16(low.high, high.high), out + 32, out + 96);
}

WIDE static void join_many(const uint8_t *const *planes, size_t count, int size, bool turn,
                           uint8_t *out)
{
    const uint8_t *rest[MOST_PLANES];
    size_t at = 0;
    for (; size == 4 && at + AT_ONCE <= count; at += AT_ONCE)
        join_fours_wide(planes, at, turn, out + 4 * at);
    for (int plane = 0; plane < size; plane++)
        rest[plane] = planes[plane] + at;
    join_wide(rest, count - at, size, turn, out + at * (size_t)size);
}

#endif

void join_planes(const uint8_t *const *planes, size_t count, int size, bool turn, uint8_t *out)
{
    best_join(planes, count, size, turn, out);
}

/* ------------------------------------------------------------------ Python */

static bool known_size(int size, int turn)
{
    bool fine = (size == 1 || size == 2 || size == 4 || size == 8) && !(turn && size == 1);
    if (!fine)
        PyErr_Format(PyExc_ValueError, "no planes of numbers of %d bytes", size);
    return fine;
}

/* One buffer for each plane, of `count` bytes each. */
static bool plane_buffers(PyObject *planes, int size, Py_ssize_t count, int flags, Py_buffer *found,
                          uint8_t **places)
{
    if (!PyTuple_Check(planes) || PyTuple_Size(planes) != size) {
        PyErr_Format(PyExc_ValueError, "expected a tuple of %d planes", size);
        return false;
    }
    for (int plane = 0; plane < size; plane++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(planes, plane), &found[plane], flags) < 0 ||
            !is_size("plane", found[plane].len, count))
            return false;
        places[plane] = found[plane].buf;
    }
    return true;
}

static PyObject *split(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer frame = {0}, at[MOST_PLANES] = {{0}};
    uint8_t *places[MOST_PLANES];
    int size, turn;
    Py_ssize_t count;
    PyObject *planes, *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*iiO", &frame, &size, &turn, &planes))
        return NULL;
    if (known_size(size, turn) && (count = numbers(&frame, size)) >= 0 &&
        plane_buffers(planes, size, count, PyBUF_WRITABLE, at, places)) {
        Py_BEGIN_ALLOW_THREADS
        best_split(frame.buf, (size_t)count, size, turn != 0, places);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, MOST_PLANES);
    release(&frame, 1);
    return found;
}

static PyObject *join(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[MOST_PLANES] = {{0}}, out = {0};
    uint8_t *places[MOST_PLANES];
    int size, turn;
    Py_ssize_t count;
    PyObject *planes, *found = NULL;
    if (!PyArg_ParseTuple(arguments, "Oiiw*", &planes, &size, &turn, &out))
        return NULL;
    if (known_size(size, turn) && (count = numbers(&out, size)) >= 0 &&
        plane_buffers(planes, size, count, PyBUF_SIMPLE, at, places)) {
        Py_BEGIN_ALLOW_THREADS
        best_join((const uint8_t *const *)places, (size_t)count, size, turn != 0, out.buf);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, MOST_PLANES);
    release(&out, 1);
    return found;
}

static PyMethodDef METHODS[] = {
    {"split", split, METH_VARARGS, NULL},
    {"join", join, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_planes(PyObject *module)
{
    CHOOSE(split);
#if defined(__x86_64__)
    if (is_wide())
        best_join = join_many;
#endif
    return PyModule_AddFunctions(module, METHODS);
}
