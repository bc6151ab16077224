/* Numbers of a frame: their distances from a base, and their contexts.
 *
 * INLINE comes from targets.h: each loop is compiled for several instruction sets.
 */
#ifndef TENSORREPO_NUMBERS_H
#define TENSORREPO_NUMBERS_H

#include "targets.h"

enum { BLOCK = 1024 }; /* numbers at a time: what is computed stays in cache */

/* What the numbers of a frame are; `Numbers` of delta_tokens.py says which types are what. */
typedef struct {
    int size;        /* bytes: 1, 2, 4, 8 */
    bool magnitude;  /* the top bit is a sign, the rest a magnitude */
    int exponent;    /* bits below the sign, or 0 */
} kind;

/* A switch on a constant vanishes: so each width has loops of its own. */
#define BY_SIZE(SIZE, CALL)                                                                        \
    switch (SIZE) {                                                                                \
    case 1: SIZE = 1; CALL; break;                                                                 \
    case 2: SIZE = 2; CALL; break;                                                                 \
    case 4: SIZE = 4; CALL; break;                                                                 \
    default: SIZE = 8; CALL;                                                                       \
    }

#define DEFINE(BITS)                                                                               \
    typedef uint##BITS##_t U##BITS;                                                                \
    typedef int##BITS##_t I##BITS;                                                                 \
                                                                                                   \
    INLINE U##BITS load##BITS(const uint8_t *at)                                                   \
    {                                                                                              \
        U##BITS value;                                                                             \
        memcpy(&value, at, sizeof value);                                                          \
        return value;                                                                              \
    }                                                                                              \
                                                                                                   \
    INLINE void store##BITS(uint8_t *at, U##BITS value)                                            \
    {                                                                                              \
        memcpy(at, &value, sizeof value);                                                          \
    }                                                                                              \
                                                                                                   \
    /* How far numbers are from their base, zigzag. */                                             \
    INLINE void moved##BITS(const uint8_t *frame, const uint8_t *base, size_t count,               \
                            bool magnitude, U##BITS *out)                                          \
    {                                                                                              \
        const U##BITS top = (U##BITS)((U##BITS)1 << (BITS - 1));                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            U##BITS number = load##BITS(frame + i * sizeof number);                                \
            U##BITS from = load##BITS(base + i * sizeof from);                                     \
            U##BITS away = 0;                                                                      \
            if (magnitude) {                                                                       \
                away = (U##BITS)((I##BITS)from >> (BITS - 1));                                     \
                number ^= (U##BITS)((U##BITS)((I##BITS)number >> (BITS - 1)) | top);               \
                from ^= (U##BITS)(away | top);                                                     \
            }                                                                                      \
            U##BITS distance = (U##BITS)(number - from);                                           \
            distance = (U##BITS)((distance ^ away) - away);                                        \
            out[i] = (U##BITS)((U##BITS)(distance << 1) ^                                          \
                               (U##BITS)((I##BITS)distance >> (BITS - 1)));                        \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* Where orders fall as bits rise, distances are turned: bits and distance add up on both sides   \
     * of zero. What crosses it has the other sign, and counts its magnitude from the other end. */   \
    INLINE void restored##BITS(const U##BITS *zigzag, const uint8_t *base, size_t count,           \
                               bool magnitude, uint8_t *out)                                       \
    {                                                                                              \
        const U##BITS all = (U##BITS)~(U##BITS)0;                                                  \
        for (size_t i = 0; i < count; i++) {                                                       \
            U##BITS distance = (U##BITS)((zigzag[i] >> 1) ^ (U##BITS)(0 - (zigzag[i] & 1)));       \
            U##BITS from = load##BITS(base + i * sizeof from);                                     \
            U##BITS number = (U##BITS)(from + distance);                                           \
            if (magnitude)                                                                         \
                number ^= (U##BITS)((U##BITS)((I##BITS)(U##BITS)(number ^ from) >> (BITS - 1)) &   \
                                    (all >> 1));                                                   \
            store##BITS(out + i * sizeof number, number);                                          \
        }                                                                                          \
    }

DEFINE(8)
DEFINE(16)
DEFINE(32)
DEFINE(64)

/* The distances of one block of numbers of at most 4 bytes. */
INLINE void short_moved(const uint8_t *frame, const uint8_t *base, size_t count, kind kind, U32 *out)
{
    union {
        U8 of8[BLOCK];
        U16 of16[BLOCK];
    } narrow;
    switch (kind.size) {
    case 1:
        moved8(frame, base, count, kind.magnitude, narrow.of8);
        for (size_t i = 0; i < count; i++)
            out[i] = narrow.of8[i];
        break;
    case 2:
        moved16(frame, base, count, kind.magnitude, narrow.of16);
        for (size_t i = 0; i < count; i++)
            out[i] = narrow.of16[i];
        break;
    default:
        moved32(frame, base, count, kind.magnitude, out);
    }
}

/* The numbers of one block of at most 4 bytes each, that are so far from their base. */
INLINE void short_restored(const U32 *zigzag, const uint8_t *base, size_t count, kind kind,
                           uint8_t *out)
{
    union {
        U8 of8[BLOCK];
        U16 of16[BLOCK];
    } narrow;
    switch (kind.size) {
    case 1:
        for (size_t i = 0; i < count; i++)
            narrow.of8[i] = (U8)zigzag[i];
        restored8(narrow.of8, base, count, kind.magnitude, out);
        break;
    case 2:
        for (size_t i = 0; i < count; i++)
            narrow.of16[i] = (U16)zigzag[i];
        restored16(narrow.of16, base, count, kind.magnitude, out);
        break;
    default:
        restored32(zigzag, base, count, kind.magnitude, out);
    }
}

/* Contexts before they are brought together: a float's exponent, a byte itself. */
INLINE void contexts_block(const uint8_t *base, size_t count, kind kind, uint8_t *out)
{
    switch (kind.size) {
    case 1:
        memcpy(out, base, count);
        return;
    case 2:
        for (size_t i = 0; i < count; i++)
            out[i] = kind.exponent == 8   ? (uint8_t)(load16(base + 2 * i) >> 7)
                     : kind.exponent == 5 ? (uint8_t)(load16(base + 2 * i) >> 10 & 31)
                                          : 0;
        return;
    case 4:
        for (size_t i = 0; i < count; i++)
            out[i] = kind.exponent ? (uint8_t)(load32(base + 4 * i) >> 23) : 0;
        return;
    default:
        for (size_t i = 0; i < count; i++) {
            /* The same powers of two as the exponents of 32 bits. */
            int exponent = (int)(load64(base + 8 * i) >> 52 & 2047) - 896;
            exponent = exponent < 0 ? 0 : exponent > 255 ? 255 : exponent;
            out[i] = kind.exponent ? (uint8_t)exponent : 0;
        }
    }
}

#endif
