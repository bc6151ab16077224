/* rANS entropy coder, with a table of frequencies for each context.
 *
 * pack and unpack are interleaved range asymmetric numeral systems; count is what frequencies are
 * made of. All let go of the interpreter lock. The twin in numpy is rans.py beside this, with
 * identical results; the layout is in docs/spec/model.md, section "Codecs".
 *
 * Whatever comes from storage is hostile: every length is checked, tables are checked before they
 * are used, and nothing is read or written outside of the buffers given.
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes; x86-64 has a
 * faster path, chosen when the module is loaded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include <stdlib.h>

#include "encoding.h"
#include "rans.h"
#include "symbol_counts.h"

/* ------------------------------------------------------------------ the entropy coder
 *
 * Symbol i belongs to coder i % lanes. A coder's state is at least LOWEST before and after each
 * symbol; what it cannot hold goes out in words of 16 bits, all coders to one run. Stored are the
 * states as the decoder begins, then the words in the order in which it asks for them. */

/* What a symbol does to a state; for each (context, symbol). Besides, for those who take many coders
 * at once, the same in fewer bits: frequency - 1 (12 bits), start (12 bits). */
typedef struct {
    uint64_t reciprocal; /* 2^63 / frequency, rounded up: a quotient without dividing */
    uint32_t rest;       /* TABLE - frequency */
    uint32_t start;
    uint32_t limit;      /* what a state's upper bits must stay below */
} coded;

/* Symbols `first` on, which nearly all are among, as exponents of weights are: what each does to a
 * state, byte by byte, so that it is looked up in registers. A number of 24 bits is frequency
 * (12 bits), start (12 bits); a float of 32 is what half a state is multiplied by. */
enum { NUMBER_BYTES = 3, FACTOR_BYTES = 4 };

typedef struct {
    uint8_t first;
    uint8_t number[NUMBER_BYTES][NEIGHBOURS];
    uint8_t factor[FACTOR_BYTES][NEIGHBOURS];
} neighbours;

typedef struct {
    const coded *coded; /* NULL: `brief` must do */
    const uint32_t *brief;
    const neighbours *near; /* NULL: there are none */
} coding;

typedef struct {
    uint8_t *at; /* where what is written begins; it grows downward */
    const uint8_t *floor;
} downward;

/* One round of turns, from its last symbol to its first. */
INLINE void pack_round(const uint8_t *symbols, const uint8_t *contexts, size_t turns,
                       const coded *table, uint32_t *states, downward *to)
{
    uint8_t *at = to->at;
    for (size_t lane = turns; lane-- > 0;) {
        const coded *one =
            table + (contexts ? (size_t)contexts[lane] * SYMBOLS : 0) + symbols[lane];
        uint32_t state = states[lane];
        store16(at - 2, (uint16_t)state);
        unsigned full = state >> 20 >= one->limit; /* no branch: nobody could predict it */
        at -= 2 * full;
        state >>= 16 * full;
        uint32_t quotient =
            (uint32_t)(((unsigned __int128)((uint64_t)state << 1) * one->reciprocal) >> 64);
        states[lane] = state + quotient * one->rest + one->start;
    }
    to->at = at;
}

/* The same by dividing: for few symbols, which do not pay for reciprocals. */
INLINE void divide_round(const uint8_t *symbols, const uint8_t *contexts, size_t turns,
                         const uint32_t *brief, uint32_t *states, downward *to)
{
    uint8_t *at = to->at;
    for (size_t lane = turns; lane-- > 0;) {
        uint32_t one = brief[(contexts ? (size_t)contexts[lane] * SYMBOLS : 0) + symbols[lane]];
        uint32_t state = states[lane], frequency = (one & (TABLE - 1)) + 1;
        store16(at - 2, (uint16_t)state);
        unsigned full = state >> 20 >= frequency;
        at -= 2 * full;
        state >>= 16 * full;
        states[lane] = state + state / frequency * (TABLE - frequency) + (one >> TABLE_BITS);
    }
    to->at = at;
}

/* A round by whichever there is. */
static void any_round(const uint8_t *symbols, const uint8_t *contexts, size_t turns,
                      const coding *by, uint32_t *states, downward *to)
{
    if (by->coded)
        pack_round(symbols, contexts, turns, by->coded, states, to);
    else
        divide_round(symbols, contexts, turns, by->brief, states, to);
}

