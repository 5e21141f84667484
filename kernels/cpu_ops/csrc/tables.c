/* The integers that a step's kernels read, written where they wait for their copy to the device.
 *
 * kernels/round_tables.py is Python's face and says what each function does. Arrays come as buffers; their item sizes
 * and dimensions are checked, and so is every place that is written: the caller's sizes are not trusted. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "tables.h"
#include "units.h"

/* choose_rows(rule, q_indptr, prefix_len, local_len, is_causal, invariant) */
static PyObject *py_choose_rows(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t invariant;
    Requests requests;
    if (!has_count(given, 6) || !integers(args + 5, &invariant, 1)) return NULL;
    const Rule *rule = rule_of(&buffers, args[0]);
    if (rule && requests_of(&buffers, args + 1, invariant != 0, &requests))
        result = PyLong_FromLongLong(choose_rows(rule, &requests));
    release(&buffers);
    return result;
}

/* make_units(rule, q_indptr, prefix_len, local_len, is_causal, invariant, tile_rows, out) */
static PyObject *py_make_units(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[2];
    Requests requests;
    if (!has_count(given, 8) || !integers(args + 5, v, 2)) return NULL;
    const Rule *rule = rule_of(&buffers, args[0]);
    if (rule && requests_of(&buffers, args + 1, v[0] != 0, &requests)) {
        const Py_buffer *out = array(&buffers, args[7], 4, 1, PyBUF_WRITABLE);
        int64_t partials;
        const int64_t units = !out ? -1 : make_units(rule, &requests, v[1], out->buf, out->shape[0] / 4, &partials);
        if (units >= 0) result = Py_BuildValue("(LL)", (long long)units, (long long)partials);
    }
    release(&buffers);
    return result;
}

/* A stage and its layout: the byte at which each section begins, and how many there are of what. No number is negative or
 * larger than the stage. */
typedef struct {
    char *at;
    int64_t size;
    const int64_t *layout;
} Stage;

static int stage_of(Buffers *buffers, PyObject *const *args, Py_ssize_t fields, Stage *out) {
    const Py_buffer *stage = array(buffers, args[0], 1, 1, PyBUF_WRITABLE);
    const Py_buffer *layout = stage ? array(buffers, args[1], 8, 1, 0) : NULL;
    if (!layout) return 0;
    if (layout->shape[0] != fields) {
        PyErr_Format(PyExc_ValueError, "a layout of %zd numbers is expected, not of %zd", fields, layout->shape[0]);
        return 0;
    }
    *out = (Stage){.at = stage->buf, .size = stage->len, .layout = layout->buf};
    for (Py_ssize_t i = 0; i < fields; i++)
        if (out->layout[i] < 0 || out->layout[i] > out->size) {
            PyErr_Format(PyExc_ValueError, "number %zd of a layout, %lld, is none of a stage of %lld bytes", i,
                         (long long)out->layout[i], (long long)out->size);
            return 0;
        }
    return 1;
}

/* Section ``field`` of the layout, which is to hold so many bytes; NULL with an exception set where it cannot. */
static void *section(const Stage *stage, int field, int64_t num_bytes) {
    const int64_t start = stage->layout[field];
    if (num_bytes >= 0 && num_bytes <= stage->size - start) return stage->at + start;
    PyErr_Format(PyExc_ValueError, "section %d of a layout, %lld bytes at %lld, lies outside its stage of %lld", field,
                 (long long)num_bytes, (long long)start, (long long)stage->size);
    return NULL;
}

/* Of LoadLayout. */
enum { LOAD_COUNTS, LOAD_Q, LOAD_PREFIX, LOAD_LOCAL, LOAD_CAUSAL, LOAD_PAGE_INDPTR, LOAD_UNITS, LOAD_ANCESTORS,
       LOAD_PAGES, LOAD_MAX_UNITS, LOAD_FIELDS };

static int copy_section(const Stage *stage, int field, const Py_buffer *from) {
    void *to = section(stage, field, from->len);
    if (to) memcpy(to, from->buf, (size_t)from->len);
    return to != NULL;
}

/* load_batch(stage, layout, rule, variant, invariant, q_indptr, prefix_len, local_len, is_causal, page_indptr, ancestors,
 *      page_ids) */
