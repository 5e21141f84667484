/* Trees of a step: whether they are trees, and the integers of a StepPlan that follow from them.
 *
 * kernels/step_trees.py is Python's face and says what each function does. Arrays come as buffers; their sizes are
 * checked against each other, and so is every page that is read. */

#pragma once

#include <stdint.h>
#include <string.h>

#include "buffers.h"

#define MAX_NODES 64

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

/* Rows of a RequestTable's facts, and of a step's heads; kernels/step_trees.py says what they hold. */
enum { COMMITTED, PENDING, PENDING_TREE, LIMIT, LAST_STEP, NUM_FACTS };
enum { HEAD_ROW, HEAD_BASE, HEAD_ALLOWED, NUM_HEADS };

/* A row for each request that may run; contiguous. */
typedef struct {
    int32_t *tokens;         /* [num_rows, context_length] */
    const int32_t *page_ids; /* [num_rows, num_pages] */
    int64_t *facts;          /* [NUM_FACTS, num_rows] */
    int64_t num_rows, context_length, num_pages, page_size;
} RequestTable;

/* One tree that is due: nodes are int32 [2, count], tokens and parents. */
typedef struct {
    int64_t row, base, count;
    const char *nodes; /* NULL: one node, the newest token */
} Due;

/* Tree r of the lists. 0, maybe with an exception set, for one that is none or whose tokens or pages are not there. */
static int find_due(const RequestTable *requests, PyObject *rows, PyObject *trees, Py_ssize_t r, Due *due) {
    due->row = PyLong_AsLongLong(PyList_GetItem(rows, r));
    if (due->row < 0 || due->row >= requests->num_rows) return 0;
    const int64_t *fact = requests->facts + due->row;
    const int64_t committed = fact[COMMITTED * requests->num_rows], pending = fact[PENDING * requests->num_rows];
    if (committed < 0 || pending < 0 || committed >= requests->context_length ||
        pending >= requests->context_length - committed)
        return 0;
    due->base = committed + pending;
    due->count = 1;
    due->nodes = NULL;
    if (r < PyList_Size(trees)) {
        char *nodes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(trees, r), &nodes, &size) != 0) return 0;
        if (size < 8 || size % 8 || size > 8 * MAX_NODES) return 0;
        due->nodes = nodes;
        due->count = size / 8;
    }
    return pages_for(due->base + due->count, requests->page_size) <= requests->num_pages;
}

/* Where plan_step writes; b trees, n nodes. */
typedef struct {
    int64_t *heads;                                                   /* [NUM_HEADS, b] */
    int64_t *slots;                                                   /* [n] */
    uint64_t *ancestors;                                              /* [n] */
    int32_t *tokens, *positions, *first_child, *next_sibling, *nodes; /* [n] */
    int32_t *q_indptr, *page_indptr;                                  /* [b + 1] */
    int32_t *prefix_len, *local_len;                                  /* [b] */
    int32_t *page_ids;
    int64_t b;
} Plan;

static Plan plan_at(char *arena, int64_t b, int64_t n) {
    int64_t *wide = (int64_t *)arena;
    int32_t *narrow = (int32_t *)(wide + NUM_HEADS * b + 2 * n);
    return (Plan){.heads = wide, .slots = wide + NUM_HEADS * b, .ancestors = (uint64_t *)(wide + NUM_HEADS * b + n),
                  .tokens = narrow, .positions = narrow + n, .first_child = narrow + 2 * n,
                  .next_sibling = narrow + 3 * n, .nodes = narrow + 4 * n, .q_indptr = narrow + 5 * n,
                  .page_indptr = narrow + 5 * n + b + 1, .prefix_len = narrow + 5 * n + 2 * b + 2,
                  .local_len = narrow + 5 * n + 3 * b + 2, .page_ids = narrow + 5 * n + 4 * b + 2, .b = b};
}

/* The nodes of tree r, whose first node is row first. 0 where it is no tree. */
static int plan_nodes(const Plan *plan, int64_t first, const Due *due) {
    Links links = {.first_child = plan->first_child + first, .next_sibling = plan->next_sibling + first};
    int32_t *positions = plan->positions + first, parents[MAX_NODES];
    uint64_t *ancestors = plan->ancestors + first;
    parents[0] = -1;
    if (due->nodes) {
        memcpy(plan->tokens + first, due->nodes, (size_t)due->count * 4);
        memcpy(parents, due->nodes + due->count * 4, (size_t)due->count * 4);
    }
    for (int32_t i = 0; i < due->count; i++) {
        const int32_t parent = parents[i];
        if (i == 0 ? parent != -1 : parent < 0 || parent >= i) return 0;
        positions[i] = i ? positions[parent] + 1 : (int32_t)due->base;
        ancestors[i] = (i ? ancestors[parent] : 0) | (uint64_t)1 << i;
        plan->nodes[first + i] = (int32_t)(first + i);
        link_node(&links, parent, i);
    }
    return 1;
}