/* Whole rounds of LANES or MOST_LANES before symbol `end`, a multiple of them, while there is room;
 * the first symbol that was packed. */
typedef size_t pack_rounds(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                           const coding *by, size_t lanes, uint32_t *states, downward *to);

static size_t pack_rounds_portable(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                                   const coding *by, size_t lanes, uint32_t *states, downward *to)
{
    for (; end && to->at >= to->floor; end -= lanes)
        pack_round(symbols + end - lanes, contexts ? contexts + end - lanes : NULL, lanes,
                   by->coded, states, to);
    return end;
}

static pack_rounds *best_pack_rounds = pack_rounds_portable;
static bool takes_neighbours;

/* Encode from the last symbol to the first, backwards from the end of `out`. Returns where the
 * result begins, or NULL where it does not fit. */
static uint8_t *pack_symbols(const uint8_t *symbols, const uint8_t *contexts, size_t count,
                             const coding *by, size_t lanes, uint8_t *out, size_t room)
{
    uint32_t states[MOST_LANES];
    for (size_t lane = 0; lane < lanes; lane++)
        states[lane] = LOWEST;
    downward to = {out + room, out + 4 * lanes + ROUND};
    if (room < 4 * lanes + ROUND)
        return NULL;
    size_t turns = count % lanes, end = count - turns;
    any_round(symbols + end, contexts ? contexts + end : NULL, turns, by, states, &to);
    if (lanes != FEW)
        end = best_pack_rounds(symbols, contexts, end, by, lanes, states, &to);
    for (; end && to.at >= to.floor; end -= lanes)
        any_round(symbols + end - lanes, contexts ? contexts + end - lanes : NULL, lanes, by,
                  states, &to);
    if (end)
        return NULL;
    memcpy(to.at - 4 * lanes, states, 4 * lanes);
    return to.at - 4 * lanes;
}

#if defined(__x86_64__)

/* ------------------------------------------------------------------ packing on x86-64 */

static __m128i pushed[256]; /* for each mask of words: those that are not in it, at the end */

static void fill_pushed(void)
{
    for (unsigned mask = 0; mask < 256; mask++) {
        uint8_t bytes[2 * WIDTH] = {0};
        size_t next = 2 * (size_t)__builtin_popcount(mask);
        for (uint8_t word = 0; word < WIDTH; word++)
            if (!(mask >> word & 1)) {
                bytes[next++] = 2 * word;
                bytes[next++] = 2 * word + 1;
            }
        memcpy(&pushed[mask], bytes, sizeof bytes);
    }
}

/* Writes the lower words of states, but of those that fit. */
WIDE INLINE void push_words(__m256i state, __m256i fits, downward *to)
{
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(fits));
    __m256i low = _mm256_blend_epi16(state, _mm256_setzero_si256(), 0xAA);
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128((__m128i *)(to->at - 16), _mm_shuffle_epi8(words, pushed[mask]));
    to->at += 2 * (ptrdiff_t)__builtin_popcount(mask) - 16;
}

/* * A state that is divided is below frequency * 2^20, and the quotient below 2^20. So a quotient of
 * floats is off by one at most, and what is left over says in which direction. */

