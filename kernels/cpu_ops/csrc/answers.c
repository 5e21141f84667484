/* What a draft answers: a VerifyInput that fills a SpeculateResponse, from columns or from trees as a device leaves them, to
 * its bytes; kernels/round_wire.py is Python's face. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "tables.h"
#include "varint.h"

/* Field numbers of a SpeculateResponse and of its VerifyInput, whose first is the incarnation, a number. */
enum { VERIFY = 2, TABLE_COLUMNS = COMMITTED_LEN + 1, NUM_VERIFY_COLUMNS = TABLE_COLUMNS + 3 };

/* int64 or int32. */
typedef struct {
    const void *at;
    int64_t count, item_size;
} Numbers;

/* Signed numbers travel as the 64 bits of their two's complement. */
static uint64_t value_at(const Numbers *numbers, int64_t i) {
    return numbers->item_size == 8 ? ((const uint64_t *)numbers->at)[i]
                                   : (uint64_t)(int64_t)((const int32_t *)numbers->at)[i];
}

/* The message of these columns. */
static PyObject *verify_of(uint64_t incarnation, const Numbers *columns) {
    size_t sizes[NUM_VERIFY_COLUMNS], total = 0;
    if (incarnation) total = 1 + varint_size(incarnation);
    for (int i = 0; i < NUM_VERIFY_COLUMNS; i++) {
        sizes[i] = 0;
        for (int64_t n = 0; n < columns[i].count; n++) sizes[i] += varint_size(value_at(&columns[i], n));
        if (sizes[i]) total += 1 + varint_size(sizes[i]) + sizes[i];
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(1 + varint_size(total) + total));
    if (!result) return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(result);
    *at++ = VERIFY << 3 | WIRE_BYTES;
    at = put_varint(at, total);
    if (incarnation) {
        *at++ = 1 << 3 | WIRE_VARINT;
        at = put_varint(at, incarnation);
    }
    for (int i = 0; i < NUM_VERIFY_COLUMNS; i++) {
        if (!sizes[i]) continue;
        *at++ = (uint8_t)((i + 2) << 3 | WIRE_BYTES);
        at = put_varint(at, sizes[i]);
        for (int64_t n = 0; n < columns[i].count; n++) at = put_varint(at, value_at(&columns[i], n));
    }
    return result;
}

/* The columns of a message that a table holds: its first rows. 0 with an exception set where it has fewer. */
static int take_table(Buffers *buffers, PyObject *object, Numbers *columns) {
    const Py_buffer *table = array(buffers, object, 8, 2, 0);
    if (!table) return 0;
    if (table->shape[0] < TABLE_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "a table of %d rows at least is expected, not of %zd", TABLE_COLUMNS,
                     table->shape[0]);
        return 0;
    }
    for (int i = 0; i < TABLE_COLUMNS; i++)
        columns[i] = (Numbers){(const char *)table->buf + i * table->shape[1] * 8, table->shape[1], 8};
    return 1;
}

/* write_verify(incarnation, table, num_nodes, tokens, parents) */
PyObject *py_write_verify(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    Numbers columns[NUM_VERIFY_COLUMNS];
    if (!has_count(given, 5)) return NULL;
    const uint64_t incarnation = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred()) return NULL;
    if (!take_table(&buffers, args[1], columns)) goto done;
    for (int i = TABLE_COLUMNS; i < NUM_VERIFY_COLUMNS; i++) {
        const Py_buffer *numbers = array(&buffers, args[i - TABLE_COLUMNS + 2], i == TABLE_COLUMNS ? 8 : 4, 1, 0);
        if (!numbers) goto done;
        columns[i] = (Numbers){numbers->buf, numbers->shape[0], numbers->itemsize};
    }
    result = verify_of(incarnation, columns);
done:
    release(&buffers);
    return result;
}

/* GrowingTrees.nodes as bytes: int32 [count, width], a row each of the number of nodes, then most tokens, most parents. */
typedef struct {
    const char *at;
    int64_t count, width, most;
} TreeRows;

static int32_t row_value(const TreeRows *rows, int64_t tree, int64_t i) {
    int32_t value;
    memcpy(&value, rows->at + (tree * rows->width + i) * 4, sizeof value);
    return value;
}

