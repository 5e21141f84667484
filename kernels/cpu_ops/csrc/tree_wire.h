/* Messages of a round, as protobuf writes and reads them: columns of integers, packed.
 *
 * kernels/tree_wire.py is Python's face and says what each function does. */

#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "buffers.h"
#include "trees.h"
#include "varint.h"

/* The low 64 bits of an int, which of a negative one are protobuf's int64. 0 with an exception set for what is none. */
static int as_uint64(PyObject *object, uint64_t *value) {
    *value = PyLong_AsUnsignedLongLongMask(object);
    return *value != (uint64_t)-1 || !PyErr_Occurred();
}

/* Columns of an ExtendInput that the target writes, and the numbers of their fields. */
enum { ASK_SESSION, ASK_ROUND, ASK_BASE, ASK_TOKENS, ASK_ACCEPTED, ASK_ROWS, ASK_PROPOSES, ASK_SHAPES,
       NUM_ASK_COLUMNS = ASK_SHAPES + 4 };
static const uint8_t ask_fields[NUM_ASK_COLUMNS] = {2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13};
enum { ASK_INCARNATION = 1, ASK_FEATURES = 7, REQUEST_EXTEND = 3, TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_DATA = 3 };

typedef struct {
    uint64_t *values;
    int64_t count;
    size_t size; /* of the values as they travel */
} AskColumn;

/* A list of count ints; 0 with an exception set for another. */
static int fill_column(PyObject *list, AskColumn *column) {
    if (PyList_Size(list) != column->count) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the columns of the asks disagree");
        return 0;
    }
    for (int64_t i = 0; i < column->count; i++)
        if (!as_uint64(PyList_GetItem(list, i), &column->values[i])) return 0;
    return 1;
}

/* The four columns of shapes, a list; 0 with an exception set for what is none. */
static int fill_shapes(PyObject *shapes, AskColumn *columns) {
    static const char *const names[] = {"num_steps", "eagle_topk", "num_draft_tokens", "min_path_permille"};
    PyObject *last = NULL;
    if (PyList_Size(shapes) != columns->count) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "one shape a session is expected");
        return 0;
    }
    for (int64_t i = 0; i < columns->count; i++) {
        PyObject *shape = PyList_GetItem(shapes, i);
        for (int n = 0; n < 4; n++) {
            uint64_t *value = &columns[n].values[i];
            if (shape == last) {
                *value = value[-1];
                continue;
            }
            PyObject *number = PyObject_GetAttrString(shape, names[n]);
            const int is_number = number && as_uint64(number, value);
            Py_XDECREF(number);
            if (!is_number) return 0;
        }
        last = shape;
    }
    return 1;
}

/* What follows from the columns; how many bytes each takes. 0 with an exception set for a row too few or too many. */
static int finish_columns(AskColumn *columns) {
    const int64_t b = columns[ASK_SESSION].count, num_tokens = columns[ASK_TOKENS].count;
    uint64_t rows = 0, permille = 0;
    for (int64_t i = 0; i < b && rows <= (uint64_t)num_tokens; i++) {
        const uint64_t count = columns[ASK_ROWS].values[i];
        columns[ASK_ACCEPTED].values[i] = count ? count - 1 : 0;
        columns[ASK_PROPOSES].values[i] = 1;
        rows = count > (uint64_t)num_tokens ? count : rows + count;
        permille |= columns[ASK_SHAPES + 3].values[i];
    }
    if (rows != (uint64_t)num_tokens) {
        PyErr_SetString(PyExc_ValueError, "the sessions' rows are not those of the tokens");
        return 0;
    }
    if (!permille) columns[ASK_SHAPES + 3].count = 0;
    for (int i = 0; i < NUM_ASK_COLUMNS; i++)
        for (int64_t n = 0; n < columns[i].count; n++) columns[i].size += varint_size(columns[i].values[n]);
    return 1;
}

static uint8_t *put_head(uint8_t *at, int field, uint64_t size) {
    *at++ = (uint8_t)(field << 3 | WIRE_BYTES);
    return put_varint(at, size);
}