/* Sixteen coders take a symbol each. */
WIDEST INLINE __m512i pack_sixteen(__m512i state, const uint8_t *symbols, const uint8_t *contexts,
                                   const uint32_t *brief, downward *to)
{
    const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i one = _mm512_set1_epi32(1), zero = _mm512_setzero_si512();
    __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)symbols));
    if (contexts) {
        __m512i of = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)contexts));
        at = _mm512_or_si512(at, _mm512_slli_epi32(of, 8));
    }
    __m512i entry = gathered(at, brief);
    __m512i last = _mm512_and_si512(entry, _mm512_set1_epi32(TABLE - 1));
    __m512i frequency = _mm512_add_epi32(last, one);
    __mmask16 full = _mm512_cmpgt_epu32_mask(_mm512_srli_epi32(state, 20), last);
    int count = __builtin_popcount(full);
    __m512i words = _mm512_permutexvar_epi32(_mm512_add_epi32(places, _mm512_set1_epi32(count)),
                                             _mm512_maskz_compress_epi32(full, state));
    _mm256_storeu_si256((__m256i *)(to->at - 32), _mm512_cvtepi32_epi16(words));
    to->at -= 2 * count;
    state = _mm512_mask_srli_epi32(state, full, state, 16);
    __m512i quotient = _mm512_cvttps_epi32(
        _mm512_div_ps(_mm512_cvtepu32_ps(state), _mm512_cvtepi32_ps(frequency)));
    __m512i left = _mm512_sub_epi32(state, _mm512_mullo_epi32(quotient, frequency));
    __mmask16 below = _mm512_cmplt_epi32_mask(left, zero);
    __mmask16 above = _mm512_cmpgt_epi32_mask(left, last);
    quotient = _mm512_mask_sub_epi32(quotient, below, quotient, one);
    left = _mm512_mask_add_epi32(left, below, left, frequency);
    quotient = _mm512_mask_add_epi32(quotient, above, quotient, one);
    left = _mm512_mask_sub_epi32(left, above, left, frequency);
    return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(quotient, TABLE_BITS), left),
                            _mm512_srli_epi32(entry, TABLE_BITS));
}

WIDEST INLINE size_t pack_by_sixteen(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                                     const coding *by, const size_t lanes, uint32_t *states,
                                     downward *to)
{
    __m512i all[MOST_LANES / 16];
    downward local = *to;
    for (size_t i = 0; i < lanes / 16; i++)
        all[i] = _mm512_loadu_si512(states + 16 * i);
    for (; end && local.at >= local.floor; end -= lanes) {
#pragma GCC unroll 4
        for (size_t i = lanes / 16; i-- > 0;) {
            size_t at = end - lanes + 16 * i;
            all[i] = pack_sixteen(all[i], symbols + at, contexts ? contexts + at : NULL, by->brief,
                                  &local);
        }
    }
    for (size_t i = 0; i < lanes / 16; i++)
        _mm512_storeu_si512(states + 16 * i, all[i]);
    *to = local;
    return end;
}

WIDEST static size_t pack_rounds_widest(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                                        const coding *by, size_t lanes, uint32_t *states,
                                        downward *to)
{
    if (lanes == MOST_LANES)
        return pack_by_sixteen(symbols, contexts, end, by, MOST_LANES, states, to);
    return pack_by_sixteen(symbols, contexts, end, by, LANES, states, to);
}

/* What eight symbols do. Loads of one each: on many machines a gather takes twice as long. */
WIDE INLINE __m256i eight_of(const uint32_t *brief, const uint8_t *symbols, const uint8_t *contexts)
{
    __m128i low = _mm_loadl_epi64((const __m128i *)symbols);
    __m128i high = contexts ? _mm_loadl_epi64((const __m128i *)contexts) : _mm_setzero_si128();
    __m128i at = _mm_unpacklo_epi8(low, high);
    uint64_t one = (uint64_t)_mm_cvtsi128_si64(at), other = (uint64_t)_mm_extract_epi64(at, 1);
    return _mm256_setr_epi32(
        (int)brief[(uint16_t)one], (int)brief[(uint16_t)(one >> 16)],
        (int)brief[(uint16_t)(one >> 32)], (int)brief[one >> 48], (int)brief[(uint16_t)other],
        (int)brief[(uint16_t)(other >> 16)], (int)brief[(uint16_t)(other >> 32)],
        (int)brief[other >> 48]);
}

