/* Growth: the tables of trees that grow behind sessions' rows. kernels/round_tables.py says what it does. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "sessions.h"
#include "tables.h"

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
    const Py_buffer *seeds = array(buffers, args[1], 8, 1, 0);
    const Py_buffer *temperatures = array(buffers, args[2], 8, 1, 0);
    const Py_buffer *min_scores = array(buffers, args[3], 8, 1, 0);
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
PyObject *py_grow(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
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
