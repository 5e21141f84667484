/* The two halves of a decoder layer, each in one call: between their products no helper has time to fall asleep. */
#ifndef PACELINE_CPU_BLOCK_H
#define PACELINE_CPU_BLOCK_H

#include "jobs.h"

/* out[rows, hidden] = attention of x[rows, input]: projections, norms of q and k, rotation, KV append, attention, output.
 * A pointer that may be NULL says that the layer has no such weight. */
typedef struct {
    const void *x, *qkv_bias, *q_norm, *k_norm, *output_bias;
    Weight qkv, output;
    const float *cos_sin;  /* [rows, head_dim] */
    const int64_t *slots;  /* [rows], all within the caches */
    void *k_cache, *v_cache, *out;
    const uint64_t *ancestors;
    const int32_t *page_ids;
    AttentionTiles tiles;
    int64_t rows, input, hidden, heads, kv_heads, head_dim, page_size;
    int is_bf16, num_threads;
    float eps, scale;
} AttentionBlock;

/* out[rows, hidden] = down(silu(gate) * up) of x[rows, hidden]. */
typedef struct {
    const void *x;
    Weight gate_up, down;
    void *out;
    int64_t rows, hidden, inner;
    int is_bf16, num_threads;
} MlpBlock;

/* Below this many elements a row-wise op is done before a second thread has woken. */
enum { PARALLEL_ELEMENTS = 16384 };

static void for_rows(RowFn fn, const void *job, int64_t rows, int64_t width, int num_threads) {
    run_rows(fn, job, rows, rows * width < PARALLEL_ELEMENTS ? 1 : num_threads);
}

static int block_linear(const Isa *isa, const void *x, Weight weight, const void *bias, void *out, int64_t m, int64_t n,
                        int64_t k, int is_bf16, int num_threads) {
    LinearJob job = {.x = x, .weight = weight, .bias = bias, .out = out, .m = m, .n = n, .k = k, .is_bf16 = is_bf16,
                     .out_is_bf16 = is_bf16};
    return run_linear(isa, &job, num_threads);
}

/* The norm of each head, in place: `count` of them in each row, the rows stride bytes apart. */
static void norm_heads(const Isa *isa, const AttentionBlock *block, char *first, int64_t stride, int64_t count,
                       const void *weight) {
    for (int64_t row = 0; row < block->rows; row++) {
        char *heads = first + row * stride;
        const NormJob job = {.x = heads, .weight = weight, .out = heads, .width = block->head_dim,
                             .is_bf16 = block->is_bf16, .eps = block->eps};
        for (int64_t head = 0; head < count; head++) isa->norm_row(&job, head);
    }
}

/* Returns 0 where scratch cannot be had. */
static int run_attention_block(const Isa *isa, const AttentionBlock *b) {
    const int64_t bytes = b->is_bf16 ? 2 : 4, q_width = b->heads * b->head_dim, kv_width = b->kv_heads * b->head_dim;
    const int64_t width = q_width + 2 * kv_width, stride = width * bytes;
    char *qkv = (char *)scratch_of(b->rows * (width + q_width));
    if (!qkv) return 0;
    char *k = qkv + q_width * bytes, *v = k + kv_width * bytes, *mixed = qkv + b->rows * stride;
    int done = block_linear(isa, b->x, b->qkv, b->qkv_bias, qkv, b->rows, width, b->input, b->is_bf16, b->num_threads);
    if (done) {
        if (b->q_norm) norm_heads(isa, b, qkv, stride, b->heads, b->q_norm);
        if (b->k_norm) norm_heads(isa, b, k, stride, b->kv_heads, b->k_norm);
        const RopeJob rope = {.q = qkv, .k = k, .cos_sin = b->cos_sin, .q_stride = width, .k_stride = width,
                              .q_heads = b->heads, .k_heads = b->kv_heads, .head_dim = b->head_dim, .is_bf16 = b->is_bf16};
        for_rows(isa->rope_row, &rope, b->rows, q_width + kv_width, b->num_threads);
        for (int64_t row = 0; row < b->rows; row++) {
            const int64_t to = b->slots[row] * kv_width * bytes;
            memcpy((char *)b->k_cache + to, k + row * stride, (size_t)(kv_width * bytes));
            memcpy((char *)b->v_cache + to, v + row * stride, (size_t)(kv_width * bytes));
        }
        const AttentionJob attention = {.q = qkv, .k_cache = b->k_cache, .v_cache = b->v_cache, .out = mixed,
                                        .ancestors = b->ancestors, .page_ids = b->page_ids, .q_stride = width,
                                        .heads = b->heads, .kv_heads = b->kv_heads, .head_dim = b->head_dim,
                                        .page_size = b->page_size, .is_bf16 = b->is_bf16, .scale = b->scale};
        done = run_attention(isa, &attention, &b->tiles, b->num_threads) &&
               block_linear(isa, mixed, b->output, b->output_bias, b->out, b->rows, b->hidden, q_width, b->is_bf16,
                            b->num_threads);
    }
    free(qkv);
    return done;
}

/* Returns 0 where scratch cannot be had. */
static int run_mlp_block(const Isa *isa, const MlpBlock *b) {
    char *gate_up = (char *)scratch_of(b->rows * 3 * b->inner);
    if (!gate_up) return 0;
    char *inner = gate_up + b->rows * 2 * b->inner * (b->is_bf16 ? 2 : 4);
    int done = block_linear(isa, b->x, b->gate_up, NULL, gate_up, b->rows, 2 * b->inner, b->hidden, b->is_bf16, b->num_threads);
    if (done) {
        const SiluJob silu = {.gate_up = gate_up, .out = inner, .width = b->inner, .is_bf16 = b->is_bf16};
        for_rows(isa->silu_mul_row, &silu, b->rows, b->inner, b->num_threads);
        done = block_linear(isa, inner, b->down, NULL, b->out, b->rows, b->hidden, b->inner, b->is_bf16, b->num_threads);
    }
    free(gate_up);
    return done;
}

#endif
