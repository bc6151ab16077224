/* Orders of rows that keyed numbers decide.
 *
 * What docs/spec/stream-order.md says in numbers, for thousands of rows a call: permutations of
 * runs, the global order, where lanes walk, and which runs open and close. Everything lets go of
 * the interpreter lock. The twin in numpy is formats/dataset/streaming/order/kernel.py, and gives the same.
 *
 * Sizes are checked here, and what is used as an index. Unsigned numbers of 64 bits wrap.
 * Only what Python 3.11's limited API has is used, so one build serves every later version.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    FEISTEL_ROUNDS = 6,
    INSERTED = 24,          /* so few numbers are sorted without buckets */
    MOST_BUCKET_BITS = 16,
    BUCKET_NUMBERS = 4,     /* on average, half of it at least */
};

/* ------------------------------------------------------------------ keyed numbers */

#define GOLDEN 0x9E3779B97F4A7C15u

static inline uint64_t number(uint64_t key, uint64_t x)
{
    uint64_t z = key + (x + 1) * GOLDEN;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* How many low bits hold a place in [0, count): at least one. */
static inline unsigned low_bits(uint64_t count)
{
    return count <= 2 ? 1 : 64 - (unsigned)__builtin_clzll(count - 1);
}

/* ------------------------------------------------------------------ permutations */

static void insert_sorted(uint64_t *drawn, size_t count)
{
    for (size_t at = 1; at < count; at++) {
        uint64_t moved = drawn[at];
        size_t to = at;
        for (; to && drawn[to - 1] > moved; to--)
            drawn[to] = drawn[to - 1];
        drawn[to] = moved;
    }
}

typedef struct {
    uint64_t *drawn, *sorted;
    uint32_t starts[(1 << MOST_BUCKET_BITS) + 1];
} room;

static room *room_for(size_t count)
{
    room *made = malloc(sizeof *made);
    if (!made)
        return NULL;
    made->drawn = malloc((2 * count + 1) * sizeof *made->drawn);
    made->sorted = made->drawn + count;
    if (made->drawn)
        return made;
    free(made);
    return NULL;
}

static void give_back(room *room)
{
    free(room->drawn);
    free(room);
}

/* Sort drawn numbers, which are spread evenly: their high bits say nearly where each belongs, and
 * few have to move on from there. Gives where they lie then. */
static const uint64_t *sorted(room *room, size_t count)
{
    if (count <= INSERTED) {
        insert_sorted(room->drawn, count);
        return room->drawn;
    }
    unsigned bits = low_bits(count / BUCKET_NUMBERS);
    bits = bits > MOST_BUCKET_BITS ? MOST_BUCKET_BITS : bits;
    uint32_t *starts = room->starts;
    memset(starts, 0, (((size_t)1 << bits) + 1) * sizeof *starts);
    for (size_t at = 0; at < count; at++)
        starts[(room->drawn[at] >> (64 - bits)) + 1]++;
    for (size_t bucket = 1; bucket < (size_t)1 << bits; bucket++)
        starts[bucket] += starts[bucket - 1];
    for (size_t at = 0; at < count; at++)
        room->sorted[starts[room->drawn[at] >> (64 - bits)]++] = room->drawn[at];
    insert_sorted(room->sorted, count);
    return room->sorted;
}

/* The numbers of `count` places whose low bits are replaced by the place, sorted. */
static const uint64_t *drawn_places(uint64_t key, uint64_t first, size_t count, room *room)
{
    uint64_t mask = ((uint64_t)1 << low_bits(count)) - 1;
    for (size_t place = 0; place < count; place++)
        room->drawn[place] = (number(key, first + place) & ~mask) | place;
    return sorted(room, count);
}

typedef struct {
    const uint64_t *keys;
    const int64_t *counts, *at;
    size_t runs;
    uint32_t *out;
} shuffles;

static void shuffle_all(const shuffles *wanted, room *room)
{
    for (size_t run = 0; run < wanted->runs; run++) {
        size_t count = (size_t)wanted->counts[run];
        uint64_t mask = ((uint64_t)1 << low_bits(count)) - 1;
        const uint64_t *drawn = drawn_places(wanted->keys[run], 0, count, room);
        uint32_t *out = wanted->out + wanted->at[run];
        for (size_t place = 0; place < count; place++)
            out[place] = (uint32_t)(drawn[place] & mask);
    }
}

/* ------------------------------------------------------------------ the global order */

typedef struct {
    uint64_t keys[FEISTEL_ROUNDS], low_mask, high_mask, count;
    unsigned low_width;
} network;

static network network_of(uint64_t key, uint64_t count)
{
    unsigned width = count <= 4 ? 2 : low_bits(count);
    network made = {.count = count, .low_width = width / 2};
    made.low_mask = ((uint64_t)1 << made.low_width) - 1;
    made.high_mask = ((uint64_t)1 << (width - made.low_width)) - 1;
    for (unsigned turn = 0; turn < FEISTEL_ROUNDS; turn++)
        made.keys[turn] = number(key, turn);
    return made;
}

static inline uint64_t scattered(const network *network, uint64_t position)
{
    do {
        uint64_t low = position & network->low_mask, high = position >> network->low_width;
        for (unsigned turn = 0; turn < FEISTEL_ROUNDS; turn += 2) {
            high ^= number(network->keys[turn], low) & network->high_mask;
            low ^= number(network->keys[turn + 1], high) & network->low_mask;
        }
        position = high << network->low_width | low;
    } while (position >= network->count);
    return position;
}

/* ------------------------------------------------------------------ lines of runs */

/* Which piece of a line holds `at`, searched from a guess on: pieces begin at start[0..pieces), and
 * the last one ends at start[pieces]. */
static inline size_t piece_of(const int64_t *start, size_t pieces, int64_t at, size_t guess)
{
    size_t low = guess, high = guess + 1, step = 1;
    for (; start[low] > at; step *= 2) {
        high = low;
        low = low > step ? low - step : 0;
    }
    for (; start[high] <= at; step *= 2) {
        low = high;
        high = pieces - high > step ? high + step : pieces;
    }
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (start[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

typedef struct {
    const int64_t *start; /* row of the line where each piece begins; one more: all rows */
    size_t pieces;
    const int64_t *cut;   /* row of the line where each ring begins; one more: all rows */
    const int64_t *first; /* where both lanes of a ring start, counted from its cut */
    size_t lanes, bands, stride;
    uint64_t key;
    size_t first_block, last_block, first_band, last_band;
    int64_t *position, *band, *piece, *place; /* of each row that is found */
    size_t found;
    /* what is known meanwhile */
    int64_t *turns;  /* in each band of a block, which of its lanes comes when */
    size_t *newest;  /* of each lane, the piece in which it was last */
} walk;

/* Where a lane is on the line in a block; -1: on no row. It goes round at most half of its ring. */
static inline int64_t line_row(const walk *walk, size_t lane, size_t block)
{
    int64_t low = walk->cut[lane / 2], size = walk->cut[lane / 2 + 1] - low;
    int64_t at = walk->first[lane / 2];
    at = lane % 2 ? at - 1 - (int64_t)block : at + (int64_t)block;
    at += at < 0 ? size : 0;
    at -= at >= size ? size : 0;
    return at >= 0 && at < size ? low + at : -1;
}

/* Whether a lane is long enough for this block. */
static inline bool reaches(const walk *walk, size_t lane, size_t block)
{
    int64_t size = walk->cut[lane / 2 + 1] - walk->cut[lane / 2];
    return (int64_t)block < (lane % 2 ? size : size + 1) / 2;
}

static void draw_turns(walk *walk, size_t block, size_t first_band, size_t last_band, room *room)
{
    size_t each = walk->lanes / walk->bands;
    uint64_t mask = ((uint64_t)1 << low_bits(each)) - 1;
    for (size_t band = first_band; band < last_band && each > 1; band++) {
        uint64_t first = (uint64_t)block * walk->lanes + band * each;
        const uint64_t *drawn = drawn_places(walk->key, first, each, room);
        for (size_t turn = 0; turn < each; turn++)
            walk->turns[band * each + turn] = (int64_t)(drawn[turn] & mask);
    }
}

/* The rows of one block; false where a lane is on no row. */
static bool walk_block(walk *walk, size_t block, bool whole)
{
    size_t each = walk->lanes / walk->bands, position = block * walk->lanes;
    for (size_t turn = 0; turn < each; turn++) {
        size_t band = 0;
        for (size_t slot = 0; slot < walk->bands; slot++, band += walk->stride) {
            band -= band >= walk->bands ? walk->bands : 0;
            bool mine = band >= walk->first_band && band < walk->last_band;
            if (whole && !mine) {
                position++;
                continue;
            }
            size_t lane = band * each + (size_t)walk->turns[band * each + turn];
            if (!reaches(walk, lane, block))
                continue;
            position++;
            if (!mine)
                continue;
            int64_t at = line_row(walk, lane, block);
            if (at < walk->start[0] || at >= walk->start[walk->pieces])
                return false;
            size_t piece = piece_of(walk->start, walk->pieces, at, walk->newest[lane]);
            walk->newest[lane] = piece;
            walk->position[walk->found] = (int64_t)position - 1;
            walk->band[walk->found] = (int64_t)band;
            walk->piece[walk->found] = (int64_t)piece;
            walk->place[walk->found++] = at - walk->start[piece];
        }
    }
    return true;
}

static bool walk_blocks(walk *walk, room *room)
{
    size_t rows = (size_t)(walk->cut[walk->lanes / 2] - walk->cut[0]);
    for (size_t block = walk->first_block; block < walk->last_block; block++) {
        bool whole = block < rows / walk->lanes;
        draw_turns(walk, block, whole ? walk->first_band : 0, whole ? walk->last_band : walk->bands,
                   room);
        if (!walk_block(walk, block, whole))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------ open runs */

enum { NEEDED = 1, SEEN = 2 };

typedef struct {
    const int64_t *run; /* of each row */
    const bool *busy;   /* of each row: its run comes again, however long that takes */
    const int64_t *following;
    size_t rows, coming, runs;
    bool *open;     /* of each run */
    uint8_t *marks; /* of each run; zeros before and after */
    int64_t *out;
} uses;

/* Places where runs come first that are not open; they are open from now on. */
static size_t open_first(const uses *uses)
{
    size_t found = 0;
    for (size_t at = 0; at < uses->rows; at++) {
        if (!uses->open[uses->run[at]]) {
            uses->open[uses->run[at]] = true;
            uses->out[found++] = (int64_t)at;
        }
    }
    return found;
}

static void mark(const uses *uses, const int64_t *run, size_t count, uint8_t how)
{
    for (size_t at = 0; at < count; at++)
        uses->marks[run[at]] = how;
}

/* Places where runs come last that are not needed soon; they are closed from now on. */
static size_t close_last(const uses *uses)
{
    size_t begin = uses->rows;
    mark(uses, uses->following, uses->coming, NEEDED);
    for (size_t at = uses->rows; at-- > 0;) {
        int64_t run = uses->run[at];
        if (!uses->marks[run] && !uses->busy[at]) {
            uses->open[run] = false;
            uses->out[--begin] = (int64_t)at;
        }
        uses->marks[run] |= SEEN;
    }
    mark(uses, uses->following, uses->coming, 0);
    mark(uses, uses->run, uses->rows, 0);
    memmove(uses->out, uses->out + begin, (uses->rows - begin) * sizeof *uses->out);
    return uses->rows - begin;
}

/* ------------------------------------------------------------------ Python */

static PyObject *done(bool fine, const char *what)
{
    if (fine)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* The most places of a permutation; -1 where one has no room in `out`, or too many. */
static Py_ssize_t most_places(const shuffles *wanted, Py_ssize_t room)
{
    int64_t most = 0;
    for (size_t run = 0; run < wanted->runs; run++) {
        int64_t count = wanted->counts[run], at = wanted->at[run];
        if (count < 0 || count > UINT32_MAX || at < 0 || at > room || count > room - at)
            return -1;
        most = count > most ? count : most;
    }
    return (Py_ssize_t)most;
}

static PyObject *shuffle_checked(const Py_buffer *given)
{
    Py_ssize_t runs = items(&given[0], 8, "keys"), counts = items(&given[1], 8, "counts");
    Py_ssize_t at = items(&given[2], 8, "places"), out = items(&given[3], 4, "out");
    if (runs < 0 || counts < 0 || at < 0 || out < 0)
        return NULL;
    shuffles wanted = {given[0].buf, given[1].buf, given[2].buf, (size_t)runs, given[3].buf};
    Py_ssize_t most = runs == counts && runs == at ? most_places(&wanted, out) : -1;
    if (most < 0)
        return done(false, "permutations that do not fit where they should go");
    room *room = room_for((size_t)most);
    if (!room)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    shuffle_all(&wanted, room);
    Py_END_ALLOW_THREADS
    give_back(room);
    Py_RETURN_NONE;
}

static PyObject *shuffle(PyObject *module, PyObject *arguments)
{
    Py_buffer given[4];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*w*", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    PyObject *result = shuffle_checked(given);
    release(given, 4);
    return result;
}

static bool scatter_all(const network *network, const int64_t *positions, int64_t *out, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        if ((uint64_t)positions[at] >= network->count)
            return false;
        out[at] = (int64_t)scattered(network, (uint64_t)positions[at]);
    }
    return true;
}

static PyObject *scatter(PyObject *module, PyObject *arguments)
{
    unsigned long long key, count;
    Py_buffer given[2];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KKy*w*", &key, &count, &given[0], &given[1]))
        return NULL;
    Py_ssize_t positions = items(&given[0], 8, "positions"), out = items(&given[1], 8, "out");
    bool fine = positions >= 0 && positions == out && count <= (uint64_t)1 << 62;
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        network made = network_of(key, count);
        fine = scatter_all(&made, given[0].buf, given[1].buf, (size_t)positions);
        Py_END_ALLOW_THREADS
    }
    release(given, 2);
    return PyErr_Occurred() ? NULL : done(fine, "a position is not one of the order");
}

static bool find_all(const int64_t *start, size_t pieces, const int64_t *at, size_t count,
                     int64_t *piece, int64_t *place)
{
    size_t newest = 0;
    double each = (double)pieces / (double)(start[pieces] - start[0]);
    for (size_t row = 0; row < count; row++) {
        if (at[row] < start[0] || at[row] >= start[pieces])
            return false;
        /* Pieces are mostly alike, so that the first guess is mostly right. */
        newest = (size_t)((double)(at[row] - start[0]) * each);
        newest = piece_of(start, pieces, at[row], newest < pieces ? newest : pieces - 1);
        piece[row] = (int64_t)newest;
        place[row] = at[row] - start[newest];
    }
    return true;
}

static PyObject *find_checked(const Py_buffer *given)
{
    Py_ssize_t starts = items(&given[0], 8, "starts"), rows = items(&given[1], 8, "rows");
    Py_ssize_t pieces = items(&given[2], 8, "pieces"), places = items(&given[3], 8, "places");
    if (starts < 0 || rows < 0 || pieces < 0 || places < 0)
        return NULL;
    bool fine = starts > 1 && rows == pieces && rows == places;
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        fine = find_all(given[0].buf, (size_t)starts - 1, given[1].buf, (size_t)rows, given[2].buf,
                        given[3].buf);
        Py_END_ALLOW_THREADS
    }
    return done(fine, "a row is not one of the line");
}

static PyObject *find(PyObject *module, PyObject *arguments)
{
    Py_buffer given[4];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*w*w*", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    PyObject *result = find_checked(given);
    release(given, 4);
    return result;
}

static bool look_up_all(const Py_buffer *given, size_t slots, size_t runs, size_t count)
{
    const uint32_t *rows = given[0].buf;
    const int64_t *slot = given[1].buf, *run = given[2].buf, *place = given[3].buf;
    int64_t *out = given[4].buf;
    for (size_t at = 0; at < count; at++) {
        if ((uint64_t)run[at] >= runs)
            return false;
        uint64_t from = (uint64_t)slot[run[at]] + (uint64_t)place[at];
        if (from >= slots)
            return false;
        out[at] = rows[from];
    }
    return true;
}

static PyObject *look_up_checked(const Py_buffer *given)
{
    Py_ssize_t slots = items(&given[0], 4, "rows"), runs = items(&given[1], 8, "slots");
    Py_ssize_t count = items(&given[2], 8, "runs"), places = items(&given[3], 8, "places");
    Py_ssize_t out = items(&given[4], 8, "out");
    if (slots < 0 || runs < 0 || count < 0 || places < 0 || out < 0)
        return NULL;
    bool fine = count == places && count == out;
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        fine = look_up_all(given, (size_t)slots, (size_t)runs, (size_t)count);
        Py_END_ALLOW_THREADS
    }
    return done(fine, "a place is not one of a run");
}

static PyObject *look_up(PyObject *module, PyObject *arguments)
{
    Py_buffer given[5];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*", &given[0], &given[1], &given[2], &given[3],
                          &given[4]))
        return NULL;
    PyObject *result = look_up_checked(given);
    release(given, 5);
    return result;
}

static bool are_runs(const int64_t *run, size_t count, size_t runs)
{
    bool fine = true;
    for (size_t at = 0; at < count; at++)
        fine &= (uint64_t)run[at] < runs;
    return fine;
}

static PyObject *used(const uses *uses, bool closing)
{
    bool fine = are_runs(uses->run, uses->rows, uses->runs) &&
                are_runs(uses->following, uses->coming, uses->runs);
    size_t found = 0;
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        found = closing ? close_last(uses) : open_first(uses);
        Py_END_ALLOW_THREADS
    }
    return fine ? PyLong_FromSize_t(found) : done(false, "a run is none of those that are known");
}

