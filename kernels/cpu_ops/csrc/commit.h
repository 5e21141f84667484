/* What a walk brings the requests of a step. kernels/step_trees.py is Python's face and says what it does. */

#pragma once

#include <stdint.h>
#include <string.h>

#include "trees.h"

static PyObject *list_of_int32(const int32_t *values, int64_t count) {
    PyObject *list = PyList_New(count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *number = PyLong_FromLong(values[i]);
        if (!number || PyList_SetItem(list, i, number) != 0) Py_CLEAR(list);
    }
    return list;
}

/* Whether each tree's tokens are there, in an array of total, and its request; the first that is not stands in at. */
static int are_committable(const RequestTable *requests, const int64_t *heads, const int32_t *accepted, int64_t b,
                           int64_t total, int64_t *at) {
    int64_t start = 0;
    for (*at = 0; *at < b; start += (int64_t)accepted[*at] + 1, ++*at) {
        const int64_t row = heads[HEAD_ROW * b + *at], base = heads[HEAD_BASE * b + *at];
        if (accepted[*at] < 0 || accepted[*at] >= total - start) return 0;
        if (row < 0 || row >= requests->num_rows || base < 0 || base > INT32_MAX) return 0;
    }
    return start == total;
}

PyDoc_STRVAR(commit_walk_doc,
             "commit_walk(tokens, page_ids, facts, heads, accept_length, verified_id, accepted_indices, step) ->\n"
             "(starts, is_full, rows, tokens). Writes tokens and facts. Lists: where each tree's tokens start, the\n"
             "accepted indices, and the verified ids; is_full: whether a request has as many tokens as it is allowed.\n"
             "ValueError for what does not fit, and then nothing is written.");

static PyObject *commit_walk(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    RequestTable requests;
    PyObject *lists[3] = {NULL}, *result = NULL;
    if (!has_count(given, 8)) return NULL;
    const int64_t step = PyLong_AsLongLong(args[7]);
    if (step == -1 && PyErr_Occurred()) return NULL;
    if (!take_requests(&buffers, args, PyBUF_WRITABLE, &requests)) goto done;
    const Py_buffer *heads = array(&buffers, args[3], 8, 2, 0);
    const Py_buffer *accepted = array(&buffers, args[4], 4, 1, 0);
    const Py_buffer *ids = array(&buffers, args[5], 4, 1, 0);
    const Py_buffer *path = array(&buffers, args[6], 4, 1, 0);
    if (!path) goto done;
    const int64_t b = accepted->shape[0], total = ids->shape[0], *head = heads->buf;
    const int32_t *accept_length = accepted->buf, *tokens = ids->buf;
    int64_t at = 0;
    if (heads->shape[0] != NUM_HEADS || heads->shape[1] != b || path->shape[0] != total ||
        !are_committable(&requests, head, accept_length, b, total, &at)) {
        PyErr_Format(PyExc_ValueError, "the arrays of the walk do not fit each other at tree %lld", (long long)at);
        goto done;
    }
    lists[0] = PyList_New(b);
    lists[1] = list_of_int32(path->buf, total);
    lists[2] = list_of_int32(tokens, total);
    if (!lists[0] || !lists[1] || !lists[2]) goto done;
    int64_t start = 0;
    int is_full = 0;
    for (int64_t r = 0; r < b; r++) {
        const int64_t count = (int64_t)accept_length[r] + 1, row = head[HEAD_ROW * b + r], base = head[HEAD_BASE * b + r];
        const int64_t room = requests.context_length - base - 1;
        PyObject *number = PyLong_FromLongLong(start);
        if (!number || PyList_SetItem(lists[0], r, number) != 0) goto done;
        if (room > 0)
            memcpy(requests.tokens + row * requests.context_length + base + 1, tokens + start,
                   (size_t)(count < room ? count : room) * 4);
        requests.facts[COMMITTED * requests.num_rows + row] = base + count;
        requests.facts[LAST_STEP * requests.num_rows + row] = step;
        is_full |= count >= head[HEAD_ALLOWED * b + r];
        start += count;
    }
    result = Py_BuildValue("(OOOO)", lists[0], is_full ? Py_True : Py_False, lists[1], lists[2]);
done:
    for (int i = 0; i < 3; i++) Py_XDECREF(lists[i]);
    release(&buffers);
    return result;
}