static PyObject *py_load(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[2], partials;
    Stage stage;
    Requests r;
    if (!has_count(given, 12) || !integers(args + 3, v, 2) || !stage_of(&buffers, args, LOAD_FIELDS, &stage)) goto done;
    const Rule *rule = rule_of(&buffers, args[2]);
    if (!rule || !requests_of(&buffers, args + 5, v[1] != 0, &r)) goto done;
    const Py_buffer *batch = buffers.views + buffers.count - 4;
    const Py_buffer *page_indptr = array(&buffers, args[9], 4, 1, 0);
    const Py_buffer *ancestors = page_indptr ? array(&buffers, args[10], 8, 1, 0) : NULL;
    const Py_buffer *page_ids = ancestors ? array(&buffers, args[11], 4, 1, 0) : NULL;
    if (!page_ids) goto done;
    const int64_t variant = v[0] ? v[0] : choose_rows(rule, &r), most = stage.layout[LOAD_MAX_UNITS];
    int32_t *counts = section(&stage, LOAD_COUNTS, 3 * 4), *causal = section(&stage, LOAD_CAUSAL, r.count * 4);
    int32_t *table = section(&stage, LOAD_UNITS, most * 16);
    if (!counts || !causal || !table) goto done;
    const int64_t units = make_units(rule, &r, variant, table, most, &partials);
    if (units < 0) goto done;
    counts[0] = (int32_t)units;
    counts[1] = r.q_indptr[r.count];
    counts[2] = (int32_t)r.count;
    for (int64_t i = 0; i < r.count; i++) causal[i] = r.is_causal[i] != 0;
    if (copy_section(&stage, LOAD_Q, &batch[0]) && copy_section(&stage, LOAD_PREFIX, &batch[1]) &&
        copy_section(&stage, LOAD_LOCAL, &batch[2]) && copy_section(&stage, LOAD_PAGE_INDPTR, page_indptr) &&
        copy_section(&stage, LOAD_ANCESTORS, ancestors) && copy_section(&stage, LOAD_PAGES, page_ids))
        result = PyLong_FromLongLong(variant);
done:
    release(&buffers);
    return result;
}

/* The pages of sessions: their lists go from byte ``at`` of the stage on, and indptr counts from byte ``base``. */
typedef struct {
    const int32_t *table; /* [num_seats, width] */
    int64_t num_seats, width, page_size;
    int32_t *lists;
    int64_t used, most;
} Pages;

/* The pages of so many tokens of a session; NULL with an exception set where it does not have them. */
static const int32_t *pages_of(const Pages *pages, int64_t seat, int64_t num_tokens) {
    if (seat >= 0 && seat < pages->num_seats && ceil_div(num_tokens, pages->page_size) <= pages->width)
        return pages->table + seat * pages->width;
    PyErr_Format(PyExc_IndexError, "seat %lld of %lld has no pages for %lld tokens", (long long)seat,
                 (long long)pages->num_seats, (long long)num_tokens);
    return NULL;
}

static int list_pages(Pages *pages, const int32_t *table, int64_t num_tokens) {
    const int64_t count = ceil_div(num_tokens, pages->page_size);
    if (pages->used + count > pages->most) {
        PyErr_SetString(PyExc_ValueError, "there is no room for the pages of the batch");
        return 0;
    }
    memcpy(pages->lists + pages->used, table, (size_t)count * 4);
    pages->used += count;
    return 1;
}

static int64_t slot_of(const Pages *pages, const int32_t *table, int64_t position) {
    return table[position / pages->page_size] * pages->page_size + position % pages->page_size;
}

/* Columns of an ExtendBatch. */
typedef struct {
    Pages pages;
    const int64_t *seats, *base_len, *num_rows;
    const int32_t *tokens;
    int64_t count, rows;
} Sessions;

