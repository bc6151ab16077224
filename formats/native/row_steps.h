/* Numbers that moved by an amount that follows from their class, the eight bits below the exponent.
 *
 * For row_moves.c and delta_tokens.c, which choose `best_step` when their module is loaded; the layout
 * is in docs/spec/model.md, section "Decay".
 */
#ifndef TENSORREPO_ROW_STEPS_H
#define TENSORREPO_ROW_STEPS_H

#include "numbers.h"

enum { CLASSES = 256 };

typedef struct {
    int size;     /* bytes: 4 or 8 */
    int below;    /* bits below a class */
} classing;

/* The numbers that are as far from the base's as the table says of their class. */
INLINE void step_body(const uint8_t *base, size_t count, classing by, const uint16_t *table,
                      uint8_t *out)
{
    union {
        U32 of32[BLOCK];
        U64 of64[BLOCK];
    } zigzag;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK, start = at * (size_t)by.size;
        const uint8_t *from = base + start;
        if (by.size == 4) {
            for (size_t i = 0; i < part; i++)
                zigzag.of32[i] = table[load32(from + 4 * i) >> by.below & (CLASSES - 1)];
            restored32(zigzag.of32, from, part, true, out + start);
        } else {
            for (size_t i = 0; i < part; i++)
                zigzag.of64[i] = table[load64(from + 8 * i) >> by.below & (CLASSES - 1)];
            restored64(zigzag.of64, from, part, true, out + start);
        }
    }
}

EVERY_MACHINE(void, step,
              (const uint8_t *base, size_t count, classing by, const uint16_t *table, uint8_t *out),
              if (by.size == 4) step_body(base, count, (classing){4, by.below}, table, out);
              else step_body(base, count, (classing){8, by.below}, table, out););

#endif
