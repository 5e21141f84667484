/* Which program of attention works on what: tiles of query rows, and splits of their KV. */

#pragma once

#include "buffers.h"

static inline int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

/* How the KV of a batch is split: UnitRule's numbers. */
typedef struct {
    double few, many, target_units, wide_gain, min_split_len, invariant_split_len;
} Rule;

/* Requests of one batch. local_len or is_causal NULL: it is the same for all. */
typedef struct {
    const int32_t *q_indptr, *prefix_len, *local_len;
    const uint8_t *is_causal;
    int64_t count, all_local;
    int all_causal, invariant;
} Requests;

static inline int64_t q_len_of(const Requests *r, int64_t i) { return r->q_indptr[i + 1] - r->q_indptr[i]; }

static inline int64_t kv_len_of(const Requests *r, int64_t i) {
    return r->prefix_len[i] + (r->local_len ? r->local_len[i] : r->all_local);
}

static inline int64_t choose_rows(const Rule *rule, const Requests *r) {
    const int64_t few = (int64_t)rule->few, many = (int64_t)rule->many;
    if (r->invariant) return many;
    int64_t longest = 0, reads_few = 0, reads_many = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const int64_t q_len = q_len_of(r, i), kv_len = kv_len_of(r, i);
        if (q_len > longest) longest = q_len;
        reads_few += ceil_div(q_len, few) * kv_len;
        reads_many += ceil_div(q_len, many) * kv_len;
    }
    if (longest <= few) return few;
    return (double)reads_few > rule->wide_gain * (double)reads_many ? many : few;
}

/* The KV positions that a tile of rows from first on sees. */
static inline int64_t stop_of(const Requests *r, int64_t i, int64_t first, int64_t tile_rows) {
    const int64_t unseen = q_len_of(r, i) - first - tile_rows;
    const int causal = r->is_causal ? r->is_causal[i] : r->all_causal;
    return kv_len_of(r, i) - (causal && unseen > 0 ? unseen : 0);
}

/* Writes [units, 4]; returns their number, -1 with an exception set where there is no room for them, or a tile has no
 * rows. */
static inline int64_t make_units(const Rule *rule, const Requests *r, int64_t tile_rows, int32_t *table, int64_t most,
                                 int64_t *num_partials) {
    if (tile_rows < 1) {
        PyErr_Format(PyExc_ValueError, "a tile has one row at least, not %lld", (long long)tile_rows);
        return -1;
    }
    int64_t units = 0, partials = 0, total = 0;
    for (int64_t i = 0; i < r->count; i++)
        for (int64_t first = 0; first < q_len_of(r, i); first += tile_rows) total += stop_of(r, i, first, tile_rows);
    int64_t split_len = ceil_div(total, (int64_t)rule->target_units);
    if (split_len < (int64_t)rule->min_split_len) split_len = (int64_t)rule->min_split_len;
    for (int64_t i = 0; i < r->count; i++) {
        const int64_t q_len = q_len_of(r, i);
        for (int64_t first = 0; first < q_len; first += tile_rows) {
            const int64_t stop = stop_of(r, i, first, tile_rows);
            int64_t splits = 1;
            if (!r->invariant) splits = ceil_div(stop, split_len);
            else if (q_len <= tile_rows) splits = ceil_div(stop, (int64_t)rule->invariant_split_len);
            if (splits < 1) splits = 1;
            if (units + splits > most) {
                PyErr_Format(PyExc_ValueError, "there is room for %lld units of attention, and the batch has more",
                             (long long)most);
                return -1;
            }
            for (int64_t split = 0; split < splits; split++, units++) {
                int32_t *unit = table + 4 * units;
                unit[0] = (int32_t)i;
                unit[1] = (int32_t)first;
                unit[2] = (int32_t)(split + (splits << 16));
                unit[3] = splits > 1 ? (int32_t)partials : 0;
            }
            if (splits > 1) partials += splits;
        }
    }
    *num_partials = partials;
    return units;
}

static inline const Rule *rule_of(Buffers *buffers, PyObject *object) {
    const Py_buffer *view = array(buffers, object, 8, 1, 0);
    if (!view) return NULL;
    const Rule *rule = view->buf;
    if (view->len == (Py_ssize_t)sizeof(Rule) && rule->few >= 1 && rule->many >= 1 && rule->target_units >= 1 &&
        rule->min_split_len >= 1 && rule->invariant_split_len >= 1)
        return rule;
    PyErr_SetString(PyExc_ValueError, "that is no rule of units");
    return NULL;
}

/* q_indptr, prefix_len, local_len, is_causal of a batch. */
static inline int requests_of(Buffers *buffers, PyObject *const *args, int invariant, Requests *out) {
    const Py_buffer *indptr = array(buffers, args[0], 4, 1, 0);
    const Py_buffer *prefix = array(buffers, args[1], 4, 1, 0);
    const Py_buffer *local = array(buffers, args[2], 4, 1, 0);
    const Py_buffer *causal = array(buffers, args[3], 1, 1, 0);
    if (!causal) return 0;
    const Py_ssize_t count = prefix->shape[0];
    if (indptr->shape[0] != count + 1 || local->shape[0] != count || causal->shape[0] != count) {
        PyErr_SetString(PyExc_ValueError, "the columns of a batch differ in length");
        return 0;
    }
    *out = (Requests){.q_indptr = indptr->buf, .prefix_len = prefix->buf, .local_len = local->buf,
                      .is_causal = causal->buf, .count = count, .invariant = invariant};
    return 1;
}
