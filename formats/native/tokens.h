/* Which token stands for a distance, and how are the bits that it leaves written?
 *
 * For distances.c alone. INLINE comes from targets.h: each loop is compiled for several instruction
 * sets.
 */
#ifndef TENSORREPO_TOKENS_H
#define TENSORREPO_TOKENS_H

#include "numbers.h"

enum {
    SLACK = 16,  /* bytes: bits are written in words */
    DIRECT = 16, /* distances below are tokens of their own */
};

/* Small distances are their own token; larger ones give their length and the two bits below their
 * first, and the bits that are left. */
INLINE unsigned token_of(uint64_t distance)
{
    unsigned top = 63u - (unsigned)__builtin_clzll(distance | DIRECT);
    unsigned far = 4 * top + (unsigned)(distance >> (top - 2)) - 4;
    return distance < DIRECT ? (unsigned)distance : far;
}

/* The same without a branch or a count of zeros, so that compilers take many at once: the length is
 * the exponent of the float, with the bit below the first cleared so that nothing is rounded up. */
INLINE void short_tokens(const U32 *restrict distances, size_t count, uint8_t *restrict tokens)
{
    for (size_t i = 0; i < count; i++) {
        U32 distance = distances[i], half = (distance | DIRECT) >> 1;
        union {
            float number;
            U32 bits;
        } rounded = {(float)(I32)(half & ~(half >> 1))};
        U32 top = (rounded.bits >> 23) - 126;
        U32 far = 4 * top + (distance >> (top - 2)) - 4;
        U32 direct = 0 - (U32)(distance / DIRECT == 0);
        tokens[i] = (uint8_t)((distance & direct) | (far & ~direct));
    }
}

INLINE unsigned bits_of(unsigned token)
{
    return token < DIRECT ? 0 : 2 + (token - DIRECT) / 4;
}

INLINE uint64_t least_of(unsigned token)
{
    return token < DIRECT ? token : (uint64_t)(4 | (token & 3)) << bits_of(token);
}

static unsigned last_token(int size)
{
    return (unsigned)(DIRECT + 4 * (8 * size - 5) + 3);
}

/* ------------------------------------------------------------------ written */

typedef struct {
    uint8_t *out;
    size_t used;
    uint64_t waiting;
    unsigned held; /* bits of `waiting`, below 8 between numbers */
} writing;

/* At most 56 bits. */
INLINE void write_bits(writing *to, uint64_t value, unsigned bits)
{
    to->waiting |= value << to->held;
    to->held += bits;
    store64(to->out + to->used, to->waiting);
    to->used += to->held >> 3;
    to->waiting >>= to->held & ~7u;
    to->held &= 7;
}

/* Up to 64 bits; those above 32 by themselves. */
INLINE void write_many(writing *to, uint64_t value, unsigned bits)
{
    if (bits <= 32) {
        write_bits(to, value, bits);
        return;
    }
    write_bits(to, value & 0xFFFFFFFFu, 32);
    write_bits(to, value >> 32, bits - 32);
}

/* The bits that tokens leave of each number, and how many. */
INLINE void short_bits(U32 *restrict moved, const uint8_t *restrict tokens, size_t count,
                       uint8_t *restrict lengths)
{
    for (size_t i = 0; i < count; i++) {
        unsigned bits = bits_of(tokens[i]);
        moved[i] &= ((U32)1 << bits) - 1;
        lengths[i] = (uint8_t)bits;
    }
}

/* One block of numbers of at most 4 bytes; whether there was room. */
INLINE bool write_short(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                        size_t count, kind kind, writing *to, size_t room)
{
    U32 moved[BLOCK];
    uint8_t lengths[BLOCK];
    writing local = *to; /* what is written might be the fields themselves, for all compilers know */
    short_moved(frame, base, count, kind, moved);
    short_bits(moved, tokens, count, lengths);
    size_t i = 0;
    for (; i + 2 <= count; i += 2) { /* two at once: each waits for the one before */
        unsigned bits = (unsigned)lengths[i] + lengths[i + 1];
        uint64_t value = moved[i] | (uint64_t)moved[i + 1] << lengths[i];
        if (__builtin_expect(room - local.used < SLACK, 0))
            return false;
        if (__builtin_expect(bits > 56, 0))
            write_many(&local, value, bits);
        else
            write_bits(&local, value, bits);
    }
    if (room - local.used < SLACK)
        return false;
    if (i < count)
        write_bits(&local, moved[i], lengths[i]);
    *to = local;
    return true;
}

/* One block of numbers of 8 bytes; whether there was room. */
INLINE bool write_long(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                       size_t count, kind kind, writing *to, size_t room)
{
    U64 moved[BLOCK];
    moved64(frame, base, count, kind.magnitude, moved);
    for (size_t i = 0; i < count; i++) {
        unsigned bits = bits_of(tokens[i]);
        if (room - to->used < SLACK)
            return false;
        write_many(to, moved[i] & (((uint64_t)1 << bits) - 1), bits);
    }
    return true;
}

/* The bits of all distances, the first in the lowest bits of the first byte. Returns the bytes, or
 * -1 where they and SLACK do not fit. */
INLINE Py_ssize_t pack_bits_body(const uint8_t *frame, const uint8_t *base, const uint8_t *tokens,
                                 size_t count, kind kind, uint8_t *out, size_t room)
{
    writing to = {.out = out};
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK, start = at * (size_t)kind.size;
        bool fits = kind.size == 8 ? write_long(frame + start, base + start, tokens + at, part,
                                                kind, &to, room)
                                   : write_short(frame + start, base + start, tokens + at, part,
                                                 kind, &to, room);
        if (!fits)
            return -1;
    }
    if (room - to.used < SLACK)
        return -1;
    if (to.held)
        out[to.used++] = (uint8_t)to.waiting;
    return room - to.used < SLACK ? -1 : (Py_ssize_t)to.used;
}

#endif