/* 0 with an exception set where they are not the rows of count trees. */
static int take_rows(Buffers *buffers, PyObject *object, int64_t count, TreeRows *out) {
    const Py_buffer *bytes = array(buffers, object, 1, 1, 0);
    if (!bytes) return 0;
    const int64_t values = bytes->len / 4;
    *out = (TreeRows){bytes->buf, count, count ? values / count : 1, count ? (values / count - 1) / 2 : 0};
    int fits = bytes->len % 4 == 0 && values == count * out->width && out->width % 2;
    for (int64_t i = 0; fits && i < count; i++) {
        const int32_t nodes = row_value(out, i, 0);
        fits = nodes >= 0 && nodes <= out->most;
    }
    if (!fits) PyErr_Format(PyExc_ValueError, "the rows of %lld trees are expected", (long long)count);
    return fits;
}

/* write_rows(incarnation, table, rows) */
PyObject *py_write_rows(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    Numbers columns[NUM_VERIFY_COLUMNS];
    TreeRows rows;
    int64_t *counts = NULL;
    if (!has_count(given, 3)) return NULL;
    const uint64_t incarnation = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred()) return NULL;
    if (!take_table(&buffers, args[1], columns) || !take_rows(&buffers, args[2], columns[0].count, &rows)) goto done;
    const int64_t count = rows.count, room = count * rows.most;
    counts = malloc((size_t)(8 * count + 8 * room + 1));
    if (!counts) {
        PyErr_NoMemory();
        goto done;
    }
    int32_t *tokens = (int32_t *)(counts + count), *parents = tokens + room;
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *row = rows.at + i * rows.width * 4;
        const int32_t nodes = row_value(&rows, i, 0);
        counts[i] = nodes;
        memcpy(tokens + total, row + 4, (size_t)nodes * 4);
        memcpy(parents + total, row + 4 + rows.most * 4, (size_t)nodes * 4);
        total += nodes;
    }
    columns[TABLE_COLUMNS] = (Numbers){counts, count, 8};
    columns[TABLE_COLUMNS + 1] = (Numbers){tokens, total, 4};
    columns[TABLE_COLUMNS + 2] = (Numbers){parents, total, 4};
    result = verify_of(incarnation, columns);
done:
    free(counts);
    release(&buffers);
    return result;
}

/* answered_stream(table, trees, streams): trees are rows as bytes, or the number of nodes of each, int64. */
PyObject *py_answered_stream(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    TreeRows rows;
    if (!has_count(given, 3)) return NULL;
    const Py_buffer *table = table_of(&buffers, args[0], 0), *num_nodes = NULL;
    if (!table) goto done;
    const int64_t count = table->shape[1], *numbers = table->buf;
    const int has_rows = PyBytes_Check(args[1]);
    if (has_rows ? !take_rows(&buffers, args[1], count, &rows) : !(num_nodes = array(&buffers, args[1], 8, 1, 0)))
        goto done;
    const Py_buffer *streams = array(&buffers, args[2], 8, 1, 0);
    if (!streams) goto done;
    const int64_t *stream = streams->buf;
    if (count < 1 || (num_nodes && num_nodes->shape[0] != count)) {
        PyErr_SetString(PyExc_ValueError, "one tree a session is expected");
        goto done;
    }
    int64_t first = 0, is_one = 1;
    for (int64_t i = 0; i < count; i++) {
        const int64_t seat = numbers[SEATS * count + i];
        if (seat < 0 || seat >= streams->shape[0]) {
            PyErr_Format(PyExc_IndexError, "there is no seat %lld", (long long)seat);
            goto done;
        }
        const int64_t nodes = has_rows ? row_value(&rows, i, 0) : ((const int64_t *)num_nodes->buf)[i];
        if (i == 0) first = stream[seat];
        is_one &= stream[seat] == first && nodes > 0 && numbers[ROUNDS * count + i] >= 0;
    }
    if (is_one) result = PyLong_FromLongLong(first);
    else {
        Py_INCREF(Py_None);
        result = Py_None;
    }
done:
    release(&buffers);
    return result;
}
