/* Attention's tables of a batch as it is, copies into a stage, and the module's functions for all tables.
 *
 * kernels/round_tables.py is Python's face, for columns kernels/step_trees.py, and says what each function does. Arrays
 * come as buffers; their item sizes and dimensions are checked, and so is every place that is written: the caller's
 * sizes are not trusted. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "stage.h"
#include "tables.h"
#include "units.h"

/* choose_rows(rule, q_indptr, prefix_len, local_len, is_causal, invariant) */
static PyObject *py_choose_rows(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t invariant;
    Requests requests;
    if (!has_count(given, 6) || !integers(args + 5, &invariant, 1)) return NULL;
    const Rule *rule = rule_of(&buffers, args[0]);
    if (rule && requests_of(&buffers, args + 1, invariant != 0, &requests))
        result = PyLong_FromLongLong(choose_rows(rule, &requests));
    release(&buffers);
    return result;
}

/* make_units(rule, q_indptr, prefix_len, local_len, is_causal, invariant, tile_rows, out) */
static PyObject *py_make_units(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[2];
    Requests requests;
    if (!has_count(given, 8) || !integers(args + 5, v, 2)) return NULL;
    const Rule *rule = rule_of(&buffers, args[0]);
    if (rule && requests_of(&buffers, args + 1, v[0] != 0, &requests)) {
        const Py_buffer *out = array(&buffers, args[7], 4, 1, PyBUF_WRITABLE);
        int64_t partials;
        const int64_t units = !out ? -1 : make_units(rule, &requests, v[1], out->buf, out->shape[0] / 4, &partials);
        if (units >= 0) result = Py_BuildValue("(LL)", (long long)units, (long long)partials);
    }
    release(&buffers);
    return result;
}

/* Of LoadLayout. */
enum { LOAD_COUNTS, LOAD_Q, LOAD_PREFIX, LOAD_LOCAL, LOAD_CAUSAL, LOAD_PAGE_INDPTR, LOAD_UNITS, LOAD_ANCESTORS,
       LOAD_PAGES, LOAD_MAX_UNITS, LOAD_FIELDS };

static int copy_section(const Stage *stage, int field, const Py_buffer *from) {
    void *to = section(stage, field, from->len);
    if (to) memcpy(to, from->buf, (size_t)from->len);
    return to != NULL;
}

/* load_batch(stage, layout, rule, variant, invariant, q_indptr, prefix_len, local_len, is_causal, page_indptr, ancestors,
 *      page_ids) */
static PyObject *py_load(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[2], partials;
    Stage stage;
    Requests r;
    if (!has_count(given, 12) || !integers(args + 3, v, 2) || !stage_of(&buffers, args, LOAD_FIELDS, &stage)) goto done;
    const Rule *rule = rule_of(&buffers, args[2]);
    if (!rule || !requests_of(&buffers, args + 5, v[1] != 0, &r)) goto done;
    const Py_buffer *batch = buffers.views + buffers.count - 4;
    const Py_buffer *page_indptr = array(&buffers, args[9], 4, 1, 0);
    const Py_buffer *ancestors = array(&buffers, args[10], 8, 1, 0);
    const Py_buffer *page_ids = array(&buffers, args[11], 4, 1, 0);
    if (!page_ids) goto done;
    const int64_t variant = v[0] ? v[0] : choose_rows(rule, &r), most = stage.layout[LOAD_MAX_UNITS];
    int32_t *counts = section(&stage, LOAD_COUNTS, 3 * 4), *causal = section(&stage, LOAD_CAUSAL, r.count * 4);
    int32_t *table = section(&stage, LOAD_UNITS, most * 16);
    if (!counts || !causal || !table) goto done;
    const int64_t units = make_units(rule, &r, variant, table, most, &partials);
    if (units < 0) goto done;
    counts[0] = (int32_t)units;
    counts[1] = r.q_indptr[r.count];
    counts[2] = (int32_t)r.count;
    for (int64_t i = 0; i < r.count; i++) causal[i] = r.is_causal[i] != 0;
    if (copy_section(&stage, LOAD_Q, &batch[0]) && copy_section(&stage, LOAD_PREFIX, &batch[1]) &&
        copy_section(&stage, LOAD_LOCAL, &batch[2]) && copy_section(&stage, LOAD_PAGE_INDPTR, page_indptr) &&
        copy_section(&stage, LOAD_ANCESTORS, ancestors) && copy_section(&stage, LOAD_PAGES, page_ids))
        result = PyLong_FromLongLong(variant);
done:
    release(&buffers);
    return result;
}

/* Copies so many bytes to byte ``at`` of a stage. Returns the byte behind them. */
static PyObject *copy_to_stage(Buffers *buffers, PyObject *into, int64_t at, const void *from, int64_t num_bytes) {
    const Py_buffer *stage = array(buffers, into, 1, 1, PyBUF_WRITABLE);
    if (!stage) return NULL;
    if (at < 0 || at > stage->len || num_bytes < 0 || num_bytes > stage->len - at) {
        PyErr_Format(PyExc_ValueError, "%lld bytes at %lld lie outside a stage of %zd", (long long)num_bytes,
                     (long long)at, stage->len);
        return NULL;
    }
    memcpy((char *)stage->buf + at, from, (size_t)num_bytes);
    return PyLong_FromLongLong(at + num_bytes);
}

