/* Trees of a step: whether they are trees, and the integers of a StepPlan that follow from them.
 *
 * kernels/step_trees.py is Python's face and says what each function does. Arrays come as buffers; their sizes are
 * checked against each other, and so is every page that is read. */

#pragma once

#include <stdint.h>

#include "buffers.h"

#define MAX_NODES 64

/* Takes count arguments as contiguous arrays of the item sizes; 0 with an exception set where one is another. The
 * first num_read are not written. */
static int take_arrays(Buffers *arrays, PyObject *const *args, const int *item_sizes, int count, int num_read) {
    arrays->count = 0;
    for (int i = 0; i < count; i++) {
        Py_buffer *view = &arrays->views[i];
        if (PyObject_GetBuffer(args[i], view, PyBUF_ND | (i < num_read ? 0 : PyBUF_WRITABLE)) != 0) goto failed;
        arrays->count++;
        if (view->itemsize == item_sizes[i]) continue;
        PyErr_Format(PyExc_TypeError, "array %d has items of %zd bytes, not of %d", i, view->itemsize, item_sizes[i]);
        goto failed;
    }
    return 1;
failed:
    release(arrays);
    return 0;
}

static Py_ssize_t length_of(const Buffers *arrays, int i) { return arrays->views[i].len / arrays->views[i].itemsize; }

/* Links of one tree's nodes, local, -1 where none. */
typedef struct {
    int32_t *first_child, *next_sibling;
    int32_t last_child[MAX_NODES];
} Links;

/* Node i comes behind its parent's other children. */
static void link_node(Links *links, int32_t parent, int32_t i) {
    links->first_child[i] = links->next_sibling[i] = links->last_child[i] = -1;
    if (parent < 0) return;
    if (links->last_child[parent] < 0) links->first_child[parent] = i;
    else links->next_sibling[links->last_child[parent]] = i;
    links->last_child[parent] = i;
}

static int is_tree(const int32_t *tokens, const int32_t *parents, int64_t count) {
    int32_t first_child[MAX_NODES], next_sibling[MAX_NODES];
    Links links = {.first_child = first_child, .next_sibling = next_sibling};
    if (count < 1 || count > MAX_NODES) return 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t parent = parents[i];
        if (tokens[i] < 0 || (i == 0 ? parent != -1 : parent < 0 || parent >= i)) return 0;
        if (i)
            for (int32_t at = first_child[parent]; at >= 0; at = next_sibling[at])
                if (tokens[at] == tokens[i]) return 0;
        link_node(&links, parent, i);
    }
    return 1;
}

static int64_t pages_for(int64_t num_tokens, int64_t page_size) { return (num_tokens + page_size - 1) / page_size; }

PyDoc_STRVAR(count_pages_doc,
             "count_pages(committed_len, num_nodes, page_size) -> int: of all trees together; int64 arrays.");

static PyObject *count_pages(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    static const int sizes[] = {8, 8};
    Buffers arrays;
    if (!has_count(given, 3)) return NULL;
    const int64_t page_size = PyLong_AsLongLong(args[2]);
    if (page_size < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a page has one slot at least");
        return NULL;
    }
    if (!take_arrays(&arrays, args, sizes, 2, 2)) return NULL;
    const int64_t *base = arrays.views[0].buf, *num_nodes = arrays.views[1].buf;
    const int64_t count = length_of(&arrays, 0);
    int64_t pages = 0;
    const int fits = length_of(&arrays, 1) == count;
    for (int64_t i = 0; fits && i < count; i++) pages += pages_for(base[i] + num_nodes[i], page_size);
    release(&arrays);
    if (fits) return PyLong_FromLongLong(pages);
    PyErr_SetString(PyExc_ValueError, "one length and one number of nodes a tree are expected");
    return NULL;
}

/* Where plan_trees writes; b trees, n nodes. */
typedef struct {
    int32_t *positions, *first_child, *next_sibling, *rows; /* [n] */
    int32_t *q_indptr, *page_indptr;                        /* [b + 1] */
    int32_t *prefix_len, *local_len;                        /* [b] */
    int32_t *page_ids;
    int64_t *slots;      /* [n] */
    uint64_t *ancestors; /* [n] */
} Plan;

/* Tree r, whose first node is row first: its rows, and its entries but for the pages. 0 where it is no tree. */
static int plan_tree(const Plan *plan, int64_t r, int64_t first, int64_t base, const int32_t *parents, int64_t count) {
    Links links = {.first_child = plan->first_child + first, .next_sibling = plan->next_sibling + first};
    int32_t *positions = plan->positions + first;
    uint64_t *ancestors = plan->ancestors + first;
    if (count < 1 || count > MAX_NODES) return 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t parent = parents[i];
        if (i == 0 ? parent != -1 : parent < 0 || parent >= i) return 0;
        positions[i] = i ? positions[parent] + 1 : (int32_t)base;
        ancestors[i] = (i ? ancestors[parent] : 0) | (uint64_t)1 << i;
        plan->rows[first + i] = (int32_t)(first + i);
        link_node(&links, parent, i);
    }
    plan->q_indptr[r + 1] = (int32_t)(first + count);
    plan->prefix_len[r] = (int32_t)base;
    plan->local_len[r] = (int32_t)count;
    return 1;
}