/* Eight coders take a symbol each. */
WIDE INLINE __m256i pack_eight(__m256i state, const uint8_t *symbols, const uint8_t *contexts,
                               const uint32_t *brief, downward *to)
{
    __m256i entry = eight_of(brief, symbols, contexts);
    __m256i last = _mm256_and_si256(entry, _mm256_set1_epi32(TABLE - 1));
    __m256i frequency = _mm256_add_epi32(last, _mm256_set1_epi32(1));
    __m256i fits = _mm256_cmpgt_epi32(frequency, _mm256_srli_epi32(state, 20));
    push_words(state, fits, to);
    state = _mm256_blendv_epi8(_mm256_srli_epi32(state, 16), state, fits);
    /* Half of both: a state may have its highest bit set, which would be a sign. */
    __m256 half = _mm256_cvtepi32_ps(_mm256_srli_epi32(state, 1));
    __m256 halved = _mm256_mul_ps(_mm256_cvtepi32_ps(frequency), _mm256_set1_ps(0.5f));
    __m256i quotient = _mm256_cvttps_epi32(_mm256_div_ps(half, halved));
    __m256i left = _mm256_sub_epi32(state, _mm256_mullo_epi32(quotient, frequency));
    __m256i below = _mm256_srai_epi32(left, 31), above = _mm256_cmpgt_epi32(left, last);
    quotient = _mm256_sub_epi32(_mm256_add_epi32(quotient, below), above);
    left = _mm256_add_epi32(left, _mm256_and_si256(frequency, below));
    left = _mm256_sub_epi32(left, _mm256_and_si256(frequency, above));
    return _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(quotient, TABLE_BITS), left),
                            _mm256_srli_epi32(entry, TABLE_BITS));
}

/* The same, of a symbol each that has a frequency, start and factor. The quotient is never too large, and
 * too small by one at most: see factor_of. */
WIDE INLINE __m256i pack_eight_near(__m256i state, __m256i number, __m256 factor, downward *to)
{
    __m256i frequency = _mm256_and_si256(number, _mm256_set1_epi32(TABLE - 1));
    __m256i fits = _mm256_cmpgt_epi32(frequency, _mm256_srli_epi32(state, 20));
    push_words(state, fits, to);
    state = _mm256_blendv_epi8(_mm256_srli_epi32(state, 16), state, fits);
    __m256 half = _mm256_cvtepi32_ps(_mm256_srli_epi32(state, 1));
    __m256i quotient = _mm256_cvttps_epi32(_mm256_mul_ps(half, factor));
    __m256i left = _mm256_sub_epi32(state, _mm256_mullo_epi32(quotient, frequency));
    __m256i right = _mm256_cmpgt_epi32(frequency, left);
    __m256i more = _mm256_andnot_si256(right, _mm256_sub_epi32(_mm256_set1_epi32(TABLE), frequency));
    left = _mm256_add_epi32(left, _mm256_add_epi32(_mm256_srli_epi32(number, TABLE_BITS), more));
    return _mm256_add_epi32(_mm256_slli_epi32(quotient, TABLE_BITS), left);
}

/* Bytes of 32 numbers, which are looked up by byte, put together: eight numbers to a vector. */
WIDE INLINE void four_bytes(__m256i one, __m256i two, __m256i three, __m256i four, __m256i *out)
{
    __m256i low = _mm256_unpacklo_epi8(one, two), high = _mm256_unpackhi_epi8(one, two);
    __m256i lower = _mm256_unpacklo_epi8(three, four), higher = _mm256_unpackhi_epi8(three, four);
    out[0] = _mm256_unpacklo_epi16(low, lower);
    out[1] = _mm256_unpackhi_epi16(low, lower);
    out[2] = _mm256_unpacklo_epi16(high, higher);
    out[3] = _mm256_unpackhi_epi16(high, higher);
}

WIDE INLINE __m256i of_neighbours(const uint8_t bytes[NEIGHBOURS], __m256i places)
{
    __m128i table = _mm_loadu_si128((const __m128i *)bytes);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places);
}

/* 32 symbols that are neighbours all of them; false, and nothing, where they are not. */
WIDE INLINE bool pack_neighbours(const uint8_t *symbols, const neighbours *near,
                                 __m256i all[LANES / WIDTH], downward *to)
{
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7); /* unpacked by halves */
    __m256i places = _mm256_loadu_si256((const __m256i *)symbols);
    places = _mm256_sub_epi8(places, _mm256_set1_epi8((char)near->first));
    __m256i beyond = _mm256_and_si256(places, _mm256_set1_epi8((char)(256 - NEIGHBOURS)));
    if (!_mm256_testz_si256(beyond, beyond))
        return false;
    __m256i number[LANES / WIDTH], factor[LANES / WIDTH];
    places = _mm256_permutevar8x32_epi32(places, order);
    four_bytes(of_neighbours(near->number[0], places), of_neighbours(near->number[1], places),
               of_neighbours(near->number[2], places), _mm256_setzero_si256(), number);
    four_bytes(of_neighbours(near->factor[0], places), of_neighbours(near->factor[1], places),
               of_neighbours(near->factor[2], places), of_neighbours(near->factor[3], places),
               factor);
    for (size_t i = LANES / WIDTH; i-- > 0;)
        all[i] = pack_eight_near(all[i], number[i], _mm256_castsi256_ps(factor[i]), to);
    return true;
}