static PyObject *opened(PyObject *module, PyObject *arguments)
{
    Py_buffer given[3];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*w*w*", &given[0], &given[1], &given[2]))
        return NULL;
    Py_ssize_t rows = items(&given[0], 8, "runs"), out = items(&given[2], 8, "out");
    uses uses = {.run = given[0].buf, .rows = (size_t)rows, .open = given[1].buf,
                 .runs = (size_t)given[1].len, .out = given[2].buf};
    PyObject *result = NULL;
    if (rows >= 0 && out >= 0)
        result = rows == out ? used(&uses, false) : done(false, "there is no room for all rows");
    release(given, 3);
    return result;
}

static PyObject *closed_checked(const Py_buffer *given)
{
    Py_ssize_t rows = items(&given[0], 8, "runs"), coming = items(&given[2], 8, "runs to come");
    Py_ssize_t out = items(&given[5], 8, "out");
    if (rows < 0 || coming < 0 || out < 0)
        return NULL;
    if (rows != out || rows != given[1].len || given[3].len != given[4].len)
        return done(false, "rows, or runs, are not equally many");
    uses uses = {given[0].buf, given[1].buf, given[2].buf, (size_t)rows, (size_t)coming,
                 (size_t)given[3].len, given[3].buf, given[4].buf, given[5].buf};
    return used(&uses, true);
}

