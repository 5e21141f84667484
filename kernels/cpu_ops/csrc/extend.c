/* Committed rows: the tables of one causal forward of new rows of sessions. kernels/round_tables.py says what it does. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>

#include "sessions.h"
#include "tables.h"

/* Of ExtendLayout. */
enum { EXTEND_BUCKET, EXTEND_COLUMNS, EXTEND_COUNTS, EXTEND_Q, EXTEND_PREFIX, EXTEND_LOCAL, EXTEND_PAGE_INDPTR,
       EXTEND_UNITS, EXTEND_MAX_UNITS, EXTEND_FIELDS };

/* extend_tables(stage, layout, rule, page_ids, seats, base_len, num_rows, tokens, page_size, page_base, pages_at, first, last,
 *        scratch, keeps_hidden, spare_slot, spare_place) */
PyObject *py_extend(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[9], partials;
    Stage stage;
    Sessions s;
    if (!has_count(given, 17) || !integers(args + 8, v, 9) || !stage_of(&buffers, args, EXTEND_FIELDS, &stage)) goto done;
    const int64_t first = v[3], last = v[4], scratch = v[5], keeps_hidden = v[6], spare_slot = v[7], spare_place = v[8];
    const Rule *rule = rule_of(&buffers, args[2]);
    if (!rule || !sessions_of(&buffers, args + 3, &stage, v[0], v[1], v[2], &s)) goto done;
    const int64_t bucket = stage.layout[EXTEND_BUCKET], most = stage.layout[EXTEND_MAX_UNITS];
    if (scratch < 0 || scratch > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%lld scratch tokens are none", (long long)scratch);
        goto done;
    }
    if (first < 0 || last > s.rows || first >= last || last - first > bucket) {
        PyErr_Format(PyExc_ValueError, "rows %lld to %lld of %lld do not fit a bucket of %lld", (long long)first,
                     (long long)last, (long long)s.rows, (long long)bucket);
        goto done;
    }
    int64_t *tokens = section(&stage, EXTEND_COLUMNS, 5 * bucket * 8);
    int32_t *counts = section(&stage, EXTEND_COUNTS, 3 * 4), *q_indptr = section(&stage, EXTEND_Q, (bucket + 1) * 4);
    int32_t *prefix_len = section(&stage, EXTEND_PREFIX, bucket * 4);
    int32_t *local_len = section(&stage, EXTEND_LOCAL, bucket * 4);
    int32_t *page_indptr = section(&stage, EXTEND_PAGE_INDPTR, (bucket + 1) * 4);
    int32_t *table = section(&stage, EXTEND_UNITS, most * 16);
    if (!tokens || !counts || !q_indptr || !prefix_len || !local_len || !page_indptr || !table) goto done;
    int64_t *positions = tokens + bucket, *slots = positions + bucket, *last_rows = slots + bucket;
    int64_t *places = last_rows + bucket;
    int64_t start = 0, row = 0, piece = 0;
    q_indptr[0] = 0;
    page_indptr[0] = (int32_t)s.pages.used;
    for (int64_t i = 0; i < s.count && start < last; start += s.num_rows[i++]) {
        const int64_t stop = start + s.num_rows[i], begin = start > first ? start : first, end = stop < last ? stop : last;
        if (begin >= end) continue;
        const int64_t base = s.base_len[i] + begin - start, count = end - begin, num_tokens = base + count + scratch;
        const int32_t *pages = pages_of(&s.pages, s.seats[i], num_tokens);
        if (!pages || !list_pages(&s.pages, pages, num_tokens)) goto done;
        for (int64_t j = 0; j < count; j++, row++) {
            tokens[row] = s.tokens[begin + j];
            positions[row] = base + j;
            slots[row] = slot_of(&s.pages, pages, base + j);
        }
        last_rows[piece] = row - 1;
        places[piece] = keeps_hidden && end == stop ? i : spare_place;
        prefix_len[piece] = (int32_t)base;
        local_len[piece] = (int32_t)count;
        piece++;
        q_indptr[piece] = (int32_t)row;
        page_indptr[piece] = (int32_t)s.pages.used;
    }
    for (int64_t i = row; i < bucket; i++) {
        tokens[i] = positions[i] = 0;
        slots[i] = spare_slot;
    }
    for (int64_t i = piece; i < bucket; i++) {
        last_rows[i] = 0;
        places[i] = spare_place;
    }
    const Requests r = {.q_indptr = q_indptr, .prefix_len = prefix_len, .local_len = local_len, .count = piece,
                        .all_causal = 1};
    const int64_t variant = row <= (int64_t)rule->few ? (int64_t)rule->few : choose_rows(rule, &r);
    const int64_t units = make_units(rule, &r, variant, table, most, &partials);
    if (units < 0) goto done;
    counts[0] = (int32_t)units;
    counts[1] = (int32_t)row;
    counts[2] = (int32_t)piece;
    result = Py_BuildValue("(LL)", (long long)variant, (long long)(v[1] + 4 * s.pages.used));
done:
    release(&buffers);
    return result;
}