WIDE INLINE size_t pack_by_eight(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                                 const coding *by, const size_t lanes, uint32_t *states,
                                 downward *to)
{
    __m256i all[MOST_LANES / WIDTH];
    downward local = *to;
    for (size_t i = 0; i < lanes / WIDTH; i++)
        all[i] = _mm256_loadu_si256((const __m256i *)(states + WIDTH * i));
    for (; end && local.at >= local.floor; end -= lanes) {
#pragma GCC unroll 2
        for (size_t half = lanes / LANES; half-- > 0;) {
            size_t begin = end - lanes + LANES * half;
            __m256i *of = all + LANES / WIDTH * half;
            if (by->near && pack_neighbours(symbols + begin, by->near, of, &local))
                continue;
            for (size_t i = LANES / WIDTH; i-- > 0;) {
                size_t at = begin + WIDTH * i;
                of[i] = pack_eight(of[i], symbols + at, contexts ? contexts + at : NULL, by->brief,
                                   &local);
            }
        }
    }
    for (size_t i = 0; i < lanes / WIDTH; i++)
        _mm256_storeu_si256((__m256i *)(states + WIDTH * i), all[i]);
    *to = local;
    return end;
}

WIDE static size_t pack_rounds_wide(const uint8_t *symbols, const uint8_t *contexts, size_t end,
                                    const coding *by, size_t lanes, uint32_t *states, downward *to)
{
    if (lanes == MOST_LANES)
        return pack_by_eight(symbols, contexts, end, by, MOST_LANES, states, to);
    return pack_by_eight(symbols, contexts, end, by, LANES, states, to);
}

static void choose(void)
{
    choose_unpacking();
    if (!is_wide())
        return;
    fill_pushed();
    best_pack_rounds = is_widest() ? pack_rounds_widest : pack_rounds_wide;
    takes_neighbours = !is_widest();
}

#else

static void choose(void) {}

#endif

/* ------------------------------------------------------------------ Python */

/* The number of contexts, or 0 and an error: each one's frequencies must add up to TABLE. */
static size_t checked_tables(const Py_buffer *frequencies)
{
    size_t tables = (size_t)frequencies->len / (2 * SYMBOLS);
    bool fine = tables >= 1 && tables <= CONTEXTS && frequencies->len % (2 * SYMBOLS) == 0 &&
                (uintptr_t)frequencies->buf % 2 == 0;
    const uint16_t *all = frequencies->buf;
    for (size_t table = 0; fine && table < tables; table++) {
        uint32_t sum = 0;
        for (size_t i = 0; i < SYMBOLS; i++)
            sum += all[table * SYMBOLS + i];
        fine = sum == TABLE;
    }
    if (!fine)
        PyErr_Format(PyExc_ValueError, "frequencies of %zu contexts do not add up to %d", tables,
                     (int)TABLE);
    return fine ? tables : 0;
}

/* Whether every context has a table. */
static bool are_contexts(const Py_buffer *contexts, Py_ssize_t count, size_t tables)
{
    if (!contexts->obj)
        return true;
    if (!is_size("contexts", contexts->len, count))
        return false;
    const uint8_t *all = contexts->buf;
    uint8_t highest = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        highest = all[i] > highest ? all[i] : highest;
    if (highest >= tables)
        PyErr_Format(PyExc_ValueError, "context %d of %zu", (int)highest, tables);
    return highest < tables;
}

static void count_all(const uint8_t *symbols, const uint8_t *contexts, size_t count,
                      uint32_t *counts, uint32_t *others)
{
    size_t i = 0;
    if (!contexts) {
        best_count_bytes(symbols, count, counts);
        return;
    }
    /* Two tables: to count the same symbol twice in a row would wait for the first. */
    for (; i + 2 <= count; i += 2) {
        counts[(size_t)contexts[i] * SYMBOLS + symbols[i]]++;
        others[(size_t)contexts[i + 1] * SYMBOLS + symbols[i + 1]]++;
    }
    if (i < count)
        counts[(size_t)contexts[i] * SYMBOLS + symbols[i]]++;
}

