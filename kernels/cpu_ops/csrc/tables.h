/* The functions of tables.c, asks.c and wire.c, for the module. */

#pragma once

extern PyMethodDef table_methods[];

PyObject *py_take_round(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_survey(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_read_extend(PyObject *self, PyObject *const *args, Py_ssize_t given);

PyObject *py_write_verify(PyObject *self, PyObject *const *args, Py_ssize_t given);