/* page_ids, seats, base_len, num_rows, tokens. base and at: where page lists are counted from, and where they go. */
static int sessions_of(Buffers *buffers, PyObject *const *args, const Stage *stage, int64_t page_size, int64_t base,
                       int64_t at, Sessions *out) {
    const Py_buffer *ids = array(buffers, args[0], 4, 2, 0);
    const Py_buffer *seats = ids ? array(buffers, args[1], 8, 1, 0) : NULL;
    const Py_buffer *base_len = seats ? array(buffers, args[2], 8, 1, 0) : NULL;
    const Py_buffer *num_rows = base_len ? array(buffers, args[3], 8, 1, 0) : NULL;
    const Py_buffer *tokens = num_rows ? array(buffers, args[4], 4, 1, 0) : NULL;
    if (!tokens) return 0;
    if (base < 0 || at < base || at > stage->size || base % 4 || page_size < 1 || page_size > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the lists of pages lie outside the stage, or a page has no slots");
        return 0;
    }
    *out = (Sessions){.pages = {.table = ids->buf, .num_seats = ids->shape[0], .width = ids->shape[1],
                                .page_size = page_size, .lists = (int32_t *)(stage->at + base), .used = (at - base) / 4,
                                .most = (stage->size - base) / 4},
                      .seats = seats->buf, .base_len = base_len->buf, .num_rows = num_rows->buf, .tokens = tokens->buf,
                      .count = seats->shape[0], .rows = tokens->shape[0]};
    int64_t rows = 0;
    int is_sound = base_len->shape[0] == out->count && num_rows->shape[0] == out->count;
    for (int64_t i = 0; is_sound && i < out->count; i++) {
        is_sound = out->num_rows[i] >= 1 && out->num_rows[i] <= out->rows - rows && out->base_len[i] >= 0 &&
                   out->base_len[i] <= INT32_MAX;
        rows += out->num_rows[i];
    }
    if (is_sound && rows == out->rows) return 1;
    PyErr_SetString(PyExc_ValueError, "the columns of a batch disagree");
    return 0;
}

/* Of ExtendLayout. */
enum { EXTEND_BUCKET, EXTEND_COLUMNS, EXTEND_COUNTS, EXTEND_Q, EXTEND_PREFIX, EXTEND_LOCAL, EXTEND_PAGE_INDPTR,
       EXTEND_UNITS, EXTEND_MAX_UNITS, EXTEND_FIELDS };

/* extend_tables(stage, layout, rule, page_ids, seats, base_len, num_rows, tokens, page_size, page_base, pages_at, first, last,
 *        scratch, keeps_hidden, spare_slot, spare_place) */
