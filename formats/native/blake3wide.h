/* BLAKE3 of many inputs at once, 16 chunks side by side, copied on the way.
 *
 * The specification is the BLAKE3 paper, of 2020. Everything is in vectors of 16 words, which the
 * compiler makes of what the machine has; with AVX-512 each is one register.
 */
#ifndef TENSORREPO_BLAKE3WIDE_H
#define TENSORREPO_BLAKE3WIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if UINTPTR_MAX != UINT64_MAX || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian machines of 64 bits; elsewhere the twin in Python is used"
#endif

enum {
    CHUNK = 1024,
    BLOCK = 64,
    DIGEST = 32,
    WIDE = 16, /* chunks, or pairs of digests, at a time */
    ROUNDS = 7,
};

enum {
    CHUNK_START = 1,
    CHUNK_END = 2,
    PARENT = 4,
    ROOT = 8,
    KEY_CONTEXT = 32,
    KEY_MATERIAL = 64,
};

#define ALWAYS __attribute__((always_inline)) static inline

typedef uint32_t lanes __attribute__((vector_size(4 * WIDE)));

static const uint32_t FIRST[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                  0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

/* Which word of the block each step takes: the permutation, applied round after round. */
static const uint8_t ORDER[ROUNDS][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1},
    {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4},
    {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
};

#define ALL(x) \
    (lanes) { x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x }

/* Works on words and on lanes alike. */
#define TURNED(x, by) ((x) >> (by) | (x) << (32 - (by)))
#define MIX(a, b, c, d, one, other)      \
    do {                                 \
        a += b + (one);                  \
        d ^= a, d = TURNED(d, 16);       \
        c += d;                          \
        b ^= c, b = TURNED(b, 12);       \
        a += b + (other);                \
        d ^= a, d = TURNED(d, 8);        \
        c += d;                          \
        b ^= c, b = TURNED(b, 7);        \
    } while (0)
#define ROUND(v, m, order)                                           \
    do {                                                             \
        MIX(v[0], v[4], v[8], v[12], m[order[0]], m[order[1]]);      \
        MIX(v[1], v[5], v[9], v[13], m[order[2]], m[order[3]]);      \
        MIX(v[2], v[6], v[10], v[14], m[order[4]], m[order[5]]);     \
        MIX(v[3], v[7], v[11], v[15], m[order[6]], m[order[7]]);     \
        MIX(v[0], v[5], v[10], v[15], m[order[8]], m[order[9]]);     \
        MIX(v[1], v[6], v[11], v[12], m[order[10]], m[order[11]]);   \
        MIX(v[2], v[7], v[8], v[13], m[order[12]], m[order[13]]);    \
        MIX(v[3], v[4], v[9], v[14], m[order[14]], m[order[15]]);    \
    } while (0)

/* ------------------------------------------------------------------ one block */

static void compress(uint32_t value[8], const uint8_t *block, size_t length, uint64_t counter,
                     uint32_t flags)
{
    uint32_t m[16] = {0}, v[16];
    memcpy(m, block, length);
    memcpy(v, value, 32);
    memcpy(v + 8, FIRST, 16);
    v[12] = (uint32_t)counter;
    v[13] = (uint32_t)(counter >> 32);
    v[14] = (uint32_t)length;
    v[15] = flags;
#pragma GCC unroll 7
    for (int round = 0; round < ROUNDS; round++)
        ROUND(v, m, ORDER[round]);
    for (int i = 0; i < 8; i++)
        value[i] = v[i] ^ v[i + 8];
}

/* The key that a context of at most CHUNK bytes stands for. */
static void key_of(const uint8_t *context, size_t length, uint32_t key[8])
{
    size_t at = 0;
    memcpy(key, FIRST, sizeof FIRST);
    for (; length - at > BLOCK; at += BLOCK)
        compress(key, context + at, BLOCK, 0, KEY_CONTEXT | (at ? 0 : CHUNK_START));
    compress(key, context + at, length - at, 0,
             KEY_CONTEXT | ROOT | CHUNK_END | (at ? 0 : CHUNK_START));
}

/* ------------------------------------------------------------------ 16 blocks */

/* Words of 16 blocks by lane become lanes by word, in four steps. */
#define SWAP(a, b, ...)                                                  \
    do {                                                                 \
        lanes first = a, second = b;                                     \
        a = __builtin_shufflevector(first, second, LOW_##__VA_ARGS__);   \
        b = __builtin_shufflevector(first, second, HIGH_##__VA_ARGS__);  \
    } while (0)
#define LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define SWAP_ALL(m, by)                                   \
    do {                                                  \
        for (int i = 0; i < WIDE; i++) {                  \
            if (!(i & by))                                \
                SWAP(m[i], m[i + by], by);                \
        }                                                 \
    } while (0)

ALWAYS void turn(lanes m[16])
{
    SWAP_ALL(m, 1);
    SWAP_ALL(m, 2);
    SWAP_ALL(m, 4);
    SWAP_ALL(m, 8);
}

/* Lanes whose `mask` is 0 keep their value. */
ALWAYS void compress_wide(lanes value[8], const uint8_t *const *from, size_t at,
                          const lanes *counter, const lanes *length, const lanes *flags,
                          const lanes *mask)
{
    lanes m[16], v[16] = {{0}};
    for (int i = 0; i < WIDE; i++)
        memcpy(&m[i], from[i] + at, sizeof m[i]);
    turn(m);
    for (int i = 0; i < 8; i++)
        v[i] = value[i];
    for (int i = 0; i < 4; i++)
        v[8 + i] = ALL(FIRST[i]);
    v[12] = *counter; /* v[13], its high half, is 0: MOST_CHUNKS stay below 2^32 */
    v[14] = *length;
    v[15] = *flags;
#pragma GCC unroll 7
    for (int round = 0; round < ROUNDS; round++)
        ROUND(v, m, ORDER[round]);
    for (int i = 0; i < 8; i++)
        value[i] = ((v[i] ^ v[i + 8]) & *mask) | (value[i] & ~*mask);
}

ALWAYS void store_wide(lanes value[8], uint8_t *const *to)
{
    lanes m[16];
    for (int i = 0; i < 8; i++) {
        m[i] = value[i];
        m[i + 8] = ALL(0);
    }
    turn(m);
    for (int i = 0; i < WIDE; i++)
        memcpy(to[i], &m[i], DIGEST);
}

/* 16 chunks, or pairs of digests, that are hashed side by side. */
typedef struct {
    const uint8_t *from[WIDE]; /* CHUNK bytes, of which `length` count and the others are 0 */
    uint8_t *to[WIDE];
    uint32_t counter[WIDE];
    uint32_t length[WIDE];
    uint32_t flags[WIDE]; /* of all blocks */
    uint32_t start[WIDE]; /* of the first */
    uint32_t end[WIDE];   /* of the last */
} sixteen;

ALWAYS void hash_wide(const uint32_t key[8], const sixteen *all)
{
    lanes value[8], counter, length, flags, start, end;
    memcpy(&counter, all->counter, sizeof counter);
    memcpy(&length, all->length, sizeof length);
    memcpy(&flags, all->flags, sizeof flags);
    memcpy(&start, all->start, sizeof start);
    memcpy(&end, all->end, sizeof end);
    uint32_t most = 1;
    for (int i = 0; i < WIDE; i++)
        most = all->length[i] > most ? all->length[i] : most;
    for (int i = 0; i < 8; i++)
        value[i] = ALL(key[i]);
    flags |= start;
    for (uint32_t at = 0; at < most; at += BLOCK) {
        lanes here = ALL(at), mask = (lanes)(length > here);
        if (!at)
            mask = ALL(0xFFFFFFFF); /* an empty input is one empty block */
        lanes left = (length - here) & mask, more = (lanes)(left > BLOCK);
        lanes of = (ALL(BLOCK) & more) | (left & ~more), with = flags | (end & ~more);
        compress_wide(value, all->from, at, &counter, &of, &with, &mask);
        flags &= ~start;
    }
    store_wide(value, all->to);
}

typedef void wide_hash(const uint32_t key[8], const sixteen *all);

#define HASH_FOR(name, ...)                                                    \
    __VA_ARGS__ static void name(const uint32_t key[8], const sixteen *all)    \
    {                                                                          \
        hash_wide(key, all);                                                   \
    }

HASH_FOR(hash_portable, )
#if defined(__x86_64__)
HASH_FOR(hash_avx512, __attribute__((target("avx512f,avx512bw,avx512vl"))))
#endif

static bool is_fast(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

static wide_hash *best_hash(void)
{
#if defined(__x86_64__)
    if (is_fast())
        return hash_avx512;
#endif
    return hash_portable;
}

#endif
