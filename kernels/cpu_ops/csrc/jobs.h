/* Spreads a job over threads. Work is handed out as threads come for it, so that a core that other processes use slows a
 * call by its share alone. */
#ifndef PACELINE_CPU_JOBS_H
#define PACELINE_CPU_JOBS_H

#include <stdlib.h>

#include "isa.h"

static inline void *scratch_of(int64_t floats) { return aligned_alloc(64, (size_t)(floats * 4 + 64) / 64 * 64); }

/* Returns 0 where the scratch for x cannot be had. */
static int run_linear(const Isa *isa, LinearJob *job, int num_threads) {
    if (job->m == 0) return 1;
    const int64_t stride = job->k * (job->is_bf16 ? 2 : 4);
    job->k_padded = (job->k + MAX_STEP - 1) / MAX_STEP * MAX_STEP;
    job->num_panels = (job->m + MAX_COLS - 1) / MAX_COLS;
    job->panels = scratch_of(job->m * job->k_padded);
    if (!job->panels) return 0;
    int64_t block = BLOCK_BYTES / (stride ? stride : 1) / 12 * 12;
    block = block < 12 ? 12 : block > MAX_BLOCK ? MAX_BLOCK : block;
    /* Filling one panel costs about 1 us, as much as a barrier between threads. */
    const int is_large = job->num_panels > 2;
    for (int64_t panel = 0; !is_large && panel < job->num_panels; panel++) isa->fill_panel(job, panel);
    int64_t taken = 0;
#pragma omp parallel num_threads(num_threads)
    {
        if (is_large) {
#pragma omp for schedule(static)
            for (int64_t panel = 0; panel < job->num_panels; panel++) isa->fill_panel(job, panel);
        }
        int64_t n0 = __atomic_fetch_add(&taken, block, __ATOMIC_RELAXED);
        while (n0 < job->n) {
            const int64_t next = __atomic_fetch_add(&taken, block, __ATOMIC_RELAXED);
            isa->linear_block(job, n0, n0 + block < job->n ? n0 + block : job->n, next);
            n0 = next;
        }
    }
    free(job->panels);
    return 1;
}

static void run_rows(RowFn fn, const void *job, int64_t rows, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 4) if (num_threads > 1)
    for (int64_t row = 0; row < rows; row++) fn(job, row);
}

/* How the rows of a step are cut into tiles: num_tiles rows of the table, each for every KV head. */
typedef struct {
    const int64_t *table; /* [num_tiles, TILE_FIELDS]: row, rows, first_page, prefix, end, first_seen, is_causal */
    int64_t num_tiles;
} AttentionTiles;

enum { TILE_FIELDS = 7 };

static AttentionTile tile_at(const AttentionJob *job, const AttentionTiles *tiles, int64_t task) {
    const int64_t *fields = tiles->table + task / job->kv_heads * TILE_FIELDS;
    return (AttentionTile){.row = fields[0],
                           .num_queries = fields[1] * (job->heads / job->kv_heads),
                           .kv_head = task % job->kv_heads,
                           .first_page = fields[2],
                           .prefix = fields[3],
                           .end = fields[4],
                           .padded = (fields[4] + 3 + MAX_STEP - 1) / MAX_STEP * MAX_STEP,
                           .first_seen = fields[5],
                           .is_causal = fields[6] != 0};
}

/* Returns 0 where the threads' scratch cannot be had. */
static int run_attention(const Isa *isa, const AttentionJob *job, const AttentionTiles *tiles, int num_threads) {
    const int64_t num_tasks = tiles->num_tiles * job->kv_heads;
    int64_t floats = 0;
    for (int64_t task = 0; task < num_tasks; task += job->kv_heads) {
        const AttentionTile tile = tile_at(job, tiles, task);
        const int64_t needed = tile.num_queries * (2 * job->head_dim + tile.padded);
        floats = needed > floats ? needed : floats;
    }
    floats = (floats + 31) / 16 * 16;
    float *scratch = scratch_of(floats * num_threads);
    if (!scratch) return 0;
    int64_t next = 0, next_scratch = 0;
#pragma omp parallel num_threads(num_threads)
    {
        float *mine = scratch + __atomic_fetch_add(&next_scratch, 1, __ATOMIC_RELAXED) * floats;
        for (;;) {
            const int64_t task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (task >= num_tasks) break;
            const AttentionTile tile = tile_at(job, tiles, task);
            isa->attend(job, &tile, mine);
        }
    }
    free(scratch);
    return 1;
}

#endif
