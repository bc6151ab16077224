/* What a JPEG says of itself before its pixels: size, components, and how EXIF says it is turned.
 *
 * Of files such as encoders and cameras write; of all others nothing is said, and the caller looks
 * more closely. The twin in Python is jpeg_header.py beside this. Whatever the bytes are, none beyond
 * them is read. Only what Python 3.11's limited API has is used.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "jpeg_walk.h"
#include "parts.h"

#include <string.h>

enum {
    APPLICATION = 0xE0, /* to 0xEF */
    APP1 = 0xE1,
    COMMENT = 0xFE,
    EXIF_HEAD = 8,     /* length of the segment, "Exif\0\0" */
    TIFF_HEAD = 8,     /* order, magic, place of the first directory */
    ENTRY_BYTES = 12,  /* tag, type, count, value */
    ORIENTATION = 0x0112,
    SHORT_TYPE = 3,
};

static uint32_t tiff_number(const uint8_t *at, int size, bool big)
{
    uint32_t number = 0;
    for (int i = 0; i < size; i++)
        number = number << 8 | at[big ? i : size - 1 - i];
    return number;
}

/* The orientation of a TIFF's first directory, 1 where it has none; 0: look more closely. */
static int orientation_of(const uint8_t *tiff, size_t size)
{
    if (size < TIFF_HEAD || (memcmp(tiff, "II*\0", 4) && memcmp(tiff, "MM\0*", 4)))
        return 0;
    bool big = tiff[0] == 'M';
    size_t at = tiff_number(tiff + 4, 4, big);
    if (at > size || size - at < 2)
        return 0;
    uint32_t entries = tiff_number(tiff + at, 2, big);
    at += 2;
    if (size - at < (size_t)entries * ENTRY_BYTES)
        return 0;
    int orientation = 1;
    bool known = false;
    for (uint32_t entry = 0; entry < entries; entry++, at += ENTRY_BYTES) {
        if (tiff_number(tiff + at, 2, big) != ORIENTATION)
            continue;
        bool usual = tiff_number(tiff + at + 2, 2, big) == SHORT_TYPE &&
                     tiff_number(tiff + at + 4, 4, big) == 1 && !known;
        orientation = (int)tiff_number(tiff + at + 8, 2, big);
        if (!usual || orientation < 1 || orientation > 8)
            return 0;
        known = true;
    }
    return orientation;
}

typedef struct {
    uint32_t height, width;
    int components, orientation;
} header;

/* Whether all is as usual up to the frame, which must have 1 or 3 components, and pixels. */
static bool read_header(const uint8_t *data, size_t size, header *found)
{
    bool leading = true; /* EXIF comes before everything else */
    size_t at = JPEG_FIRST;
    found->orientation = 0;
    for (; is_segment(data, size, at) && data[at + 1] != JPEG_SCAN; at += 2 + pair(data + at + 2)) {
        uint8_t marker = data[at + 1];
        const uint8_t *segment = data + at + 2;
        size_t room = size - at - 2;
        if (is_frame(marker)) {
            if (room < JPEG_FRAME_BYTES)
                return false;
            found->height = pair(segment + 3);
            found->width = pair(segment + 5);
            found->components = segment[7];
            found->orientation += !found->orientation;
            return found->height && found->width &&
                   (found->components == 1 || found->components == 3);
        }
        leading &= (marker >= APPLICATION && marker <= APPLICATION + 15) || marker == COMMENT;
        size_t length = pair(segment);
        bool exif = leading && !found->orientation && marker == APP1 && room >= EXIF_HEAD &&
                    !memcmp(segment + 2, "Exif\0\0", 6);
        if (!exif)
            continue;
        if (length < EXIF_HEAD || length > room)
            return false;
        found->orientation = orientation_of(segment + EXIF_HEAD, length - EXIF_HEAD);
        if (!found->orientation)
            return false;
    }
    return false;
}

static PyObject *jpeg_header(PyObject *Py_UNUSED(module), PyObject *data_of)
{
    Py_buffer data;
    if (PyObject_GetBuffer(data_of, &data, PyBUF_SIMPLE))
        return NULL;
    header found;
    bool usual = read_header(data.buf, (size_t)data.len, &found);
    PyBuffer_Release(&data);
    if (!usual)
        Py_RETURN_NONE;
    return Py_BuildValue("IIii", found.height, found.width, found.components, found.orientation);
}

static PyMethodDef METHODS[] = {
    {"jpeg_header", jpeg_header, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int add_jpeg_header(PyObject *module)
{
    return PyModule_AddFunctions(module, METHODS);
}
