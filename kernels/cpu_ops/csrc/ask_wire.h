/* What the target asks of a draft: an ExtendInput that fills a SpeculateRequest, from lists to its bytes.
 *
 * kernels/tree_wire.py is Python's face and says what each function does. */

#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "buffers.h"
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
