/* The segments of a JPEG before its first scan, such as encoders write them.
 *
 * Whatever is unusual, or wrong, ends a walk: padding, markers without a length, a file cut short.
 */
#ifndef TENSORREPO_JPEG_WALK_H
#define TENSORREPO_JPEG_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JPEG_FIRST = 2, JPEG_SCAN = 0xDA, JPEG_FRAME_BYTES = 8 };

static inline uint32_t pair(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

/* Whether a segment, marker and all, that may stand before the first scan begins at `at`. */
static inline bool is_segment(const uint8_t *data, size_t size, size_t at)
{
    if (at > size || size - at < 4 || data[at] != 0xFF)
        return false;
    uint8_t marker = data[at + 1];
    bool unusual = marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7) || marker == 0xD9 ||
                   marker == 0xFF;
    return !unusual && pair(data + at + 2) >= 2;
}

static inline bool is_frame(uint8_t marker)
{
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

#endif
