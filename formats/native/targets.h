/* Instruction sets that loops are compiled for, beside the one that every machine runs.
 *
 * A kernel's module chooses when it is loaded: GCC and clang compile a function for its target
 * whatever the rest is compiled for. INLINE functions become part of each that calls them, and so
 * are compiled for its target.
 */
#ifndef TENSORREPO_TARGETS_H
#define TENSORREPO_TARGETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if UINTPTR_MAX != UINT64_MAX || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian machines of 64 bits; elsewhere the twin in numpy is used"
#endif

#define INLINE __attribute__((always_inline)) static inline

#if defined(__x86_64__)

#include <immintrin.h>

#define WIDE __attribute__((target("avx2,bmi2,popcnt")))
#define WIDEST __attribute__((target("avx512f,avx2,bmi2,popcnt")))
/* Of 2019 and later: bytes of 512 bits in any order. GCC makes vectors of half of that of loops unless
 * it is asked. */
#if defined(__clang__)
#define WHOLE ""
#else
#define WHOLE ",prefer-vector-width=512"
#endif
#define NEWEST                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi2,"   \
                          "popcnt" WHOLE)))

__attribute__((unused)) static bool is_wide(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
}

__attribute__((unused)) static bool is_widest(void)
{
    return is_wide() && __builtin_cpu_supports("avx512f");
}

__attribute__((unused)) static bool is_newest(void)
{
    return is_widest() && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}

#else

#define WIDE
#define NEWEST

__attribute__((unused)) static bool is_wide(void)
{
    return false;
}

__attribute__((unused)) static bool is_newest(void)
{
    return false;
}

#endif

/* A function for every machine, and the same for those that are wide, and for the newest. `best_NAME`
 * is the one to call; whoever loads the module sets it, see CHOOSE. */
#define EVERY_MACHINE(RESULT, NAME, PARAMETERS, ...)                                               \
    static RESULT NAME##_portable PARAMETERS                                                       \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }                                                                                              \
    __attribute__((unused)) WIDE static RESULT NAME##_wide PARAMETERS                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }                                                                                              \
    __attribute__((unused)) NEWEST static RESULT NAME##_newest PARAMETERS                           \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }                                                                                              \
    static RESULT(*best_##NAME) PARAMETERS = NAME##_portable

/* Take the one for this machine. */
#define CHOOSE(NAME)                                                                               \
    best_##NAME = is_newest() ? NAME##_newest : is_wide() ? NAME##_wide : NAME##_portable

#endif
