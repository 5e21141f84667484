/* A stage: where a step's integers wait for their copy to the device. Every place that is written is checked first. */

#pragma once

#include "buffers.h"

/* A stage and its layout: the byte at which each section begins, and how many there are of what. No number is negative or
 * larger than the stage. */
typedef struct {
    char *at;
    int64_t size;
    const int64_t *layout;
} Stage;

static inline int stage_of(Buffers *buffers, PyObject *const *args, Py_ssize_t fields, Stage *out) {
    const Py_buffer *stage = array(buffers, args[0], 1, 1, PyBUF_WRITABLE);
    const Py_buffer *layout = array(buffers, args[1], 8, 1, 0);
    if (!layout) return 0;
    if (layout->shape[0] != fields) {
        PyErr_Format(PyExc_ValueError, "a layout of %zd numbers is expected, not of %zd", fields, layout->shape[0]);
        return 0;
    }
    *out = (Stage){.at = stage->buf, .size = stage->len, .layout = layout->buf};
    for (Py_ssize_t i = 0; i < fields; i++)
        if (out->layout[i] < 0 || out->layout[i] > out->size) {
            PyErr_Format(PyExc_ValueError, "number %zd of a layout, %lld, is none of a stage of %lld bytes", i,
                         (long long)out->layout[i], (long long)out->size);
            return 0;
        }
    return 1;
}

/* Section ``field`` of the layout, which is to hold so many bytes; NULL with an exception set where it cannot. */
static inline void *section(const Stage *stage, int field, int64_t num_bytes) {
    const int64_t start = stage->layout[field];
    if (num_bytes >= 0 && num_bytes <= stage->size - start) return stage->at + start;
    PyErr_Format(PyExc_ValueError, "section %d of a layout, %lld bytes at %lld, lies outside its stage of %lld", field,
                 (long long)num_bytes, (long long)start, (long long)stage->size);
    return NULL;
}