PyDoc_STRVAR(plan_trees_doc,
             "plan_trees(page_table, table_rows, committed_len, num_nodes, parents, narrow, wide, page_size)\n"
             "Writes narrow (int32: positions, first_child, next_sibling, rows, q_indptr, page_indptr, prefix_len,\n"
             "local_len, page_ids) and wide (int64: slots, ancestors).\n"
             "ValueError or IndexError for what does not fit.");

static PyObject *plan_trees(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    static const int sizes[] = {4, 8, 8, 8, 4, 4, 8};
    Buffers arrays;
    if (!has_count(given, 8)) return NULL;
    const int64_t page_size = PyLong_AsLongLong(args[7]);
    if (page_size < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a page has one slot at least");
        return NULL;
    }
    if (!take_arrays(&arrays, args, sizes, 7, 5)) return NULL;
    const int32_t *page_table = arrays.views[0].buf, *parents = arrays.views[4].buf;
    const int64_t *table_rows = arrays.views[1].buf, *bases = arrays.views[2].buf, *num_nodes = arrays.views[3].buf;
    const int64_t b = length_of(&arrays, 1), n = length_of(&arrays, 4);
    int32_t *narrow = arrays.views[5].buf;
    int64_t *wide = arrays.views[6].buf;
    const int64_t num_pages = length_of(&arrays, 5) - 4 * n - 4 * b - 2;
    if (arrays.views[0].ndim != 2 || length_of(&arrays, 2) != b || length_of(&arrays, 3) != b || num_pages < 0 ||
        length_of(&arrays, 6) != 2 * n) {
        release(&arrays);
        PyErr_SetString(PyExc_ValueError, "the arrays of the trees do not fit each other");
        return NULL;
    }
    const int64_t num_rows = arrays.views[0].shape[0], width = arrays.views[0].shape[1];
    const Plan plan = {.positions = narrow, .first_child = narrow + n, .next_sibling = narrow + 2 * n,
                       .rows = narrow + 3 * n, .q_indptr = narrow + 4 * n, .page_indptr = narrow + 4 * n + b + 1,
                       .prefix_len = narrow + 4 * n + 2 * b + 2, .local_len = narrow + 4 * n + 3 * b + 2,
                       .page_ids = narrow + 4 * n + 4 * b + 2, .slots = wide, .ancestors = (uint64_t *)(wide + n)};
    int64_t row = 0, page = 0, r = 0;
    plan.q_indptr[0] = plan.page_indptr[0] = 0;
    for (; r < b; r++) {
        const int64_t base = bases[r], count = num_nodes[r];
        if (base < 0 || base > INT32_MAX || count < 0 || count > n - row) break;
        if (!plan_tree(&plan, r, row, base, parents + row, count)) break;
        const int64_t pages = pages_for(base + count, page_size);
        if (table_rows[r] < 0 || table_rows[r] >= num_rows || pages > width || pages > num_pages - page) break;
        const int32_t *pages_of = page_table + table_rows[r] * width;
        for (int64_t i = 0; i < pages; i++) plan.page_ids[page + i] = pages_of[i];
        for (int64_t i = 0; i < count; i++) {
            const int64_t position = base + i;
            plan.slots[row + i] = pages_of[position / page_size] * page_size + position % page_size;
        }
        row += count;
        page += pages;
        plan.page_indptr[r + 1] = (int32_t)page;
    }
    const int whole = r == b && row == n && page == num_pages;
    release(&arrays);
    if (whole) Py_RETURN_NONE;
    if (r < b) PyErr_Format(PyExc_IndexError, "tree %lld is none, or its nodes or pages are not there", (long long)r);
    else PyErr_SetString(PyExc_ValueError, "there is room for more nodes or pages than the trees have");
    return NULL;
}

PyDoc_STRVAR(commit_walk_doc,
             "commit_walk(tokens, committed_len, last_step, table_rows, base, allowed, accept_length, verified_id,\n"
             "step) -> (starts, is_full). Writes the first three, [table rows, width] int32 and [table rows] int64;\n"
             "the others have an entry a tree. starts: of each tree's tokens in verified_id, a list; is_full: whether\n"
             "one has as many as it is allowed. ValueError for what does not fit.");