/* copy_buffer(stage, at, buffer) */
static PyObject *py_copy_buffer(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    int64_t at;
    Py_buffer from;
    if (!has_count(given, 3) || !integers(args + 1, &at, 1) || PyObject_GetBuffer(args[2], &from, PyBUF_SIMPLE) != 0)
        return NULL;
    PyObject *result = copy_to_stage(&buffers, args[0], at, from.buf, from.len);
    PyBuffer_Release(&from);
    release(&buffers);
    return result;
}

/* copy_bytes(stage, at, address, num_bytes) */
static PyObject *py_copy_bytes(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    int64_t v[3];
    if (!has_count(given, 4) || !integers(args + 1, v, 3)) return NULL;
    PyObject *result = copy_to_stage(&buffers, args[0], v[0], (const void *)v[1], v[2]);
    release(&buffers);
    return result;
}

/* One column of the int64 stage, padded; layout: where it starts, how long it is, and what pads it. 0 with an exception
 * set where it does not fit. */
static int stage_column(PyObject *object, Py_ssize_t item_size, const Py_buffer *stage, const int64_t *layout) {
    Buffers buffers = {.count = 0};
    const Py_buffer *from = array(&buffers, object, item_size, 1, 0);
    const int64_t start = layout[0], length = layout[1], count = from ? from->shape[0] : 0;
    const int fits = start >= 0 && count <= length && length <= stage->shape[0] - start;
    if (from && !fits) PyErr_Format(PyExc_ValueError, "a column of %lld does not fit the stage", (long long)count);
    if (from && fits) {
        int64_t *column = (int64_t *)stage->buf + start;
        for (int64_t i = 0; i < count; i++)
            column[i] = item_size == 4 ? ((const int32_t *)from->buf)[i] : ((const int64_t *)from->buf)[i];
        for (int64_t i = count; i < length; i++) column[i] = layout[2];
    }
    release(&buffers);
    return from && fits;
}

/* stage_columns(stage, layout, narrow, wide) */
static PyObject *py_stage_columns(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    if (!has_count(given, 4)) return NULL;
    const Py_ssize_t num_narrow = PyTuple_Size(args[2]), num_wide = PyTuple_Size(args[3]);
    if (num_narrow < 0 || num_wide < 0) return NULL;
    const Py_buffer *stage = array(&buffers, args[0], 8, 1, PyBUF_WRITABLE);
    const Py_buffer *layouts = array(&buffers, args[1], 8, 1, 0);
    int done = layouts && layouts->shape[0] == 3 * (num_narrow + num_wide);
    if (layouts && !done) PyErr_SetString(PyExc_ValueError, "three numbers a column are expected");
    const int64_t *layout = done ? layouts->buf : NULL;
    for (Py_ssize_t i = 0; done && i < num_narrow; i++, layout += 3)
        done = stage_column(PyTuple_GetItem(args[2], i), 4, stage, layout);
    for (Py_ssize_t i = 0; done && i < num_wide; i++, layout += 3)
        done = stage_column(PyTuple_GetItem(args[3], i), 8, stage, layout);
    release(&buffers);
    if (!done) return NULL;
    Py_RETURN_NONE;
}

PyMethodDef table_methods[] = {
    {"choose_rows", (PyCFunction)(void (*)(void))py_choose_rows, METH_FASTCALL, NULL},
    {"make_units", (PyCFunction)(void (*)(void))py_make_units, METH_FASTCALL, NULL},
    {"load_batch", (PyCFunction)(void (*)(void))py_load, METH_FASTCALL, NULL},
    {"extend_tables", (PyCFunction)(void (*)(void))py_extend, METH_FASTCALL, NULL},
    {"growth_tables", (PyCFunction)(void (*)(void))py_grow, METH_FASTCALL, NULL},
    {"copy_bytes", (PyCFunction)(void (*)(void))py_copy_bytes, METH_FASTCALL, NULL},
    {"copy_buffer", (PyCFunction)(void (*)(void))py_copy_buffer, METH_FASTCALL, NULL},
    {"stage_columns", (PyCFunction)(void (*)(void))py_stage_columns, METH_FASTCALL, NULL},
    {"take_round", (PyCFunction)(void (*)(void))py_take_round, METH_FASTCALL, NULL},
    {"look", (PyCFunction)(void (*)(void))py_look, METH_FASTCALL, NULL},
    {"read_extend", (PyCFunction)(void (*)(void))py_read_extend, METH_FASTCALL, NULL},
    {"write_verify", (PyCFunction)(void (*)(void))py_write_verify, METH_FASTCALL, NULL},
    {"answered_stream", (PyCFunction)(void (*)(void))py_answered_stream, METH_FASTCALL, NULL},
    {"write_rows", (PyCFunction)(void (*)(void))py_write_rows, METH_FASTCALL, NULL},
    {"survey", (PyCFunction)(void (*)(void))py_survey, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
