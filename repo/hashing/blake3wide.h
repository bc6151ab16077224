/* BLAKE3 of many inputs at once, 32 chunks side by side, copied on the way.
 *
 * The specification is the BLAKE3 paper, of 2020. Everything is in vectors of 16 words, which the
 * compiler makes of what the machine has; with AVX-512 each is one register. A step waits two cycles
 * for the one before it, so 16 chunks leave half of the machine idle: two times 16 take turns.
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
    LANES = 16,       /* of a vector */
    WIDE = 2 * LANES, /* chunks, or pairs of digests, at a time */
    ROUNDS = 7,
    AHEAD = 128, /* bytes */
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

typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

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

/* ------------------------------------------------------------------ 16 blocks, and as many */

/* Words of 16 blocks by lane become lanes by word, in four steps. */
#define SWAP(a, b, ...)                                                  \
    do {                                                                 \
        lanes first = a, second = b;                                     \
        a = __builtin_shufflevector(first, second, LOW_##__VA_ARGS__);   \
        b = __builtin_shufflevector(first, second, HIGH_##__VA_ARGS__);  \
    } while (0)
/* Within each four words, by one and by two, as machines interleave them; then fours by turns. */
#define LOW_1 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_1 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_4 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#define LOW_8 LOW_4
#define HIGH_8 HIGH_4
#define SWAP_ALL(m, by)                                   \
    do {                                                  \
        for (int i = 0; i < LANES; i++) {                 \
            if (!(i & by))                                \
                SWAP(m[i], m[i + by], by);                \
        }                                                 \
    } while (0)

ALWAYS void turn(lanes m[LANES])
{
    SWAP_ALL(m, 1);
    SWAP_ALL(m, 2);
    SWAP_ALL(m, 4);
    SWAP_ALL(m, 8);
    for (int i = 0; i < LANES; i += 4) {
        lanes second = m[i + 1];
        m[i + 1] = m[i + 2];
        m[i + 2] = second;
    }
}

#define IN_MEMORY(array) __asm__("" : "+m"(array))

/* The columns of a round, or `turned` its diagonals: four MIX, step by step. */
ALWAYS void half_round(lanes v[16], const lanes m[16], const uint8_t *order, int turned)
{
    lanes *a = v, *b = v + 4, *c = v + 8, *d = v + 12;
#define FOUR(...)                        \
    _Pragma("GCC unroll 4")              \
    for (int i = 0; i < 4; i++) {        \
        int j = (i + turned) % 4, k = (i + 2 * turned) % 4, l = (i + 3 * turned) % 4; \
        (void)j, (void)k, (void)l; \
        __VA_ARGS__;                     \
    }
#define STEPS(word, first, second)            \
    FOUR(a[i] += m[order[2 * i + word]])      \
    FOUR(a[i] += b[j])                        \
    FOUR(d[l] ^= a[i])                        \
    FOUR(d[l] = TURNED(d[l], first))          \
    FOUR(c[k] += d[l])                        \
    FOUR(b[j] ^= c[k])                        \
    FOUR(b[j] = TURNED(b[j], second))
    STEPS(0, 16, 12)
    STEPS(1, 8, 7)
#undef STEPS
#undef FOUR
}

/* Both sets in turns: the second one's steps are done while the first one's are waited for. */
ALWAYS void rounds(lanes v[][16], lanes m[][16], int sets)
{
#pragma GCC unroll 7
    for (int round = 0; round < ROUNDS; round++) {
        half_round(v[0], m[0], ORDER[round], 0);
        if (sets > 1)
            half_round(v[1], m[1], ORDER[round], 0);
        half_round(v[0], m[0], ORDER[round] + 8, 1);
        if (sets > 1)
            half_round(v[1], m[1], ORDER[round] + 8, 1);
    }
}

/* What the rounds begin with, but for the counter, length and flags. */
ALWAYS void begin(const lanes value[8], lanes v[16])
{
    for (int i = 0; i < 8; i++)
        v[i] = value[i];
    for (int i = 0; i < 4; i++)
        v[8 + i] = ALL(FIRST[i]);
    v[13] = ALL(0); /* the high half of the counter: MOST_CHUNKS stay below 2^32 */
}

/* 16 blocks by word. Of so many inputs side by side a machine foresees few. */
#define READ_BLOCKS(m, ADDRESS)                             \
    do {                                                    \
        lanes words[LANES];                                 \
        for (int i = 0; i < LANES; i++) {                   \
            memcpy(&words[i], ADDRESS(i), sizeof words[i]); \
            __builtin_prefetch(ADDRESS(i) + AHEAD);         \
        }                                                   \
        turn(words);                                        \
        for (int i = 0; i < LANES; i++)                     \
            m[i] = words[i];                                \
    } while (0)

/* Digests of two sets by word, as bytes of each: of the second one `rows` begin in their middle. */
ALWAYS void turn_digests(const lanes first[8], const lanes second[8], lanes rows[LANES])
{
    for (int i = 0; i < 8; i++) {
        rows[i] = first[i];
        rows[8 + i] = second[i];
    }
    turn(rows);
}

/* ------------------------------------------------------------------ chunks, or pairs, that are alike */

/* 32 whole chunks that follow each other, or pairs of digests; their digests follow each other. */
ALWAYS void hash_alike(const uint32_t key[8], const uint8_t *from, uint32_t counter, uint8_t *to,
                       bool are_pairs)
{
    static const uint32_t EACH[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const size_t apart = are_pairs ? BLOCK : CHUNK;
    lanes value[2][8], m[2][LANES], v[2][16] = {{{0}}}, rows[LANES], each;
    memcpy(&each, EACH, sizeof each);
    for (int set = 0; set < 2; set++)
        for (int i = 0; i < 8; i++)
            value[set][i] = ALL(key[i]);
    for (size_t at = 0; at < apart; at += BLOCK) {
        uint32_t flags = KEY_MATERIAL | (are_pairs ? PARENT : 0);
        if (!are_pairs)
            flags |= (at ? 0 : CHUNK_START) | (at + BLOCK < CHUNK ? 0 : CHUNK_END);
        for (int set = 0; set < 2; set++) {
#define PLACE(i) (from + (size_t)(set * LANES + i) * apart + at)
            READ_BLOCKS(m[set], PLACE);
#undef PLACE
            begin(value[set], v[set]);
            v[set][12] = are_pairs ? ALL(0) : ALL(counter + (uint32_t)set * LANES) + each;
            v[set][14] = ALL(BLOCK);
            v[set][15] = ALL(flags);
        }
        IN_MEMORY(m); /* the states of two sets take all registers that there are */
        rounds(v, m, 2);
        for (int set = 0; set < 2; set++)
            for (int i = 0; i < 8; i++)
                value[set][i] = v[set][i] ^ v[set][8 + i];
    }
    turn_digests(value[0], value[1], rows);
    for (int i = 0; i < LANES; i++) {
        memcpy(to + i * DIGEST, &rows[i], DIGEST);
        memcpy(to + (LANES + i) * DIGEST, (const uint8_t *)&rows[i] + DIGEST, DIGEST);
    }
}

/* ------------------------------------------------------------------ of any length */

/* 32 chunks, or pairs of digests, that are hashed side by side. */
typedef struct {
    const uint8_t *from[WIDE]; /* CHUNK bytes, of which `length` count and the others are 0 */
    uint8_t *to[WIDE];
    uint32_t counter[WIDE];
    uint32_t length[WIDE];
    uint32_t flags[WIDE]; /* of all blocks */
    uint32_t start[WIDE]; /* of the first */
    uint32_t end[WIDE];   /* of the last */
} side_by_side;

ALWAYS void take_words(lanes *taken, const uint32_t *words, int set)
{
    memcpy(taken, words + set * LANES, sizeof *taken);
}

/* The first `sets` times 16 of them. */
ALWAYS void hash_wide(const uint32_t key[8], const side_by_side *all, int sets)
{
    lanes value[2][8], masks[2], m[2][LANES], v[2][16] = {{{0}}}, rows[LANES];
    uint32_t most = 1;
    for (int i = 0; i < sets * LANES; i++)
        most = all->length[i] > most ? all->length[i] : most;
    for (int set = 0; set < 2; set++)
        for (int i = 0; i < 8; i++)
            value[set][i] = ALL(key[i]);
    for (uint32_t at = 0; at < most; at += BLOCK) {
        for (int set = 0; set < sets; set++) {
            lanes length, flags, start, end, here = ALL(at);
            take_words(&length, all->length, set);
            take_words(&flags, all->flags, set);
            take_words(&start, all->start, set);
            take_words(&end, all->end, set);
            masks[set] = (lanes)(length > here);
            if (!at)
                masks[set] = ALL(0xFFFFFFFF); /* an empty input is one empty block */
            lanes left = (length - here) & masks[set], more = (lanes)(left > BLOCK);
#define PLACE(i) (all->from[set * LANES + i] + at)
            READ_BLOCKS(m[set], PLACE);
#undef PLACE
            begin(value[set], v[set]);
            take_words(&v[set][12], all->counter, set);
            v[set][14] = (ALL(BLOCK) & more) | (left & ~more);
            v[set][15] = flags | (at ? ALL(0) : start) | (end & ~more);
        }
        IN_MEMORY(m);
        rounds(v, m, sets);
        for (int set = 0; set < sets; set++)
            for (int i = 0; i < 8; i++)
                value[set][i] = ((v[set][i] ^ v[set][8 + i]) & masks[set]) |
                                (value[set][i] & ~masks[set]);
    }
    turn_digests(value[0], value[1], rows);
    for (int i = 0; i < LANES; i++) {
        memcpy(all->to[i], &rows[i], DIGEST);
        if (sets > 1)
            memcpy(all->to[LANES + i], (const uint8_t *)&rows[i] + DIGEST, DIGEST);
    }
}

typedef struct {
    /* 32 whole chunks, the first of which has number `counter`. */
    void (*chunks)(const uint32_t key[8], const uint8_t *from, uint32_t counter, uint8_t *to);
    /* 32 pairs of digests, where their own digests may go, too. */
    void (*pairs)(const uint32_t key[8], const uint8_t *from, uint8_t *to);
    /* The first `count`, and what else a vector has room for. */
    void (*any)(const uint32_t key[8], const side_by_side *all, int count);
} hasher;

#define HASHER_FOR(name, ...)                                                                      \
    __VA_ARGS__ static void name##_chunks(const uint32_t key[8], const uint8_t *from,              \
                                          uint32_t counter, uint8_t *to)                           \
    {                                                                                              \
        hash_alike(key, from, counter, to, false);                                                 \
    }                                                                                              \
    __VA_ARGS__ static void name##_pairs(const uint32_t key[8], const uint8_t *from, uint8_t *to)  \
    {                                                                                              \
        hash_alike(key, from, 0, to, true);                                                        \
    }                                                                                              \
    __VA_ARGS__ static void name##_any(const uint32_t key[8], const side_by_side *all, int count)  \
    {                                                                                              \
        if (count > LANES)                                                                         \
            hash_wide(key, all, 2);                                                                \
        else                                                                                       \
            hash_wide(key, all, 1);                                                                \
    }                                                                                              \
    static const hasher name = {name##_chunks, name##_pairs, name##_any};

HASHER_FOR(portable, )
#if defined(__x86_64__)
HASHER_FOR(avx512, __attribute__((target("avx512f,avx512bw,avx512vl"))))
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

static const hasher *best_hasher(void)
{
#if defined(__x86_64__)
    if (is_fast())
        return &avx512;
#endif
    return &portable;
}

#endif