static PyObject *closed(PyObject *module, PyObject *arguments)
{
    Py_buffer given[6];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*w*w*w*", &given[0], &given[1], &given[2], &given[3],
                          &given[4], &given[5]))
        return NULL;
    PyObject *result = closed_checked(given);
    release(given, 6);
    return result;
}

/* Whether steps of `stride` come by each of so many bands before they come by one again: else a
 * block has more rows of a band than there is room for. */
static bool comes_by_all(size_t stride, size_t bands)
{
    while (stride) {
        size_t rest = bands % stride;
        bands = stride;
        stride = rest;
    }
    return bands == 1;
}

/* Lanes are even, bands divide them, and there is room for what may be found. */
static bool fits(const walk *walk, Py_ssize_t cuts, Py_ssize_t firsts, Py_ssize_t room)
{
    size_t lanes = walk->lanes, blocks = walk->last_block - walk->first_block;
    if (lanes < 2 || lanes % 2 || !walk->bands || lanes % walk->bands ||
        walk->stride > walk->bands || !comes_by_all(walk->stride, walk->bands) ||
        walk->last_block < walk->first_block ||
        walk->last_band < walk->first_band || walk->last_band > walk->bands)
        return false;
    size_t each = (walk->last_band - walk->first_band) * (lanes / walk->bands);
    return (size_t)cuts == lanes / 2 + 1 && (size_t)firsts == lanes / 2 &&
           (!each || blocks <= (size_t)room / each);
}