static PyObject *commit_walk(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    static const int sizes[] = {8, 8, 8, 4, 4, 4, 8, 8};
    Buffers arrays;
    if (!has_count(given, 9)) return NULL;
    const int64_t step = PyLong_AsLongLong(args[8]);
    if (step == -1 && PyErr_Occurred()) return NULL;
    PyObject *const order[] = {args[3], args[4], args[5], args[6], args[7], args[0], args[1], args[2]};
    if (!take_arrays(&arrays, order, sizes, 8, 5)) return NULL;
    const int64_t *rows = arrays.views[0].buf, *base = arrays.views[1].buf, *allowed = arrays.views[2].buf;
    const int32_t *accepted = arrays.views[3].buf, *ids = arrays.views[4].buf;
    int32_t *tokens = arrays.views[5].buf;
    int64_t *committed_len = arrays.views[6].buf, *last_step = arrays.views[7].buf;
    const int64_t b = length_of(&arrays, 0), n = length_of(&arrays, 4), num_rows = length_of(&arrays, 6);
    const int fits = arrays.views[5].ndim == 2 && arrays.views[5].shape[0] == num_rows &&
                     length_of(&arrays, 7) == num_rows && length_of(&arrays, 1) == b && length_of(&arrays, 2) == b &&
                     length_of(&arrays, 3) == b;
    const int64_t width = fits ? arrays.views[5].shape[1] : 0;
    PyObject *starts = fits ? PyList_New(b) : NULL, *result = NULL;
    int64_t start = 0, i = 0;
    int is_full = 0;
    for (; starts && i < b; i++) {
        const int64_t count = (int64_t)accepted[i] + 1, row = rows[i];
        if (count < 1 || count > n - start || row < 0 || row >= num_rows) break;
        if (base[i] < 0 || base[i] > INT32_MAX) break;
        PyObject *number = PyLong_FromLongLong(start);
        if (!number || PyList_SetItem(starts, i, number) != 0) break;
        for (int64_t j = 0, at = base[i] + 1; j < count && at + j < width; j++)
            tokens[row * width + at + j] = ids[start + j];
        committed_len[row] = base[i] + count;
        last_step[row] = step;
        is_full |= count >= allowed[i];
        start += count;
    }
    const int whole = starts && i == b && start == n;
    release(&arrays);
    if (whole) result = Py_BuildValue("OO", starts, is_full ? Py_True : Py_False);
    else if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the arrays of the walk do not fit each other");
    Py_XDECREF(starts);
    return result;
}

PyDoc_STRVAR(stage_columns_doc,
             "stage_columns(stage, layout, narrow, wide): writes columns of integers into the int64 stage, padded.\n"
             "layout: int64, of each column where it starts, how long it is, and what pads it; narrow: a tuple of\n"
             "int32 arrays, wide: one of int64 arrays, whose columns follow. ValueError for what does not fit.");

/* One column; 0 with an exception set where it does not fit. */
static int stage_column(PyObject *object, int item_size, const Py_buffer *stage, const int64_t *layout) {
    Buffers arrays;
    if (!take_arrays(&arrays, &object, &item_size, 1, 1)) return 0;
    const int64_t start = layout[0], length = layout[1], padding = layout[2], count = length_of(&arrays, 0);
    const int fits = start >= 0 && count <= length && length <= stage->len / 8 - start;
    const void *values = arrays.views[0].buf;
    int64_t *column = fits ? (int64_t *)stage->buf + start : NULL;
    for (int64_t i = 0; fits && i < count; i++)
        column[i] = item_size == 4 ? ((const int32_t *)values)[i] : ((const int64_t *)values)[i];
    for (int64_t i = count; fits && i < length; i++) column[i] = padding;
    release(&arrays);
    if (!fits) PyErr_Format(PyExc_ValueError, "a column of %lld does not fit the stage", (long long)count);
    return fits;
}

static PyObject *stage_columns(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    static const int sizes[] = {8, 8};
    Buffers arrays;
    if (!has_count(given, 4)) return NULL;
    const Py_ssize_t num_narrow = PyTuple_Size(args[2]), num_wide = PyTuple_Size(args[3]);
    PyObject *const order[] = {args[1], args[0]};
    if (num_narrow < 0 || num_wide < 0 || !take_arrays(&arrays, order, sizes, 2, 1)) return NULL;
    const int64_t *layout = arrays.views[0].buf;
    int done = length_of(&arrays, 0) == 3 * (num_narrow + num_wide);
    if (!done) PyErr_SetString(PyExc_ValueError, "three numbers a column are expected");
    for (Py_ssize_t i = 0; done && i < num_narrow; i++, layout += 3)
        done = stage_column(PyTuple_GetItem(args[2], i), 4, &arrays.views[1], layout);
    for (Py_ssize_t i = 0; done && i < num_wide; i++, layout += 3)
        done = stage_column(PyTuple_GetItem(args[3], i), 8, &arrays.views[1], layout);
    release(&arrays);
    if (!done) return NULL;
    Py_RETURN_NONE;
}
