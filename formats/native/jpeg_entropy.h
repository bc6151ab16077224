/* Huffman coding of JPEG scans: baseline ones, and progressive ones of 8-bit pictures. What reading
 * (jpeg_scan_read.h) and writing (jpeg_scan_write.h) share.
 *
 * What is read may be hostile: every place is checked, and nothing is written but coefficients.
 * Strict, because what is read must be written again to the bit: no markers but the restarts that
 * belong there, no bytes between, padding of ones or of zeros throughout.
 *
 * Source: ITU-T T.81, sections F.1.2, F.2.2, G.1.2, G.2 and K.2.
 */
#ifndef TENSORREPO_JPEG_ENTROPY_H
#define TENSORREPO_JPEG_ENTROPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 64,         /* coefficients, in zigzag order */
    MOST_COMPONENTS = 4,
    MOST_SAMPLING = 4,
    COUNTS = 16,        /* a table: so many counts, by length of code, then 256 values */
    TABLE_BYTES = COUNTS + 256,
    TABLES = 8,         /* four of DC, four of AC */
    QUICK_BITS = 9,
    MOST_DC = 1024,     /* of 8-bit pictures: a DC coefficient is in [-1024, 1024) */
    MOST_DC_BITS = 11,
    MOST_AC_BITS = 10,
    MOST_RUN = 0x7FFF,  /* blocks that one end of band stands for */
    MOST_CORRECTIONS = 1000,
    RESTART = 0xD0,
};

typedef enum { FINE, DAMAGED, NO_MEMORY } outcome;

/* One component of a scan: its block (x, y) is number first + y * stride + x. */
typedef struct {
    int64_t first, stride;
    int wide, high; /* blocks of it in a unit of the scan */
    int dc, ac;     /* tables */
} component;

typedef struct {
    int64_t units_wide, units_high, interval; /* interval: units between restarts, 0: none */
    int components;
    component of[MOST_COMPONENTS];
    int first, last, high, low; /* of the spectrum, and bits before and after */
} scan;

#endif
