/* Arguments of a function: arrays as buffers, which are let go of together, and integers. */

#pragma once

#define MAX_BUFFERS 16

typedef struct {
    Py_buffer views[MAX_BUFFERS];
    int count;
    int has_failed; /* an exception is set */
} Buffers;

static inline void release(Buffers *buffers) {
    while (buffers->count) PyBuffer_Release(&buffers->views[--buffers->count]);
}

/* The next argument as a C-contiguous array; NULL with an exception set where it is another, and for all that follow. */
static inline Py_buffer *array(Buffers *buffers, PyObject *object, Py_ssize_t item_size, int ndim, int flags) {
    if (buffers->has_failed) return NULL;
    Py_buffer *view = &buffers->views[buffers->count];
    buffers->has_failed = 1;
    if (PyObject_GetBuffer(object, view, PyBUF_ND | flags) != 0) return NULL;
    buffers->count++;
    if (view->itemsize == item_size && view->ndim == ndim) {
        buffers->has_failed = 0;
        return view;
    }
    PyErr_Format(PyExc_TypeError, "an array of %d dimensions and %zd bytes an item is expected, not of %d and %zd", ndim,
                 item_size, view->ndim, view->itemsize);
    return NULL;
}

/* Reads exactly count integers; returns 0 with an exception set where one is none. */
static inline int integers(PyObject *const *args, int64_t *values, int count) {
    for (int i = 0; i < count; i++) {
        values[i] = PyLong_AsLongLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

static inline int has_count(Py_ssize_t given, Py_ssize_t count) {
    if (given == count) return 1;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", count, given);
    return 0;
}