static PyObject *walked(walk *walk)
{
    room *room = room_for(walk->lanes / walk->bands);
    walk->turns = calloc(walk->lanes, sizeof *walk->turns);
    walk->newest = calloc(walk->lanes, sizeof *walk->newest);
    bool fine = false, has_room = room && walk->turns && walk->newest;
    if (has_room) {
        Py_BEGIN_ALLOW_THREADS
        fine = walk_blocks(walk, room);
        Py_END_ALLOW_THREADS
    }
    if (room)
        give_back(room);
    free(walk->turns);
    free(walk->newest);
    if (!has_room)
        return PyErr_NoMemory();
    return fine ? PyLong_FromSize_t(walk->found) : done(false, "a lane leaves its ring");
}

static PyObject *walk_checked(const Py_buffer *given, walk *walk)
{
    Py_ssize_t starts = items(&given[0], 8, "starts"), cuts = items(&given[1], 8, "cuts");
    Py_ssize_t firsts = items(&given[2], 8, "firsts"), room = items(&given[3], 8, "out");
    if (starts < 0 || cuts < 0 || firsts < 0 || room < 0)
        return NULL;
    if (starts < 2 || room % 4 || !fits(walk, cuts, firsts, room / 4))
        return done(false, "lanes, bands, blocks and what should hold their rows do not fit");
    walk->start = given[0].buf;
    walk->pieces = (size_t)starts - 1;
    walk->cut = given[1].buf;
    walk->first = given[2].buf;
    walk->position = given[3].buf;
    walk->band = walk->position + room / 4;
    walk->piece = walk->band + room / 4;
    walk->place = walk->piece + room / 4;
    return walked(walk);
}

