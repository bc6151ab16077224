/* rANS decoder: symbols out of states, tables as they are stored, and the same for many states at
 * once on x86-64, bit for bit.
 *
 * For rans.c and delta_tokens.c, which call `choose_unpacking` when their module is loaded.
 *
 * Whatever comes from storage is hostile: every length is checked, tables are checked before they
 * are used, and nothing is read or written outside of the buffers given.
 */
#ifndef TENSORREPO_RANS_H
#define TENSORREPO_RANS_H

#include "numbers.h"
#include "targets.h"

enum {
    SYMBOLS = 256,
    CONTEXTS = 256,
    TABLE_BITS = 12,
    TABLE = 1 << TABLE_BITS, /* what the frequencies of a context add up to */
    SLOT_SLACK = 16,         /* slots after the last table: whole runs of them are written */
    LANES = 32,              /* coders that take turns; short planes have FEW of them */
    FEW = 4,
    MOST_LANES = 64,   /* of long planes: where half of them wait for their tables, others work */
    MANY = 4096,       /* symbols: from here on LANES coders take turns */
    LONG = 1 << 18,    /* symbols: from here on MOST_LANES do, */
    LONG_BYTES = 32 << 10, /* or from what these are expected to take */
    ROUND = 2 * MOST_LANES, /* bytes: the most words that a round of turns asks for */
};
#define LOWEST 65536u /* of a coder's state */

/* Per slot of a table: symbol, frequency - 1 (12 bits), slot - start of the symbol (12 bits). What
 * follows the table is overwritten, SLOT_SLACK slots at most: a RUN is written for each symbol, and
 * only those longer than that are asked for more. */
INLINE void fill_body(const uint16_t *frequencies, uint32_t *slots)
{
    enum { RUN = 16 };
    for (uint32_t symbol = 0; symbol < SYMBOLS; symbol++) {
        uint32_t frequency = frequencies[symbol], entry = symbol | (frequency - 1) << 8, i = 0;
        do {
            for (uint32_t j = 0; j < RUN; j++)
                slots[i + j] = entry + (j << 20);
            entry += RUN << 20;
            i += RUN;
        } while (i < frequency);
        slots += frequency;
    }
}

EVERY_MACHINE(void, fill, (const uint16_t *frequencies, uint32_t *slots),
              fill_body(frequencies, slots););

/* Words of 16 bits that are left; `left` is below 0 once more were asked for. */
typedef struct {
    const uint8_t *words;
    ptrdiff_t left;
    const uint8_t *end; /* of what may be read, though it may be something else than words */
    uint8_t *tail;      /* 2 * ROUND bytes: the last words, and zeros */
} reading;

/* The last words again where as many zeros follow as a round may ask for. By value: what others know
 * the address of is not kept in registers. */
__attribute__((noinline)) static reading moved_to_tail(reading from)
{
    memset(from.tail, 0, 2 * ROUND);
    memcpy(from.tail, from.words, 2 * (size_t)from.left);
    return (reading){from.tail, from.left, from.tail + 2 * ROUND, from.tail};
}

/* Whether no word was missing until now; then a whole ROUND may be read. */
INLINE bool words_ready(reading *from)
{
    if (__builtin_expect(from->left < 0, 0))
        return false;
    if (__builtin_expect(from->end - from->words < ROUND, 0))
        *from = moved_to_tail(*from);
    return true;
}

/* Each of so many coders takes a turn; words_ready was asked before. */
INLINE void unpack_round(const uint32_t *slots, const uint8_t *contexts, size_t turns,
                         uint32_t *states, reading *from, uint8_t *out)
{
    const uint8_t *words = from->words;
    for (size_t lane = 0; lane < turns; lane++) {
        uint32_t state = states[lane], slot = state & (TABLE - 1);
        uint32_t entry = slots[(contexts ? (size_t)contexts[lane] << TABLE_BITS : 0) + slot];
        out[lane] = (uint8_t)entry;
        state = ((entry >> 8 & 0xFFF) + 1) * (state >> TABLE_BITS) + (entry >> 20);
        bool low = state < LOWEST; /* no branch: nobody could predict it */
        states[lane] = state << 16 * low | (load16(words) & (0u - low));
        words += 2 * low;
    }
    from->left -= (words - from->words) / 2;
    from->words = words;
}

/* Whole rounds of LANES or MOST_LANES; how many symbols that were: fewer where words were missing. */
typedef size_t rounds(const uint32_t *slots, const uint8_t *contexts, size_t count, size_t lanes,
                      uint32_t *states, reading *from, uint8_t *out);

static size_t rounds_portable(const uint32_t *slots, const uint8_t *contexts, size_t count,
                              size_t lanes, uint32_t *states, reading *from, uint8_t *out)
{
    size_t at = 0;
    for (; at + lanes <= count && words_ready(from); at += lanes)
        unpack_round(slots, contexts ? contexts + at : NULL, lanes, states, from, out + at);
    return at;
}

