/* A draft head, one call for its layer and one for the ranking of its guesses. */
#ifndef PACELINE_CPU_HEAD_H
#define PACELINE_CPU_HEAD_H

#include "block.h"

/* out[rows, hidden] = the layer over rows that pair a token with a feature, or with what the call before gave. */
typedef struct {
    const int64_t *tokens, *positions; /* [rows], all within the tables */
    const char *embedding;             /* [tokens, hidden] */
    const float *cos_sin;              /* [positions, head_dim] */
    const char *features;              /* [rows, hidden] */
    const void *token_norm, *feature_norm, *post_norm;
    const void *norm; /* of the result; NULL where it stays as it is */
    char *out;
    int norms_residual; /* whether the residual is the normed feature */
    AttentionBlock attention; /* all but x, cos_sin and out */
    Weight gate_up, down;
    int64_t inner;
    float eps;
} HeadBlock;

/* values, ids[rows, k] = log-probabilities and target ids of the k likeliest draft tokens, descending. */
typedef struct {
    const void *hidden; /* [rows, width] */
    const void *norm;   /* NULL where hidden is normed */
    Weight lm_head;     /* [vocabulary, width] */
    const int64_t *target_ids;
    float *values;
    int64_t *ids;
    int64_t rows, width, vocabulary, k;
    int is_bf16, num_threads;
    float eps;
} HeadRanking;

/* x[rows, 2 * hidden] = normed embeddings beside normed features; out = the residual. */
static void fill_head_rows(const Isa *isa, const HeadBlock *b, char *x, float *cos_sin) {
    const AttentionBlock *a = &b->attention;
    const int64_t size = a->hidden * (a->is_bf16 ? 2 : 4);
    for (int64_t row = 0; row < a->rows; row++) {
        char *token = x + row * 2 * size, *feature = token + size;
        const NormJob tokens = {.x = b->embedding + b->tokens[row] * size, .weight = b->token_norm, .out = token,
                                .width = a->hidden, .is_bf16 = a->is_bf16, .eps = b->eps};
        const NormJob features = {.x = b->features + row * size, .weight = b->feature_norm, .out = feature,
                                  .width = a->hidden, .is_bf16 = a->is_bf16, .eps = b->eps};
        isa->norm_row(&tokens, 0);
        isa->norm_row(&features, 0);
        memcpy(b->out + row * size, b->norms_residual ? feature : features.x, (size_t)size);
        memcpy(cos_sin + row * a->head_dim, b->cos_sin + b->positions[row] * a->head_dim, (size_t)a->head_dim * 4);
    }
}

/* Returns 0 where scratch cannot be had. */
static int run_head_block(const Isa *isa, HeadBlock *b) {
    AttentionBlock *a = &b->attention;
    const int64_t values = a->rows * a->hidden, bytes = a->is_bf16 ? 2 : 4;
    float *cos_sin = scratch_of(a->rows * (a->head_dim + 4 * a->hidden));
    if (!cos_sin) return 0;
    char *x = (char *)(cos_sin + a->rows * a->head_dim), *normed = x + 2 * values * bytes, *added = normed + values * bytes;
    fill_head_rows(isa, b, x, cos_sin);
    a->x = x;
    a->cos_sin = cos_sin;
    a->out = added;
    NormJob norm = {.x = added, .weight = b->post_norm, .residual = b->out, .out = normed, .width = a->hidden,
                    .is_bf16 = a->is_bf16, .eps = b->eps};
    const MlpBlock mlp = {.x = normed, .gate_up = b->gate_up, .down = b->down, .out = added, .rows = a->rows,
                          .hidden = a->hidden, .inner = b->inner, .is_bf16 = a->is_bf16, .num_threads = a->num_threads};
    int done = run_attention_block(isa, a);
    if (done) {
        for_rows(isa->norm_row, &norm, a->rows, a->hidden, a->num_threads);
        done = run_mlp_block(isa, &mlp);
    }
    if (done) {
        norm.weight = b->norm;
        norm.out = b->norm ? normed : NULL;
        for_rows(isa->norm_row, &norm, a->rows, a->hidden, a->num_threads);
        if (b->norm) memcpy(b->out, normed, (size_t)(values * bytes));
    }
    free(cos_sin);
    return done;
}

/* Returns 0 where scratch cannot be had. */
static int run_head_ranking(const Isa *isa, const HeadRanking *r) {
    float *logits = scratch_of(r->rows * (r->vocabulary + r->width));
    if (!logits) return 0;
    void *normed = logits + r->rows * r->vocabulary;
    if (r->norm) {
        const NormJob norm = {.x = r->hidden, .weight = r->norm, .out = normed, .width = r->width, .is_bf16 = r->is_bf16,
                              .eps = r->eps};
        for_rows(isa->norm_row, &norm, r->rows, r->width, r->num_threads);
    }
    LinearJob linear = {.x = r->norm ? normed : r->hidden, .weight = r->lm_head, .out = logits, .m = r->rows,
                        .n = r->vocabulary, .k = r->width, .is_bf16 = r->is_bf16};
    const int done = run_linear(isa, &linear, r->num_threads);
    if (done) {
        const TopKJob best = {.scores = logits, .values = r->values, .indices = r->ids, .width = r->vocabulary, .k = r->k,
                              .is_log_prob = 1};
        for_rows(isa->top_k_row, &best, r->rows, r->vocabulary, r->num_threads);
        for (int64_t i = 0; i < r->rows * r->k; i++) r->ids[i] = r->target_ids[r->ids[i]];
    }
    free(logits);
    return done;
}

#endif