static PyObject *py_extend(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
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

/* Of GrowthLayout. */
enum { GROW_SESSIONS, GROW_TOPK, GROW_SCRATCH, GROW_COLUMNS, GROW_COUNTS, GROW_Q, GROW_PREFIX, GROW_PAGE_INDPTR,
       GROW_UNITS, GROW_MAX_UNITS, GROW_FIELDS };
#define GROW_NUMBERS 9 /* columns before the scratch slots: place, root, committed_len, num_steps, topk, num_nodes,
                          seed, temperature, min_score */

/* What each tree is grown by. */
typedef struct {
    const int64_t *shapes; /* [4, count] */
    const int64_t *seeds;  /* [seats], bits of uint64 */
    const double *temperatures, *min_scores; /* [seats], [1000] */
    int64_t num_min_scores;
} Wishes;

static int wishes_of(Buffers *buffers, PyObject *const *args, const Sessions *s, Wishes *out) {
    const Py_buffer *shapes = array(buffers, args[0], 8, 2, 0);
    const Py_buffer *seeds = shapes ? array(buffers, args[1], 8, 1, 0) : NULL;
    const Py_buffer *temperatures = seeds ? array(buffers, args[2], 8, 1, 0) : NULL;
    const Py_buffer *min_scores = temperatures ? array(buffers, args[3], 8, 1, 0) : NULL;
    if (!min_scores) return 0;
    *out = (Wishes){.shapes = shapes->buf, .seeds = seeds->buf, .temperatures = temperatures->buf,
                    .min_scores = min_scores->buf, .num_min_scores = min_scores->shape[0]};
    if (shapes->shape[0] == 4 && shapes->shape[1] == s->count && seeds->shape[0] == s->pages.num_seats &&
        temperatures->shape[0] == s->pages.num_seats)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the columns of a growth disagree");
    return 0;
}

/* growth_tables(stage, layout, rule, page_ids, seats, base_len, num_rows, tokens, shapes, seeds, temperatures, min_scores, chosen,
 *      page_size, page_base, pages_at, spare_slot, spare_place, page_indptr_at, variant) */
static PyObject *py_grow(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[7], partials;
    Stage stage;
    Sessions s;
    Wishes wishes;
    if (!has_count(given, 20) || !integers(args + 13, v, 7) || !stage_of(&buffers, args, GROW_FIELDS, &stage)) goto done;
    const int64_t spare_slot = v[3], spare_place = v[4], shared_at = v[5], variant = v[6];
    const Rule *rule = rule_of(&buffers, args[2]);
    if (!rule || !sessions_of(&buffers, args + 3, &stage, v[0], v[1], v[2], &s)) goto done;
    if (!wishes_of(&buffers, args + 8, &s, &wishes)) goto done;
    const int64_t size = stage.layout[GROW_SESSIONS], topk = stage.layout[GROW_TOPK], most = stage.layout[GROW_MAX_UNITS];
    const int64_t num_scratch = stage.layout[GROW_SCRATCH];
    const Py_buffer *chosen = array(&buffers, args[12], 8, 1, 0);
    if (!chosen) goto done;
    const int64_t *places = chosen->buf, count = chosen->shape[0];
    if (count < 1 || count > size || topk < 1) {
        PyErr_Format(PyExc_ValueError, "%lld sessions do not fit a growth of %lld", (long long)count, (long long)size);
        goto done;
    }
    int64_t *columns = section(&stage, GROW_COLUMNS, (GROW_NUMBERS + num_scratch) * size * 8);
    int32_t *counts = section(&stage, GROW_COUNTS, 3 * 4), *q_indptr = section(&stage, GROW_Q, (size + 1) * 4);
    int32_t *prefix_len = section(&stage, GROW_PREFIX, size * 4);
    int32_t *page_indptr = section(&stage, GROW_PAGE_INDPTR, (size + 1) * 4);
    int32_t *table = section(&stage, GROW_UNITS, most * 16);
    if (!columns || !counts || !q_indptr || !prefix_len || !page_indptr || !table) goto done;
    const int32_t *shared = NULL;
    if (shared_at >= 0) {
        if (shared_at % 4 || shared_at > stage.size - (count + 1) * 4) {
            PyErr_SetString(PyExc_ValueError, "the shared lists of pages lie outside the stage");
            goto done;
        }
        shared = (const int32_t *)(stage.at + shared_at);
    }
    int64_t stop = 0, next = 0, is_noised = 0;
    q_indptr[0] = 0;
    page_indptr[0] = shared ? shared[0] : (int32_t)s.pages.used;
    for (int64_t at = 0; at < count; at++) {
        const int64_t i = places[at];
        if (i < next || i >= s.count) {
            PyErr_SetString(PyExc_IndexError, "the sessions of a growth do not ascend within their batch");
            goto done;
        }
        for (; next <= i; next++) stop += s.num_rows[next];
        const int64_t seat = s.seats[i], committed_len = s.base_len[i] + s.num_rows[i];
        const int64_t permille = wishes.shapes[3 * s.count + i];
        const int32_t *pages = pages_of(&s.pages, seat, committed_len + num_scratch);
        if (!pages) goto done;
        if (permille < 0 || permille >= wishes.num_min_scores) {
            PyErr_Format(PyExc_IndexError, "min_path_permille %lld is not in [0, %lld)", (long long)permille,
                         (long long)wishes.num_min_scores);
            goto done;
        }
        int64_t *column = columns + at;
        column[0 * size] = i;
        column[1 * size] = s.tokens[stop - 1];
        column[2 * size] = committed_len;
        for (int64_t number = 0; number < 3; number++) column[(3 + number) * size] = wishes.shapes[number * s.count + i];
        column[6 * size] = wishes.seeds[seat];
        memcpy(&column[7 * size], &wishes.temperatures[seat], 8);
        memcpy(&column[8 * size], &wishes.min_scores[permille], 8);
        is_noised |= wishes.temperatures[seat] > 0;
        for (int64_t node = 0; node < num_scratch; node++)
            column[(GROW_NUMBERS + node) * size] = slot_of(&s.pages, pages, committed_len + node);
        q_indptr[at + 1] = (int32_t)((at + 1) * topk);
        prefix_len[at] = (int32_t)committed_len;
        if (!shared && !list_pages(&s.pages, pages, committed_len + num_scratch)) goto done;
        page_indptr[at + 1] = shared ? shared[at + 1] : (int32_t)s.pages.used;
    }
    static const int64_t padding[GROW_NUMBERS] = {0, 0, 0, 1, 1, 2, 0, 0, 0};
    for (int64_t row = 0; row < GROW_NUMBERS + num_scratch; row++) {
        const int64_t value = row == 0 ? spare_place : row < GROW_NUMBERS ? padding[row] : spare_slot;
        for (int64_t at = count; at < size; at++) columns[row * size + at] = value;
    }
    const Requests r = {.q_indptr = q_indptr, .prefix_len = prefix_len, .count = count, .all_local = topk};
    const int64_t units = make_units(rule, &r, variant, table, most, &partials);
    if (units < 0) goto done;
    counts[0] = (int32_t)units;
    counts[1] = (int32_t)(count * topk);
    counts[2] = (int32_t)count;
    result = Py_BuildValue("(LL)", (long long)is_noised, (long long)(v[1] + 4 * s.pages.used));
done:
    release(&buffers);
    return result;
}

/* Copies so many bytes to byte ``at`` of a stage. Returns the byte behind them. */
static PyObject *copy_to_stage(Buffers *buffers, PyObject *into, int64_t at, const void *from, int64_t num_bytes) {
    const Py_buffer *stage = array(buffers, into, 1, 1, PyBUF_WRITABLE);
    if (!stage) return NULL;
    if (at < 0 || at > stage->len || num_bytes < 0 || num_bytes > stage->len - at) {
        PyErr_Format(PyExc_ValueError, "%lld bytes at %lld lie outside a stage of %zd", (long long)num_bytes,
                     (long long)at, stage->len);
        return NULL;
    }
    memcpy((char *)stage->buf + at, from, (size_t)num_bytes);
    return PyLong_FromLongLong(at + num_bytes);
}

/* copy_buffer(stage, at, buffer) */
static PyObject *py_copy_buffer(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    int64_t at;
    Py_buffer from;
    if (!has_count(given, 3) || !integers(args + 1, &at, 1) || PyObject_GetBuffer(args[2], &from, PyBUF_SIMPLE) != 0)
        return NULL;
    PyObject *result = copy_to_stage(&buffers, args[0], at, from.buf, from.len);
    PyBuffer_Release(&from);
    release(&buffers);
    return result;
}

/* copy_bytes(stage, at, address, num_bytes) */
static PyObject *py_copy_bytes(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    int64_t v[3];
    if (!has_count(given, 4) || !integers(args + 1, v, 3)) return NULL;
    PyObject *result = copy_to_stage(&buffers, args[0], v[0], (const void *)v[1], v[2]);
    release(&buffers);
    return result;
}

PyMethodDef table_methods[] = {
    {"choose_rows", (PyCFunction)(void (*)(void))py_choose_rows, METH_FASTCALL, NULL},
    {"make_units", (PyCFunction)(void (*)(void))py_make_units, METH_FASTCALL, NULL},
    {"load_batch", (PyCFunction)(void (*)(void))py_load, METH_FASTCALL, NULL},
    {"extend_tables", (PyCFunction)(void (*)(void))py_extend, METH_FASTCALL, NULL},
    {"growth_tables", (PyCFunction)(void (*)(void))py_grow, METH_FASTCALL, NULL},
    {"copy_bytes", (PyCFunction)(void (*)(void))py_copy_bytes, METH_FASTCALL, NULL},
    {"copy_buffer", (PyCFunction)(void (*)(void))py_copy_buffer, METH_FASTCALL, NULL},
    {"take_round", (PyCFunction)(void (*)(void))py_take_round, METH_FASTCALL, NULL},
    {"read_extend", (PyCFunction)(void (*)(void))py_read_extend, METH_FASTCALL, NULL},
    {"write_verify", (PyCFunction)(void (*)(void))py_write_verify, METH_FASTCALL, NULL},
    {"answered_stream", (PyCFunction)(void (*)(void))py_answered_stream, METH_FASTCALL, NULL},
    {"write_rows", (PyCFunction)(void (*)(void))py_write_rows, METH_FASTCALL, NULL},
    {"survey", (PyCFunction)(void (*)(void))py_survey, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
