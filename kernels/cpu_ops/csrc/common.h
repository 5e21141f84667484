/* What the kernels of every instruction set share: sizes, jobs and bf16. */
#ifndef PACELINE_CPU_COMMON_H
#define PACELINE_CPU_COMMON_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE inline __attribute__((always_inline))

enum {
    MAX_HEAD_DIM = 512,
    MAX_QUERIES = 256,         /* of an attention tile */
    PACKED_ROWS = 2,   /* weight rows that are packed together, and of a tile */
    AHEAD_BYTES = 1152, /* how far tiles prefetch weights */
    MAX_COLS = 6,      /* rows of x in a panel: 2 x 6 accumulators, 2 weights, 1 x and a mask fill 16 registers */
    MAX_STEP = 32,     /* of any instruction set; K is padded to it in the scratch */
    MAX_BLOCK = 96,    /* weight rows whose accumulators a thread keeps at once */
    BLOCK_BYTES = 64 * 1024, /* weights of a block, to stay in a 512 KB second-level cache from panel to panel */
    CHUNK = 768,       /* columns of the weight that are walked at once: 6 of x take 18 KB of a 32 KB first-level cache */
};

/* A packed weight[n, k]: linear.inc, or rounded.inc where it is rounded. */
typedef struct {
    const char *data;
    int is_rounded;
} Weight;

/* out[m, n] = x[m, k] @ weight[n, k].T + bias[n]; x, weight and bias are bf16 or all fp32, but that a weight for bf16 may be
 * rounded, where k is a multiple of MAX_STEP. */
typedef struct {
    const void *x, *bias; /* bias may be NULL */
    Weight weight;
    void *out;
    int64_t m, n, k;
    int is_bf16, out_is_bf16;
    float *panels;           /* x as the products read it: num_panels panels, together m rows of k_padded values */
    float *x_scales;         /* [m], for a rounded weight */
    int64_t k_padded, num_panels;
} LinearJob;

/* Weight rows of a block, of that many bytes each. */
static inline int64_t block_rows(int64_t stride) {
    const int64_t rows = BLOCK_BYTES / (stride ? stride : 1) / 12 * 12;
    return rows < 12 ? 12 : rows > MAX_BLOCK ? MAX_BLOCK : rows;
}

/* The first row of a panel; panels differ by at most one row. */
static inline int64_t panel_begin(const LinearJob *job, int64_t panel) { return panel * job->m / job->num_panels; }

/* out = rms_norm(x) * weight; with a residual, residual += x first and out = rms_norm(residual) * weight. Without an out
 * the residual is all. */
typedef struct {
    const void *x, *weight;
    void *residual, *out;
    int64_t width;
    int is_bf16;
    float eps;
} NormJob;

/* out[rows, width] = silu(gate) * up of gate_up[rows, 2 * width]. */
typedef struct {
    const void *gate_up;
    void *out;
    int64_t width;
    int is_bf16;
} SiluJob;

/* Rotates heads by halves in place. Strides are elements from row to row; a row's heads lie side by side. */
typedef struct {
    void *q, *k;
    const float *cos_sin; /* [rows, head_dim]: cosines, then sines */
    int64_t q_stride, k_stride, q_heads, k_heads, head_dim;
    int is_bf16;
} RopeJob;

/* values[row, k], indices[row, k] = the k largest of scores[row, width], descending, ties to the lowest index. */
typedef struct {
    const float *scores;
    float *values;
    int64_t *indices;
    int64_t width, k;
    int is_log_prob; /* values less log(sum(exp(scores))) of the row */
} TopKJob;

typedef struct {
    const void *q, *k_cache, *v_cache;
    void *out;
    const uint64_t *ancestors; /* [rows] */
    const int32_t *page_ids;
    int64_t q_stride, heads, kv_heads, head_dim, page_size;
    float scale;
    int is_bf16;
} AttentionJob;

/* Some rows of one request, for one KV head: num_queries = its rows times the query heads of a KV head. */
typedef struct {
    int64_t row, num_queries, kv_head;
    int64_t first_page;         /* of the request, in page_ids */
    int64_t prefix, end, padded; /* positions: seen by all; of the tile's last row; a row of scores */
    int64_t first_seen;         /* causal: how many positions the tile's first row sees */
    int is_causal;
} AttentionTile;

/* Where position p of the tile's request and KV head begins in a cache, in elements. */
static inline int64_t kv_offset(const AttentionJob *job, const AttentionTile *tile, int64_t p) {
    const int64_t page = job->page_ids[tile->first_page + p / job->page_size];
    return ((page * job->page_size + p % job->page_size) * job->kv_heads + tile->kv_head) * job->head_dim;
}

static inline float bf16_to_f32(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest even; a NaN stays a NaN. */
static inline uint16_t f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float load_element(const void *base, int64_t i, int is_bf16) {
    return is_bf16 ? bf16_to_f32(((const uint16_t *)base)[i]) : ((const float *)base)[i];
}

static inline void store_elements(void *base, int64_t i, const float *values, int64_t count, int is_bf16) {
    if (is_bf16)
        for (int64_t j = 0; j < count; j++) ((uint16_t *)base)[i + j] = f32_to_bf16(values[j]);
    else
        memcpy((float *)base + i, values, (size_t)count * 4);
}

#endif