static rounds *best_rounds = rounds_portable;

typedef struct {
    const uint32_t *slots; /* of each context, one after the other */
    size_t lanes;
    reading from;
    uint32_t states[MOST_LANES];
    uint8_t tail[2 * ROUND];
} decoder;

/* Decoders point into themselves: they stay where they are. `readable` are the bytes from `data` on
 * that may be read, at least `size`. */
static bool begin_symbols(decoder *it, const uint8_t *data, size_t size, size_t readable,
                          const uint32_t *slots, size_t lanes)
{
    if (size < 4 * lanes || size % 2)
        return false;
    it->slots = slots;
    it->lanes = lanes;
    it->from = (reading){data + 4 * lanes, (ptrdiff_t)(size - 4 * lanes) / 2, data + readable,
                         it->tail};
    memcpy(it->states, data, 4 * lanes);
    for (size_t lane = 0; lane < lanes; lane++)
        if (it->states[lane] < LOWEST)
            return false;
    return true;
}

/* The next symbols; of all calls but the last whole rounds. Whether there were as many words. */
static bool next_symbols(decoder *it, const uint8_t *contexts, size_t count, uint8_t *out)
{
    size_t at = 0, lanes = it->lanes;
    if (lanes != FEW)
        at = best_rounds(it->slots, contexts, count, lanes, it->states, &it->from, out);
    for (; at < count && words_ready(&it->from); at += lanes) {
        size_t turns = count - at < lanes ? count - at : lanes;
        unpack_round(it->slots, contexts ? contexts + at : NULL, turns, it->states, &it->from,
                     out + at);
    }
    return it->from.left >= 0;
}

/* Whether nothing is left over. */
static bool symbols_ended(const decoder *it)
{
    if (it->from.left)
        return false;
    for (size_t lane = 0; lane < it->lanes; lane++)
        if (it->states[lane] != LOWEST)
            return false;
    return true;
}

/* ------------------------------------------------------------------ tables
 *
 * groups - 1 | where each group but the first begins | for each group first symbol, symbols - 1 | 12
 * bits for each frequency but a group's last, which is what is left of TABLE. */

/* The group of each context and the frequencies of each group; the bytes that they take, or -1 for
 * what is not well-formed. */
static Py_ssize_t read_tables(const uint8_t *data, size_t size, uint8_t *groups,
                              uint16_t *frequencies, size_t rows)
{
    if (!size || (size_t)data[0] + 1 != rows || size < 3 * rows)
        return -1;
    const uint8_t *spans = data + rows;
    size_t values = 0;
    for (size_t group = 0; group < rows; group++) {
        if (spans[2 * group] + spans[2 * group + 1] >= SYMBOLS)
            return -1;
        values += spans[2 * group + 1];
    }
    if (size < 3 * rows + (3 * values + 1) / 2)
        return -1;
    for (size_t group = 1; group < rows; group++)
        if (data[group] <= (group > 1 ? data[group - 1] : 0))
            return -1;
    for (size_t group = 0; group < rows; group++) {
        size_t begin = group ? data[group] : 0, end = group + 1 < rows ? data[group + 1] : CONTEXTS;
        memset(groups + begin, (int)group, end - begin);
    }
    const uint8_t *packed = data + 3 * rows;
    memset(frequencies, 0, rows * SYMBOLS * sizeof *frequencies);
    size_t at = 0;
    for (size_t group = 0; group < rows; group++) {
        uint16_t *row = frequencies + group * SYMBOLS + spans[2 * group];
        int32_t left = TABLE;
        size_t count = spans[2 * group + 1];
        for (size_t i = 0; i < count; i++, at++) {
            uint32_t both = load16(packed + 3 * at / 2);
            row[i] = (uint16_t)(at % 2 ? both >> 4 : both & (TABLE - 1));
            left -= row[i];
        }
        if (left <= 0)
            return -1;
        row[count] = (uint16_t)left;
    }
    if (values % 2 && packed[3 * values / 2] >> 4)
        return -1;
    return (Py_ssize_t)(3 * rows + (3 * values + 1) / 2);
}

/* ------------------------------------------------------------------ many states at once */

#if defined(__x86_64__)

enum { WIDTH = 8 };
static __m128i spread[256]; /* for each mask of lanes: where each lane's word is, of others nowhere */

static void fill_spread(void)
{
    for (unsigned mask = 0; mask < 256; mask++) {
        uint8_t places[2 * WIDTH], next = 0;
        memset(places, 0x80, sizeof places);
        for (unsigned lane = 0; lane < WIDTH; lane++) {
            if (!(mask >> lane & 1))
                continue;
            places[2 * lane] = next++;
            places[2 * lane + 1] = next++;
        }
        memcpy(&spread[mask], places, sizeof places);
    }
}