static PyObject *counted(Py_buffer *at)
{
    size_t tables = (size_t)at[2].len / (4 * SYMBOLS), cells = tables * SYMBOLS;
    if (!tables || tables > CONTEXTS || at[2].len % (4 * SYMBOLS) || (uintptr_t)at[2].buf % 4)
        return PyErr_Format(PyExc_ValueError, "no counts of %zu contexts", tables);
    if (!are_contexts(&at[1], at[0].len, tables))
        return NULL;
    uint32_t *others = calloc(cells, sizeof *others), *counts = at[2].buf;
    if (!others)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    count_all(at[0].buf, at[1].obj ? at[1].buf : NULL, (size_t)at[0].len, counts, others);
    for (size_t i = 0; i < cells; i++)
        counts[i] += others[i];
    Py_END_ALLOW_THREADS
    free(others);
    Py_RETURN_NONE;
}

static PyObject *count(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    if (!PyArg_ParseTuple(arguments, "y*z*w*", &at[0], &at[1], &at[2]))
        return NULL;
    PyObject *found = counted(at);
    release(at, 3);
    return found;
}

static bool known_lanes(int lanes)
{
    bool known = lanes == MOST_LANES || lanes == LANES || lanes == FEW;
    if (!known)
        PyErr_Format(PyExc_ValueError, "%d coders cannot take turns", lanes);
    return known;
}

/* What a frequency of 0 is, whoever uses it anyway: what is packed decodes to something else, no more. */
static void fill_brief(const uint16_t *frequencies, uint32_t *brief)
{
    uint32_t start = 0;
    for (size_t i = 0; i < SYMBOLS; i++) {
        uint32_t frequency = frequencies[i];
        brief[i] = frequency ? (frequency - 1) | start << TABLE_BITS : TABLE - 1;
        start += frequency;
    }
}

static void fill_coded(const uint32_t *brief, coded *table)
{
    for (size_t i = 0; i < SYMBOLS; i++) {
        uint32_t frequency = (brief[i] & (TABLE - 1)) + 1;
        table[i] = (coded){(((uint64_t)1 << 63) + frequency - 1) / frequency, TABLE - frequency,
                           brief[i] >> TABLE_BITS, frequency};
    }
}

void count_symbols(const uint8_t *symbols, const uint8_t *contexts, size_t count, uint32_t *counts,
                   uint32_t *others)
{
    count_all(symbols, contexts, count, counts, others);
}

_Static_assert(PACK_SLACK == 4 * MOST_LANES + ROUND, "states, and a round of words");

size_t lanes_for(size_t count, double bits)
{
    if (count < MANY)
        return FEW;
    return count >= LONG || bits >= 8.0 * LONG_BYTES ? MOST_LANES : LANES;
}

/* Whether all rounds but the last are worked on without reciprocals. */
static bool divides(size_t lanes)
{
    return lanes == FEW || best_pack_rounds != pack_rounds_portable;
}

/* Kept from plane to plane. */
static _Thread_local coded coded_of_thread[MOST_TABLES * SYMBOLS];
static _Thread_local uint32_t brief_of_thread[MOST_TABLES * SYMBOLS];

/* What half a state is multiplied by to be divided by a frequency. A state is below frequency * 2^20 then,
 * so of the quotient, below 2^20, roundings of halves, of factor and product are less than 0.19, and what
 * makes up for them in one direction is 0.25; the lowest bit of a state that is halved is no more than
 * half of a frequency above 1, and of those of frequency 1 nothing else is rounded. */
static float factor_of(uint32_t frequency)
{
    return frequency > 1 ? (float)((2.0 - 0x1p-21) / frequency) : 2;
}

/* Neighbours of one table, if all but one symbol in so many are among them. */
enum { BEYOND = 256 };

