/* Instantiates the kernels for each instruction set and tells which of them this CPU runs, best first. */
#ifndef PACELINE_CPU_ISA_H
#define PACELINE_CPU_ISA_H

#include "common.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAVE_X86_TARGETS 1
#include <immintrin.h>
#endif

typedef void (*RowFn)(const void *job, int64_t row);

typedef struct {
    const char *name;
    void (*pack)(const char *weight, char *out, int64_t n, int64_t k, int64_t bytes);
    void (*fill_panel)(const LinearJob *job, int64_t panel);
    void (*linear_block)(const LinearJob *job, int64_t n0, int64_t n1, int64_t next);
    void (*pack_rounded)(const char *weight, char *out, int64_t n, int64_t k);
    void (*round_panel)(const LinearJob *job, int64_t panel);
    void (*rounded_block)(const LinearJob *job, int64_t n0, int64_t n1, int64_t next);
    RowFn norm_row; /* of a NormJob */
    RowFn silu_mul_row; /* of a SiluJob */
    RowFn rope_row; /* of a RopeJob */
    RowFn top_k_row; /* of a TopKJob */
    void (*attend)(const AttentionJob *job, const AttentionTile *tile, float *scratch);
} Isa;

#ifdef HAVE_X86_TARGETS
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")
#define LANES 16
#define NAME(x) x##_avx512
#define ISA_NAME "avx512"
#include "kernels.inc"
#undef LANES
#undef NAME
#undef ISA_NAME
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LANES 8
#define NAME(x) x##_avx2
#define ISA_NAME "avx2"
#include "kernels.inc"
#undef LANES
#undef NAME
#undef ISA_NAME
#pragma GCC pop_options
#endif

#define LANES 4
#define NAME(x) x##_generic
#define ISA_NAME "generic"
#include "kernels.inc"
#undef LANES
#undef NAME
#undef ISA_NAME

enum { NUM_ISAS = 3 };

/* Fills the table, best first; returns how many there are. The last one runs anywhere. */
static int supported_isas(const Isa **table) {
    int count = 0;
#ifdef HAVE_X86_TARGETS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        table[count++] = &isa_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) table[count++] = &isa_avx2;
#endif
    table[count++] = &isa_generic;
    return count;
}

#endif