WIDEST static void fill_widest(const uint16_t *frequencies, uint32_t *slots)
{
    const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i starts = _mm512_slli_epi32(places, 20), next = _mm512_set1_epi32(16 << 20);
    for (uint32_t symbol = 0; symbol < SYMBOLS; symbol++) {
        uint32_t frequency = frequencies[symbol];
        __m512i entry = _mm512_set1_epi32((int)(symbol | (frequency - 1) << 8));
        entry = _mm512_add_epi32(entry, starts);
        _mm512_storeu_si512(slots, entry);
        for (uint32_t i = 16; i < frequency; i += 16) {
            entry = _mm512_add_epi32(entry, next);
            _mm512_storeu_si512(slots + i, entry);
        }
        slots += frequency;
    }
}

/* What eight places hold. Loads of one each: on many machines a gather takes longer. */
WIDE INLINE __m256i eight_at(const uint32_t *slots, __m256i places)
{
    __m128i low = _mm256_castsi256_si128(places), high = _mm256_extracti128_si256(places, 1);
    uint64_t one = (uint64_t)_mm_cvtsi128_si64(low), two = (uint64_t)_mm_extract_epi64(low, 1);
    uint64_t three = (uint64_t)_mm_cvtsi128_si64(high), four = (uint64_t)_mm_extract_epi64(high, 1);
    return _mm256_setr_epi32((int)slots[(uint32_t)one], (int)slots[one >> 32],
                             (int)slots[(uint32_t)two], (int)slots[two >> 32],
                             (int)slots[(uint32_t)three], (int)slots[three >> 32],
                             (int)slots[(uint32_t)four], (int)slots[four >> 32]);
}

/* Eight coders take their turn; `entries` are what their slots say. `words` moves on, and nothing says
 * how many of them are left. */
WIDE INLINE __m256i unpack_eight(__m256i state, const uint32_t *slots, const uint8_t *contexts,
                                 const uint8_t **words, __m256i *entries)
{
    __m256i slot = _mm256_and_si256(state, _mm256_set1_epi32(TABLE - 1));
    if (contexts) {
        __m256i of = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)contexts));
        slot = _mm256_or_si256(slot, _mm256_slli_epi32(of, TABLE_BITS));
    }
    __m256i entry = eight_at(slots, slot), rest = _mm256_srli_epi32(state, TABLE_BITS);
    __m256i less = _mm256_and_si256(_mm256_srli_epi32(entry, 8), _mm256_set1_epi32(0xFFF));
    __m256i start = _mm256_add_epi32(_mm256_srli_epi32(entry, 20), rest);
    state = _mm256_add_epi32(_mm256_mullo_epi32(less, rest), start);
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(state, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    __m128i filling = _mm_loadu_si128((const __m128i *)*words);
    filling = _mm_shuffle_epi8(filling, spread[mask]);
    __m256i shift = _mm256_and_si256(low, _mm256_set1_epi32(16));
    *words += 2 * __builtin_popcount(mask);
    *entries = entry;
    return _mm256_or_si256(_mm256_sllv_epi32(state, shift), _mm256_cvtepu16_epi32(filling));
}

/* 32 symbols, of which the entries of all slots are known. */
WIDE INLINE void store_symbols(const __m256i entries[4], uint8_t *out)
{
    const __m256i lowest = _mm256_set1_epi32(0xFF);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packs go by halves */
    __m256i one = _mm256_packus_epi32(_mm256_and_si256(entries[0], lowest),
                                      _mm256_and_si256(entries[1], lowest));
    __m256i other = _mm256_packus_epi32(_mm256_and_si256(entries[2], lowest),
                                        _mm256_and_si256(entries[3], lowest));
    __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(one, other), order);
    _mm256_storeu_si256((__m256i *)out, all);
}

WIDE INLINE size_t rounds_by_eight(const uint32_t *slots, const uint8_t *contexts, size_t count,
                                   const size_t lanes, uint32_t *states, reading *from,
                                   uint8_t *out)
{
    __m256i all[MOST_LANES / WIDTH], entries[MOST_LANES / WIDTH];
    reading local = *from;
    for (size_t i = 0; i < lanes / WIDTH; i++)
        all[i] = _mm256_loadu_si256((const __m256i *)(states + WIDTH * i));
    size_t at = 0;
    for (; at + lanes <= count && words_ready(&local); at += lanes) {
        const uint8_t *words = local.words;
#pragma GCC unroll 8
        for (size_t i = 0; i < lanes / WIDTH; i++) {
            all[i] = unpack_eight(all[i], slots, contexts ? contexts + at + WIDTH * i : NULL,
                                  &words, &entries[i]);
            if (i % 4 == 3)
                store_symbols(entries + i - 3, out + at + WIDTH * (i - 3));
        }
        local.left -= (words - local.words) / 2;
        local.words = words;
    }
    for (size_t i = 0; i < lanes / WIDTH; i++)
        _mm256_storeu_si256((__m256i *)(states + WIDTH * i), all[i]);
    *from = local;
    return at;
}

