/* Sessions: new rows of each, and the pages of their KV. */

#pragma once

#include <string.h>

#include "stage.h"
#include "units.h"

/* The pages of sessions: their lists go from byte ``at`` of the stage on, and indptr counts from byte ``base``. */
typedef struct {
    const int32_t *table; /* [num_seats, width] */
    int64_t num_seats, width, page_size;
    int32_t *lists;
    int64_t used, most;
} Pages;

/* The pages of so many tokens of a session; NULL with an exception set where it does not have them. */
static inline const int32_t *pages_of(const Pages *pages, int64_t seat, int64_t num_tokens) {
    if (seat >= 0 && seat < pages->num_seats && ceil_div(num_tokens, pages->page_size) <= pages->width)
        return pages->table + seat * pages->width;
    PyErr_Format(PyExc_IndexError, "seat %lld of %lld has no pages for %lld tokens", (long long)seat,
                 (long long)pages->num_seats, (long long)num_tokens);
    return NULL;
}

static inline int list_pages(Pages *pages, const int32_t *table, int64_t num_tokens) {
    const int64_t count = ceil_div(num_tokens, pages->page_size);
    if (pages->used + count > pages->most) {
        PyErr_SetString(PyExc_ValueError, "there is no room for the pages of the batch");
        return 0;
    }
    memcpy(pages->lists + pages->used, table, (size_t)count * 4);
    pages->used += count;
    return 1;
}

static inline int64_t slot_of(const Pages *pages, const int32_t *table, int64_t position) {
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
static inline int sessions_of(Buffers *buffers, PyObject *const *args, const Stage *stage, int64_t page_size, int64_t base,
                       int64_t at, Sessions *out) {
    const Py_buffer *ids = array(buffers, args[0], 4, 2, 0);
    const Py_buffer *seats = array(buffers, args[1], 8, 1, 0);
    const Py_buffer *base_len = array(buffers, args[2], 8, 1, 0);
    const Py_buffer *num_rows = array(buffers, args[3], 8, 1, 0);
    const Py_buffer *tokens = array(buffers, args[4], 4, 1, 0);
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