/* The entries of tree r, whose first node is row first; page pages are listed before its own. */
static void plan_entries(const Plan *plan, const RequestTable *requests, int64_t r, int64_t first, const Due *due) {
    const int64_t *fact = requests->facts + due->row, num_rows = requests->num_rows, page_size = requests->page_size;
    const int32_t *pages_of = requests->page_ids + due->row * requests->num_pages;
    const int64_t pages = pages_for(due->base + due->count, page_size), page = plan->page_indptr[r];
    plan->heads[HEAD_ROW * plan->b + r] = due->row;
    plan->heads[HEAD_BASE * plan->b + r] = due->base;
    plan->heads[HEAD_ALLOWED * plan->b + r] = fact[LIMIT * num_rows] - 1 - due->base;
    plan->q_indptr[r + 1] = (int32_t)(first + due->count);
    plan->page_indptr[r + 1] = (int32_t)(page + pages);
    plan->prefix_len[r] = (int32_t)due->base;
    plan->local_len[r] = (int32_t)due->count;
    for (int64_t i = 0; i < pages; i++) plan->page_ids[page + i] = pages_of[i];
    for (int64_t i = 0; i < due->count; i++) {
        const int64_t position = due->base + i;
        plan->slots[first + i] = pages_of[position / page_size] * page_size + position % page_size;
    }
    if (due->nodes) return;
    const int64_t drawn_by = fact[PENDING_TREE * num_rows];
    plan->tokens[first] = drawn_by < 0 ? requests->tokens[due->row * requests->context_length + due->base]
                                       : (int32_t)(-1 - drawn_by);
}

/* tokens, page_ids and facts as arguments, the facts and tokens to be written or not; 0 with an exception set. */
static int take_requests(Buffers *buffers, PyObject *const *args, int flags, RequestTable *requests) {
    const Py_buffer *tokens = array(buffers, args[0], 4, 2, flags);
    const Py_buffer *page_ids = array(buffers, args[1], 4, 2, 0);
    const Py_buffer *facts = array(buffers, args[2], 8, 2, flags);
    if (!facts) return 0;
    *requests = (RequestTable){.tokens = tokens->buf, .page_ids = page_ids->buf, .facts = facts->buf,
                               .num_rows = tokens->shape[0], .context_length = tokens->shape[1],
                               .num_pages = page_ids->shape[1]};
    if (requests->context_length <= INT32_MAX - MAX_NODES && page_ids->shape[0] == requests->num_rows &&
        facts->shape[0] == NUM_FACTS && facts->shape[1] == requests->num_rows)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the columns of the requests do not fit each other");
    return 0;
}

PyDoc_STRVAR(plan_step_doc,
             "plan_step(tokens, page_ids, facts, page_size, rows, trees, spare) -> (arena, num_nodes, num_pages)\n"
             "arena: a bytearray, the spare one where its size is right: int64 heads, slots, ancestors; int32 tokens,\n"
             "positions, first_child, next_sibling, rows, q_indptr, page_indptr, prefix_len, local_len, page_ids; a zero\n"
             "byte a tree. rows: a list of ints; trees: a list of bytes, of the first of them. IndexError or ValueError\n"
             "for what does not fit.");

static PyObject *plan_step(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    RequestTable requests;
    PyObject *arena = NULL, *result = NULL;
    if (!has_count(given, 7)) return NULL;
    const int64_t page_size = PyLong_AsLongLong(args[3]);
    const Py_ssize_t b = PyList_Size(args[4]), num_trees = PyList_Size(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (page_size < 1 || page_size > INT32_MAX || num_trees > b || b > INT32_MAX / MAX_NODES) {
        PyErr_SetString(PyExc_ValueError, "a page has one slot at least, and a tree a row");
        return NULL;
    }
    if (!take_requests(&buffers, args, 0, &requests)) goto done;
    requests.page_size = page_size;
    int64_t n = 0, pages = 0, r = 0;
    Due due;
    for (; r < b; r++) {
        if (!find_due(&requests, args[4], args[5], r, &due)) goto unfit;
        n += due.count;
        pages += pages_for(due.base + due.count, page_size);
    }
    if (pages > INT32_MAX) goto unfit;
    const Py_ssize_t size = 8 * (NUM_HEADS * b + 2 * n) + 4 * (5 * n + 4 * b + 2 + pages) + b;
    if (PyByteArray_Check(args[6]) && PyByteArray_Size(args[6]) == size) {
        arena = args[6];
        Py_INCREF(arena);
    } else {
        arena = PyByteArray_FromStringAndSize(NULL, size);
    }
    if (!arena) goto done;
    char *start = PyByteArray_AsString(arena);
    memset(start + size - b, 0, (size_t)b);
    const Plan plan = plan_at(start, b, n);
    int64_t first = 0;
    plan.q_indptr[0] = plan.page_indptr[0] = 0;
    for (r = 0; r < b; r++, first += due.count) {
        if (!find_due(&requests, args[4], args[5], r, &due) || !plan_nodes(&plan, first, &due)) goto unfit;
        plan_entries(&plan, &requests, r, first, &due);
    }
    result = Py_BuildValue("(OLL)", arena, (long long)n, (long long)pages);
    goto done;
unfit:
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "tree %lld is none, or its tokens or pages are not there", (long long)r);
done:
    Py_XDECREF(arena);
    release(&buffers);
    return result;
}
