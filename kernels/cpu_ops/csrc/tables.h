/* The functions of tables.c, asks.c and wire.c, for the module. */

#pragma once

/* Rows of a round's table, int64 [NUM_TABLE_ROWS, sessions]; kernels/round_wire.py says what they hold. */
enum { SESSIONS, ROUNDS, COMMITTED_LEN, ARRIVED_S, SEATS, BASE_LENS, ROWS, SHAPES, NUM_TABLE_ROWS = SHAPES + 4 };

extern PyMethodDef table_methods[];

PyObject *py_take_round(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_answered_stream(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_survey(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_read_extend(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_split_trees(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_write_verify(PyObject *self, PyObject *const *args, Py_ssize_t given);
