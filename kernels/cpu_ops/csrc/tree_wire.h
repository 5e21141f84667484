/* What a draft answers, as the target reads it: a VerifyInput that fills a SpeculateResponse, from its bytes to trees.
 *
 * kernels/tree_wire.py is Python's face and says what each function does. */

#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "buffers.h"
#include "trees.h"
#include "varint.h"

/* The content of a field of bytes, behind its tag. */
static int get_bytes(Span *span, Span *content) {
    uint64_t size;
    if (!get_varint(span, &size) || size > (uint64_t)(span->stop - span->at)) return 0;
    content->at = span->at;
    content->stop = span->at += size;
    return 1;
}

/* A packed column as a list of ints; NULL with an exception set, or without one where a value is cut off. */
static PyObject *list_of(Span span) {
    const int64_t count = count_varints(span);
    PyObject *list = PyList_New(count);
    for (int64_t i = 0; list && i < count; i++) {
        uint64_t value;
        PyObject *number = get_varint(&span, &value) ? PyLong_FromUnsignedLongLong(value) : NULL;
        if (!number || PyList_SetItem(list, i, number) != 0) Py_CLEAR(list);
    }
    if (list && span.at != span.stop) Py_CLEAR(list);
    return list;
}

static int fill_int32(Span span, int32_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t value;
        if (!get_varint(&span, &value)) return 0;
        values[i] = (int32_t)value;
    }
    return span.at == span.stop;
}

/* Fields of VerifyInput. */
enum { INCARNATION = 1, SESSION, ROUND, BASE, NUM_NODES, TOKEN, PARENT, NUM_COLUMNS };

/* Whether a VerifyInput is the fields above, each once. */
static int find_columns(Span message, uint64_t *incarnation, Span *columns) {
    int seen = 0;
    while (message.at < message.stop) {
        uint64_t tag;
        if (!get_varint(&message, &tag) || tag >> 3 >= NUM_COLUMNS || seen >> (tag >> 3) & 1) return 0;
        const int number = (int)(tag >> 3);
        seen |= 1 << number;
        if (number == INCARNATION ? (tag & 7) != WIRE_VARINT || !get_varint(&message, incarnation)
                                  : (tag & 7) != WIRE_BYTES || !get_bytes(&message, &columns[number]))
            return 0;
    }
    return seen == (1 << NUM_COLUMNS) - 2;
}

/* The trees of so many nodes each, all in tokens and parents, [num_nodes]: a list of bytes. NULL, with an exception set
 * or without one, where one is none or holds an id that is not below vocab_size. */
static PyObject *trees_of(Span counts, const int32_t *tokens, const int32_t *parents, int64_t num_nodes,
                          int64_t vocab_size) {
    const int64_t num_trees = count_varints(counts);
    int64_t at = 0;
    uint64_t count;
    for (int64_t i = 0; i < num_nodes; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab_size) return NULL;
    PyObject *trees = PyList_New(num_trees);
    for (int64_t r = 0; trees && r < num_trees; r++) {
        PyObject *nodes = NULL;
        if (get_varint(&counts, &count) && count <= (uint64_t)(num_nodes - at) &&
            is_tree(tokens + at, parents + at, (int64_t)count))
            nodes = PyBytes_FromStringAndSize(NULL, 8 * (Py_ssize_t)count);
        if (!nodes || PyList_SetItem(trees, r, nodes) != 0) {
            Py_CLEAR(trees);
            break;
        }
        char *to = PyBytes_AsString(nodes);
        memcpy(to, tokens + at, (size_t)count * 4);
        memcpy(to + 4 * count, parents + at, (size_t)count * 4);
        at += (int64_t)count;
    }
    if (trees && (at != num_nodes || counts.at != counts.stop)) Py_CLEAR(trees);
    return trees;
}

PyDoc_STRVAR(read_trees_doc,
             "read_trees(payload, number, vocab_size) -> (incarnation, session, round, base_committed_len, nodes) of the\n"
             "VerifyInput that is all of the message, in the field of that number: lists, and of bytes, int32 [2, n],\n"
             "tokens and parents. None where anything else is there, or anything is unsound.");

static PyObject *read_trees(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    if (!has_count(given, 3)) return NULL;
    const int64_t number = PyLong_AsLongLong(args[1]), vocab_size = PyLong_AsLongLong(args[2]);
    Py_buffer payload;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &payload, PyBUF_SIMPLE) != 0) return NULL;
    Span whole = {payload.buf, (const uint8_t *)payload.buf + payload.len}, message, columns[NUM_COLUMNS];
    PyObject *lists[4] = {NULL}, *found = NULL;
    int32_t *nodes = NULL;
    uint64_t tag, incarnation = 0;
    if (!get_varint(&whole, &tag) || tag != ((uint64_t)number << 3 | WIRE_BYTES) || !get_bytes(&whole, &message) ||
        whole.at != whole.stop || !find_columns(message, &incarnation, columns))
        goto done;
    const int64_t num_nodes = count_varints(columns[TOKEN]), count = count_varints(columns[SESSION]);
    if (count_varints(columns[PARENT]) != num_nodes || count_varints(columns[ROUND]) != count ||
        count_varints(columns[BASE]) != count || count_varints(columns[NUM_NODES]) != count)
        goto done;
    nodes = malloc((size_t)num_nodes * 8 + 1);
    if (!nodes) {
        PyErr_NoMemory();
        goto done;
    }
    if (!fill_int32(columns[TOKEN], nodes, num_nodes) || !fill_int32(columns[PARENT], nodes + num_nodes, num_nodes))
        goto done;
    lists[3] = trees_of(columns[NUM_NODES], nodes, nodes + num_nodes, num_nodes, vocab_size);
    if (!lists[3]) goto done;
    for (int i = 0; i < 3; i++)
        if (!(lists[i] = list_of(columns[SESSION + i]))) goto done;
    found = Py_BuildValue("KOOOO", (unsigned long long)incarnation, lists[0], lists[1], lists[2], lists[3]);
done:
    PyBuffer_Release(&payload);
    free(nodes);
    for (int i = 0; i < 4; i++) Py_XDECREF(lists[i]);
    if (found || PyErr_Occurred()) return found;
    Py_RETURN_NONE;
}
