/* A round's table, which answers.c, asks.c and wire.c share, and the functions that tables.c gives the module for other files. */

#pragma once

#include "buffers.h"

/* Rows of a round's table, int64 [NUM_TABLE_ROWS, sessions]; kernels/round_wire.py says what they hold. */
enum { SESSIONS, ROUNDS, COMMITTED_LEN, ARRIVED_S, SEATS, BASE_LENS, ROWS, SHAPES, NUM_TABLE_ROWS = SHAPES + 4 };

/* A round's table; NULL with an exception set where it is none. */
static inline const Py_buffer *table_of(Buffers *buffers, PyObject *object, int flags) {
    const Py_buffer *table = array(buffers, object, 8, 2, flags);
    if (!table || table->shape[0] == NUM_TABLE_ROWS) return table;
    PyErr_Format(PyExc_ValueError, "a round's table of %d rows is expected, not of %zd", NUM_TABLE_ROWS, table->shape[0]);
    return NULL;
}

extern PyMethodDef table_methods[];

PyObject *py_extend(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_grow(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_take_round(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_answered_stream(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_survey(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_look(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_read_extend(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_write_rows(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_write_verify(PyObject *self, PyObject *const *args, Py_ssize_t given);