/* The message up to its features' bytes: of dtype, width a row, num_bytes in all. */
static PyObject *message_of(uint64_t incarnation, const AskColumn *columns, uint64_t dtype, uint64_t width,
                            uint64_t num_bytes) {
    const uint64_t rows = (uint64_t)columns[ASK_TOKENS].count, shape = varint_size(rows) + varint_size(width);
    const uint64_t tensor = (dtype ? 1 + varint_size(dtype) : 0) + 1 + varint_size(shape) + shape + 1 + varint_size(num_bytes);
    uint64_t extend = (incarnation ? 1 + varint_size(incarnation) : 0) + 1 + varint_size(tensor + num_bytes) + tensor;
    for (int i = 0; i < NUM_ASK_COLUMNS; i++)
        if (columns[i].size) extend += 1 + varint_size(columns[i].size) + columns[i].size;
    PyObject *message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(1 + varint_size(extend + num_bytes) + extend));
    if (!message) return NULL;
    uint8_t *at = put_head((uint8_t *)PyBytes_AsString(message), REQUEST_EXTEND, extend + num_bytes);
    if (incarnation) {
        *at++ = ASK_INCARNATION << 3 | WIRE_VARINT;
        at = put_varint(at, incarnation);
    }
    for (int i = 0; i < NUM_ASK_COLUMNS; i++) {
        if (!columns[i].size) continue;
        at = put_head(at, ask_fields[i], columns[i].size);
        for (int64_t n = 0; n < columns[i].count; n++) at = put_varint(at, columns[i].values[n]);
    }
    at = put_head(at, ASK_FEATURES, tensor + num_bytes);
    if (dtype) {
        *at++ = TENSOR_DTYPE << 3 | WIRE_VARINT;
        at = put_varint(at, dtype);
    }
    at = put_head(at, TENSOR_SHAPE, shape);
    at = put_varint(put_varint(at, rows), width);
    put_head(at, TENSOR_DATA, num_bytes);
    return message;
}

PyDoc_STRVAR(write_extend_doc,
             "write_extend(incarnation, session, round, base_committed_len, num_tokens, shapes, verified_id, dtype,\n"
             "feature_size, features) -> bytes: a SpeculateRequest that is an ExtendInput, up to the features' bytes, a\n"
             "list, which end it. Columns are lists of ints, but for shapes. ValueError where they disagree.");

static PyObject *write_extend(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    AskColumn columns[NUM_ASK_COLUMNS] = {{0}};
    uint64_t incarnation, dtype, width, num_bytes = 0;
    if (!has_count(given, 10)) return NULL;
    const Py_ssize_t b = PyList_Size(args[1]), rows = PyList_Size(args[6]), num_parts = PyList_Size(args[9]);
    if (b < 0 || rows < 0 || num_parts < 0 || !as_uint64(args[0], &incarnation) || !as_uint64(args[7], &dtype) ||
        !as_uint64(args[8], &width))
        return NULL;
    for (Py_ssize_t i = 0; i < num_parts; i++) {
        const Py_ssize_t size = PyObject_Size(PyList_GetItem(args[9], i));
        if (size < 0) return NULL;
        num_bytes += (uint64_t)size;
    }
    uint64_t *values = malloc((size_t)((NUM_ASK_COLUMNS - 1) * b + rows + 1) * sizeof *values), *next = values;
    if (!values) return PyErr_NoMemory();
    for (int i = 0; i < NUM_ASK_COLUMNS; next += columns[i++].count) {
        columns[i].values = next;
        columns[i].count = i == ASK_TOKENS ? rows : b;
    }
    PyObject *message = NULL;
    if (fill_column(args[1], &columns[ASK_SESSION]) && fill_column(args[2], &columns[ASK_ROUND]) &&
        fill_column(args[3], &columns[ASK_BASE]) && fill_column(args[4], &columns[ASK_ROWS]) &&
        fill_shapes(args[5], &columns[ASK_SHAPES]) && fill_column(args[6], &columns[ASK_TOKENS]) &&
        finish_columns(columns))
        message = message_of(incarnation, columns, dtype, width, num_bytes);
    free(values);
    return message;
}

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