static PyObject *walk_lanes(PyObject *module, PyObject *arguments)
{
    Py_buffer given[4];
    unsigned long long key;
    Py_ssize_t size[7];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*nnnK(nn)(nn)w*", &given[0], &given[1], &given[2],
                          &size[0], &size[1], &size[2], &key, &size[3], &size[4], &size[5],
                          &size[6], &given[3]))
        return NULL;
    bool fine = true;
    for (size_t at = 0; at < 7; at++)
        fine &= size[at] >= 0;
    walk wanted = {.lanes = (size_t)size[0], .bands = (size_t)size[1], .stride = (size_t)size[2],
                   .key = key, .first_block = (size_t)size[3], .last_block = (size_t)size[4],
                   .first_band = (size_t)size[5], .last_band = (size_t)size[6]};
    PyObject *result = fine ? walk_checked(given, &wanted) : done(false, "a size below zero");
    release(given, 4);
    return result;
}

static PyMethodDef METHODS[] = {
    {"shuffle", shuffle, METH_VARARGS, NULL},
    {"scatter", scatter, METH_VARARGS, NULL},
    {"find", find, METH_VARARGS, NULL},
    {"look_up", look_up, METH_VARARGS, NULL},
    {"walk_lanes", walk_lanes, METH_VARARGS, NULL},
    {"opened", opened, METH_VARARGS, NULL},
    {"closed", closed, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_order(PyObject *module)
{
    return PyModule_AddFunctions(module, METHODS);
}