static bool fill_neighbours(const made_tables *by, size_t count, neighbours *near)
{
    int64_t among;
    uint32_t first = first_of_neighbours(by->counted, &among);
    if (by->rows != 1 || ((int64_t)count - among) * BEYOND > (int64_t)count)
        return false;
    near->first = (uint8_t)first;
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        uint32_t frequency = by->frequencies[first + i];
        if (frequency == TABLE)
            return false;
        uint32_t number = frequency ? brief_of_thread[first + i] + 1 : 1;
        float factor = factor_of(number & (TABLE - 1));
        uint8_t bytes[FACTOR_BYTES];
        memcpy(bytes, &factor, sizeof bytes);
        for (uint32_t byte = 0; byte < FACTOR_BYTES; byte++)
            near->factor[byte][i] = bytes[byte];
        for (uint32_t byte = 0; byte < NUMBER_BYTES; byte++)
            near->number[byte][i] = (uint8_t)(number >> 8 * byte);
    }
    return true;
}

uint8_t *pack_by_tables(const uint8_t *symbols, const uint8_t *contexts, size_t count,
                        const made_tables *by, size_t lanes, uint8_t *out, size_t room)
{
    coding of = {divides(lanes) ? NULL : coded_of_thread, brief_of_thread, NULL};
    neighbours near;
    for (size_t at = 0; at < by->rows * SYMBOLS; at += SYMBOLS) {
        fill_brief(by->frequencies + at, brief_of_thread + at);
        if (of.coded)
            fill_coded(brief_of_thread + at, coded_of_thread + at);
    }
    if (takes_neighbours && lanes != FEW && !contexts && fill_neighbours(by, count, &near))
        of.near = &near;
    return pack_symbols(symbols, contexts, count, &of, lanes, out, room);
}

static PyObject *packed(Py_buffer *at, int lanes)
{
    size_t tables = checked_tables(&at[2]);
    if (!tables || !known_lanes(lanes) || !are_contexts(&at[1], at[0].len, tables))
        return NULL;
    coded *table = malloc(tables * SYMBOLS * (sizeof *table + sizeof(uint32_t)));
    if (!table)
        return PyErr_NoMemory();
    uint32_t *brief = (uint32_t *)(table + tables * SYMBOLS);
    for (size_t i = 0; i < tables * SYMBOLS; i += SYMBOLS) {
        fill_brief((const uint16_t *)at[2].buf + i, brief + i);
        fill_coded(brief + i, table + i);
    }
    coding by = {table, brief, NULL};
    uint8_t *begin, *out = at[3].buf;
    Py_BEGIN_ALLOW_THREADS
    begin = pack_symbols(at[0].buf, at[1].obj ? at[1].buf : NULL, (size_t)at[0].len, &by,
                         (size_t)lanes, out, (size_t)at[3].len);
    Py_END_ALLOW_THREADS
    free(table);
    return PyLong_FromSsize_t(begin ? begin - out : -1);
}

static PyObject *pack(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    int lanes;
    if (!PyArg_ParseTuple(arguments, "y*z*y*iw*", &at[0], &at[1], &at[2], &lanes, &at[3]))
        return NULL;
    PyObject *found = packed(at, lanes);
    release(at, 4);
    return found;
}

static PyObject *unpacked(Py_buffer *at, int lanes)
{
    size_t tables = checked_tables(&at[2]);
    if (!tables || !known_lanes(lanes) || !are_contexts(&at[1], at[3].len, tables))
        return NULL;
    uint32_t *slots = malloc((tables * TABLE + SLOT_SLACK) * sizeof *slots);
    if (!slots)
        return PyErr_NoMemory();
    bool fine;
    decoder it;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < tables; i++)
        best_fill((const uint16_t *)at[2].buf + i * SYMBOLS, slots + i * TABLE);
    size_t size = (size_t)at[0].len;
    fine = begin_symbols(&it, at[0].buf, size, size, slots, (size_t)lanes) &&
           next_symbols(&it, at[1].obj ? at[1].buf : NULL, (size_t)at[3].len, at[3].buf) &&
           symbols_ended(&it);
    Py_END_ALLOW_THREADS
    free(slots);
    return PyBool_FromLong(fine);
}

static PyObject *unpack(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    int lanes;
    if (!PyArg_ParseTuple(arguments, "y*z*y*iw*", &at[0], &at[1], &at[2], &lanes, &at[3]))
        return NULL;
    PyObject *found = unpacked(at, lanes);
    release(at, 4);
    return found;
}

