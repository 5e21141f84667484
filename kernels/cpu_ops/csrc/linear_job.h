/* Spreads one matrix product over threads. */
#ifndef PACELINE_CPU_LINEAR_JOB_H
#define PACELINE_CPU_LINEAR_JOB_H

#include <stdlib.h>

#include "isa.h"

/* Returns 0 where the scratch for x cannot be had. Blocks are handed out as threads come for them, so that a core that
 * other processes use slows the call by its share alone. */
static int run_linear(const Isa *isa, LinearJob *job, int num_threads) {
    const int64_t stride = job->k * (job->is_bf16 ? 2 : 4);
    job->k_padded = (job->k + MAX_STEP - 1) / MAX_STEP * MAX_STEP;
    job->num_panels = (job->m + MAX_COLS - 1) / MAX_COLS;
    job->panels = aligned_alloc(64, (size_t)((job->m * job->k_padded + 1) * 4 + 63) / 64 * 64);
    if (!job->panels) return 0;
    int64_t block = BLOCK_BYTES / (stride ? stride : 1) / 12 * 12;
    block = block < 12 ? 12 : block > MAX_BLOCK ? MAX_BLOCK : block;
    int64_t next = 0;
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < job->num_panels; panel++) isa->fill_panel(job, panel);
        for (;;) {
            const int64_t n0 = __atomic_fetch_add(&next, block, __ATOMIC_RELAXED);
            if (n0 >= job->n) break;
            isa->linear_block(job, n0, n0 + block < job->n ? n0 + block : job->n);
        }
    }
    free(job->panels);
    return 1;
}

#endif
