/* Spreads a job over threads. Work is handed out as threads come for it, so that a core that other processes use slows a
 * call by its share alone. */
#ifndef PACELINE_CPU_JOBS_H
#define PACELINE_CPU_JOBS_H

#include <stdlib.h>

#include "isa.h"
#include "pool.h"

static inline void *scratch_of(int64_t floats) { return aligned_alloc(64, (size_t)(floats * 4 + 64) / 64 * 64); }

/* What the threads of one product share. */
typedef struct {
    const LinearJob *job;
    void (*fill_panel)(const LinearJob *job, int64_t panel);
    void (*linear_block)(const LinearJob *job, int64_t n0, int64_t n1, int64_t next);
    int64_t block, taken;
} LinearWork;

static void fill_panels(void *shared) {
    LinearWork *work = shared;
    int64_t panel;
    while ((panel = __atomic_fetch_add(&work->taken, 1, __ATOMIC_RELAXED)) < work->job->num_panels)
        work->fill_panel(work->job, panel);
}

static void take_blocks(void *shared) {
    LinearWork *work = shared;
    const LinearJob *job = work->job;
    const int64_t block = work->block;
    int64_t n0 = __atomic_fetch_add(&work->taken, block, __ATOMIC_RELAXED);
    while (n0 < job->n) {
        const int64_t next = __atomic_fetch_add(&work->taken, block, __ATOMIC_RELAXED);
        work->linear_block(job, n0, n0 + block < job->n ? n0 + block : job->n, next);
        n0 = next;
    }
}

/* Returns 0 where the scratch for x cannot be had. */
static int run_linear(const Isa *isa, LinearJob *job, int num_threads) {
    if (job->m == 0) return 1;
    const int is_rounded = job->weight.is_rounded;
    const int64_t stride = job->k * (is_rounded ? 1 : job->is_bf16 ? 2 : 4);
    job->k_padded = (job->k + MAX_STEP - 1) / MAX_STEP * MAX_STEP;
    job->num_panels = (job->m + MAX_COLS - 1) / MAX_COLS;
    job->panels = scratch_of(job->m * (job->k_padded + 1));
    if (!job->panels) return 0;
    job->x_scales = job->panels + job->m * job->k_padded;
    LinearWork work = {.job = job,
                       .fill_panel = is_rounded ? isa->round_panel : isa->fill_panel,
                       .linear_block = is_rounded ? isa->rounded_block : isa->linear_block,
                       .block = block_rows(stride)};
    /* Filling one panel costs about 1 us, as much as calling for help. */
    pool_run(fill_panels, &work, job->num_panels > 2 ? num_threads : 1);
    work.taken = 0;
    pool_run(take_blocks, &work, num_threads);
    free(job->panels);
    return 1;
}

enum { ROWS_AT_ONCE = 4 };

/* What the threads of one row-wise op share. */
typedef struct {
    RowFn fn;
    const void *job;
    int64_t rows, at_once, taken;
} RowWork;

static void take_rows(void *shared) {
    RowWork *work = shared;
    int64_t row;
    while ((row = __atomic_fetch_add(&work->taken, work->at_once, __ATOMIC_RELAXED)) < work->rows)
        for (int64_t i = row; i < row + work->at_once && i < work->rows; i++) work->fn(work->job, i);
}

static void run_rows(RowFn fn, const void *job, int64_t rows, int num_threads) {
    const int64_t share = rows / (num_threads > 1 ? num_threads : 1);
    RowWork work = {.fn = fn, .job = job, .rows = rows, .at_once = share < 1 ? 1 : share < ROWS_AT_ONCE ? share : ROWS_AT_ONCE};
    pool_run(take_rows, &work, num_threads);
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

/* What the threads of one attention share. */
typedef struct {
    const Isa *isa;
    const AttentionJob *job;
    const AttentionTiles *tiles;
    float *scratch; /* scratch_size floats for each thread */
    int64_t scratch_size, num_tasks, taken, threads;
} AttentionWork;

static void take_tasks(void *shared) {
    AttentionWork *work = shared;
    float *mine = work->scratch + __atomic_fetch_add(&work->threads, 1, __ATOMIC_RELAXED) * work->scratch_size;
    int64_t task;
    while ((task = __atomic_fetch_add(&work->taken, 1, __ATOMIC_RELAXED)) < work->num_tasks) {
        const AttentionTile tile = tile_at(work->job, work->tiles, task);
        work->isa->attend(work->job, &tile, mine);
    }
}

/* Returns 0 where the threads' scratch cannot be had. */
static int run_attention(const Isa *isa, const AttentionJob *job, const AttentionTiles *tiles, int num_threads) {
    AttentionWork work = {.isa = isa, .job = job, .tiles = tiles, .num_tasks = tiles->num_tiles * job->kv_heads};
    for (int64_t task = 0; task < work.num_tasks; task += job->kv_heads) {
        const AttentionTile tile = tile_at(job, tiles, task);
        const int64_t needed = tile.num_queries * (2 * job->head_dim + tile.padded);
        work.scratch_size = needed > work.scratch_size ? needed : work.scratch_size;
    }
    work.scratch_size = (work.scratch_size + 31) / 16 * 16;
    work.scratch = scratch_of(work.scratch_size * (num_threads > 1 ? num_threads : 1));
    if (!work.scratch) return 0;
    pool_run(take_tasks, &work, num_threads);
    free(work.scratch);
    return 1;
}

#endif