static PyObject *tables(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*w*w*", &at[0], &at[1], &at[2]))
        return NULL;
    size_t rows = (size_t)at[2].len / (2 * SYMBOLS);
    if (is_size("groups", at[1].len, CONTEXTS) &&
        is_size("frequencies", at[2].len, (Py_ssize_t)(rows ? rows : 1) * 2 * SYMBOLS))
        found = PyLong_FromSsize_t(
            read_tables(at[0].buf, (size_t)at[0].len, at[1].buf, at[2].buf, rows));
    release(at, 3);
    return found;
}

/* ------------------------------------------------------------------ planes of many small frames */

/* Whether a plane is raw, constant or coded, and well-formed; then it is in `out`. `slots` has room
 * for one table. */
static bool unpack_small(const uint8_t *data, size_t size, int codec, uint32_t *slots, uint8_t *out,
                         size_t count)
{
    if (codec == STORED_RAW && size == count) {
        memcpy(out, data, count);
        return true;
    }
    if (codec == STORED_CONSTANT && size == 1) {
        memset(out, *data, count);
        return true;
    }
    if (codec != STORED_CODED)
        return false;
    uint8_t groups[CONTEXTS];
    uint16_t frequencies[SYMBOLS];
    Py_ssize_t used = read_tables(data, size, groups, frequencies, 1);
    if (used < 0)
        return false;
    best_fill(frequencies, slots);
    decoder it;
    data += used, size -= (size_t)used;
    return begin_symbols(&it, data, size, size, slots, count < MANY ? FEW : LANES) &&
           next_symbols(&it, NULL, count, out) && symbols_ended(&it);
}

/* Numbers of the planes that are left. */
static PyObject *numbers_left(const uint8_t *left, Py_ssize_t count)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < count; i++) {
        PyObject *number = left[i] ? PyLong_FromSsize_t(i) : NULL;
        if (left[i] && (!number || PyList_Append(found, number)))
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found;
}

static PyObject *unpacked_planes(Py_buffer *at)
{
    Py_ssize_t count = items(&at[1], 8, "offsets");
    if (count < 0 || items(&at[2], 8, "sizes") != count || at[3].len != count ||
        (count ? at[4].len % count : at[4].len))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no %zd planes", count);
    uint8_t *left = calloc((size_t)count + 1, 1), *out = at[4].buf;
    uint32_t *slots = (uint32_t *)scratch((TABLE + SLOT_SLACK) * sizeof *slots);
    if (!left || !slots) {
        free(left);
        return PyErr_NoMemory();
    }
    const uint64_t *offsets = at[1].buf, *sizes = at[2].buf;
    size_t room = count ? (size_t)(at[4].len / count) : 0, whole = (size_t)at[0].len;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        bool inside = offsets[i] <= whole && sizes[i] <= whole - offsets[i];
        left[i] = !inside || !unpack_small((const uint8_t *)at[0].buf + offsets[i], sizes[i],
                                           ((const uint8_t *)at[3].buf)[i], slots,
                                           out + (size_t)i * room, room);
    }
    Py_END_ALLOW_THREADS
    PyObject *found = numbers_left(left, count);
    free(left);
    return found;
}

/* unpack_planes(pack, offsets, sizes, codecs, out): planes of equal size, one after the other in
 * `out`, each from where it lies in a pack; the numbers of those that are neither raw, constant nor
 * coded, or not well-formed. */
static PyObject *unpack_planes(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[5] = {{0}};
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*", &at[0], &at[1], &at[2], &at[3], &at[4]))
        return NULL;
    PyObject *found = unpacked_planes(at);
    release(at, 5);
    return found;
}

static PyMethodDef METHODS[] = {
    {"count", count, METH_VARARGS, NULL},
    {"pack", pack, METH_VARARGS, NULL},
    {"tables", tables, METH_VARARGS, NULL},
    {"unpack", unpack, METH_VARARGS, NULL},
    {"unpack_planes", unpack_planes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_rans(PyObject *module)
{
    choose();
    choose_counting();
    return PyModule_AddFunctions(module, METHODS);
}
