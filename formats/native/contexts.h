/* Which group is the context of each number of a base in?
 *
 * For distances.c alone. INLINE loops are compiled for several instruction sets.
 */
#ifndef TENSORREPO_CONTEXTS_H
#define TENSORREPO_CONTEXTS_H

#include "numbers.h"
#include "rans.h"

enum { MOST_STEPS = 16 };

/* Where groups begin. Groups of neighbours are few: to count how many begin at or before a context
 * takes many contexts at once, to look each one up does not. */
typedef struct {
    const uint8_t *map;
    uint8_t begin[MOST_STEPS];
    size_t steps; /* more than MOST_STEPS: look up */
    bool same;    /* each context is its own group */
} grouping;

static grouping grouping_of(const uint8_t *map)
{
    grouping found = {.map = map, .same = map[0] == 0};
    for (unsigned i = 1; i < CONTEXTS; i++) {
        found.same &= map[i] == i;
        if (map[i] == map[i - 1])
            continue;
        if (found.steps < MOST_STEPS && map[i] == map[i - 1] + 1)
            found.begin[found.steps++] = (uint8_t)i;
        else
            found.steps = MOST_STEPS + 1;
    }
    return found;
}

INLINE void grouped(uint8_t *restrict contexts, size_t count, const grouping *by)
{
    uint8_t groups[BLOCK];
    if (by->same)
        return;
    if (by->steps > MOST_STEPS) {
        for (size_t i = 0; i < count; i++)
            contexts[i] = by->map[contexts[i]];
        return;
    }
    memset(groups, by->map[0], sizeof groups);
    for (size_t step = 0; step < by->steps; step++) {
        uint8_t begin = by->begin[step];
        for (size_t i = 0; i < count; i++)
            groups[i] = (uint8_t)(groups[i] + (contexts[i] >= begin));
    }
    memcpy(contexts, groups, count);
}

INLINE void contexts_body(const uint8_t *base, size_t count, kind kind, const grouping *by,
                          uint8_t *out)
{
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t part = count - at < BLOCK ? count - at : BLOCK;
        contexts_block(base + at * (size_t)kind.size, part, kind, out + at);
        grouped(out + at, part, by);
    }
}

typedef void contexter(const uint8_t *, size_t, kind, const grouping *, uint8_t *);

static void contexts_portable(const uint8_t *base, size_t count, kind kind, const grouping *by,
                              uint8_t *out)
{
    BY_WIDTH(contexts_body(base, count, kind, by, out))
}

static contexter *best_contexts = contexts_portable;

#endif