WIDE static size_t rounds_wide(const uint32_t *slots, const uint8_t *contexts, size_t count,
                               size_t lanes, uint32_t *states, reading *from, uint8_t *out)
{
    if (lanes == MOST_LANES)
        return rounds_by_eight(slots, contexts, count, MOST_LANES, states, from, out);
    return rounds_by_eight(slots, contexts, count, LANES, states, from, out);
}

/* Sixteen entries. What a gather leaves of its register is an input to it, whatever the mask: without
 * a zero there, and a mask that compilers know nothing of, it is what another coder's turn left, and
 * has to be waited for. */
WIDEST INLINE __m512i gathered(__m512i places, const uint32_t *entries)
{
    __mmask16 all = 0xFFFF;
    __asm__("" : "+Yk"(all));
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), all, places, entries, 4);
}

/* What the slots say that sixteen coders are at. */
WIDEST INLINE __m512i entries_of(__m512i state, const uint32_t *slots, const uint8_t *contexts)
{
    const __m512i lowest = _mm512_set1_epi32(TABLE - 1);
    __m512i of = _mm512_setzero_si512();
    if (contexts)
        of = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)contexts));
    of = _mm512_slli_epi32(of, TABLE_BITS);
    __m512i slot = _mm512_ternarylogic_epi32(state, of, lowest, 0xEC); /* of | (state & lowest) */
    return gathered(slot, slots);
}

/* The next states, before they are filled with words. */
WIDEST INLINE __m512i next_states(__m512i state, __m512i entry)
{
    __m512i rest = _mm512_srli_epi32(state, TABLE_BITS);
    __m512i less = _mm512_and_si512(_mm512_srli_epi32(entry, 8), _mm512_set1_epi32(0xFFF));
    __m512i start = _mm512_add_epi32(_mm512_srli_epi32(entry, 20), rest);
    return _mm512_add_epi32(_mm512_mullo_epi32(less, rest), start);
}

/* Sixteen coders take their turn, on machines that have 512 bits. */
WIDEST INLINE __m512i unpack_sixteen(__m512i state, const uint32_t *slots, const uint8_t *contexts,
                                     reading *from, uint8_t *out)
{
    __m512i entry = entries_of(state, slots, contexts);
    _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8(entry));
    state = next_states(state, entry);
    __mmask16 low = _mm512_cmplt_epu32_mask(state, _mm512_set1_epi32(LOWEST));
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from->words));
    words = _mm512_maskz_expand_epi32(low, words);
    int taken = __builtin_popcount(low);
    from->words += 2 * taken;
    from->left -= taken;
    return _mm512_mask_or_epi32(state, low, _mm512_slli_epi32(state, 16), words);
}

WIDEST INLINE size_t rounds_by_sixteen(const uint32_t *slots, const uint8_t *contexts,
                                       size_t count, const size_t lanes, uint32_t *states,
                                       reading *from, uint8_t *out)
{
    __m512i all[MOST_LANES / 16];
    reading local = *from;
    for (size_t i = 0; i < lanes / 16; i++)
        all[i] = _mm512_loadu_si512(states + 16 * i);
    size_t at = 0;
    for (; at + lanes <= count && words_ready(&local); at += lanes) {
#pragma GCC unroll 4
        for (size_t i = 0; i < lanes / 16; i++)
            all[i] = unpack_sixteen(all[i], slots, contexts ? contexts + at + 16 * i : NULL,
                                    &local, out + at + 16 * i);
    }
    for (size_t i = 0; i < lanes / 16; i++)
        _mm512_storeu_si512(states + 16 * i, all[i]);
    *from = local;
    return at;
}

WIDEST static size_t rounds_widest(const uint32_t *slots, const uint8_t *contexts, size_t count,
                                   size_t lanes, uint32_t *states, reading *from, uint8_t *out)
{
    if (lanes == MOST_LANES)
        return rounds_by_sixteen(slots, contexts, count, MOST_LANES, states, from, out);
    return rounds_by_sixteen(slots, contexts, count, LANES, states, from, out);
}

static void choose_unpacking(void)
{
    if (!is_wide())
        return;
    fill_spread();
    best_fill = is_widest() ? fill_widest : fill_wide;
    best_rounds = is_widest() ? rounds_widest : rounds_wide;
}

#else

__attribute__((unused)) static void choose_unpacking(void) {}

#endif

#endif
