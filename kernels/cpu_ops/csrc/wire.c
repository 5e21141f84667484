/* An ExtendInput that fills a SpeculateRequest, from its bytes to columns; kernels/round_wire.py is Python's face.
 *
 * The reader knows what protobuf writes: every field once, repeated numbers packed. Whatever else comes is left to protobuf. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "buffers.h"
#include "tables.h"
#include "varint.h"

/* Field numbers of protos/paceline/v1. */
enum { EXTEND = 3 };
enum { INCARNATION = 1, SESSION = 2, ROUND = 3, BASE_LEN = 4, TOKENS = 5, ACCEPT_LENGTH = 6, FEATURES = 7, NUM_ROWS = 8,
       PROPOSES = 9, NUM_STEPS = 10, TOPK = 11, NUM_NODES = 12, MIN_PERMILLE = 13, NUM_FIELDS = 14 };
enum { DTYPE = 1, SHAPE = 2, DATA = 3, NUM_TENSOR_FIELDS = 4 };

/* The fields of a message, each at most once; 0 for what is no such message. Numbers stand in values. */
static int fields_of(Span message, int count, Span *spans, uint64_t *values, int numbers) {
    memset(spans, 0, (size_t)count * sizeof *spans);
    while (message.at < message.stop) {
        uint64_t size;
        const uint8_t tag = *message.at++; /* of all fields that are known, one byte */
        if (tag >> 3 == 0 || tag >> 3 >= count) return 0;
        const int field = tag >> 3, is_number = numbers >> field & 1;
        const uint8_t *start = message.at;
        if (spans[field].at || (tag & 7) != (is_number ? WIRE_VARINT : WIRE_BYTES)) return 0;
        if (!get_varint(&message, &size)) return 0;
        if (!is_number && message.at - start > 4) return 0;
        if (is_number) {
            values[field] = size;
            spans[field] = (Span){message.at, message.at};
            continue;
        }
        if (size > (uint64_t)(message.stop - message.at)) return 0;
        spans[field] = (Span){message.at, message.at + size};
        message.at += size;
    }
    return 1;
}

/* Reads exactly count numbers below limit; 0 where there are others. */
static int column(Span packed, int64_t *to, int64_t count, uint64_t limit) {
    uint64_t value;
    for (int64_t i = 0; i < count; i++) {
        if (!get_varint(&packed, &value) || (limit && value >= limit)) return 0;
        to[i] = (int64_t)value;
    }
    return packed.at == packed.stop;
}

static int is_packed(Span packed) {
    uint64_t value;
    while (packed.at < packed.stop)
        if (!get_varint(&packed, &value)) return 0;
    return 1;
}

/* Columns of numbers below 2**32, and the rows of a round's table that they are. The last may be absent: then all are 0. */
static const struct {
    int field, row;
} columns[] = {{ROUND, ROUNDS},    {BASE_LEN, BASE_LENS},   {NUM_ROWS, ROWS},           {NUM_STEPS, SHAPES},
               {TOPK, SHAPES + 1}, {NUM_NODES, SHAPES + 2}, {MIN_PERMILLE, SHAPES + 3}};
enum { NUM_COLUMNS = sizeof columns / sizeof *columns };

static int is_absent(const Span *fields, int i) { return columns[i].field == MIN_PERMILLE && !fields[MIN_PERMILLE].at; }

/* Whether each column has count numbers. Asked before the table is made: a session takes 88 bytes of that, one of a column. */
static int have_count(const Span *fields, int64_t count) {
    for (int i = 0; i < NUM_COLUMNS; i++)
        if (!is_absent(fields, i) && count_varints(fields[columns[i].field]) != count) return 0;
    return count_varints(fields[PROPOSES]) == count;
}

/* Whether num_steps, eagle_topk, num_draft_tokens and min_path_permille, each below 2**32 and so many numbers apart, are a
 * TreeShape of paceline/types.py. */
static int is_shape(const int64_t *numbers, int64_t apart) {
    enum { MAX_STEPS = 64, MAX_NODES = 64, MAX_SCRATCH_NODES = 64, MAX_PERMILLE = 999 };
    const int64_t steps = numbers[0], topk = numbers[apart], nodes = numbers[2 * apart], permille = numbers[3 * apart];
    if (steps < 1 || steps > MAX_STEPS || topk < 1 || topk > MAX_NODES || nodes < 2 || nodes > MAX_NODES) return 0;
    if (permille > MAX_PERMILLE || (steps - 1) * topk > MAX_SCRATCH_NODES) return 0;
    return nodes <= 1 + topk + (steps - 1) * topk * topk;
}

/* read_extend(payload, vocab_size, incarnation, width) */
PyObject *py_read_extend(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    const uint64_t limit = (uint64_t)1 << 32;
    Span outer[EXTEND + 1], fields[NUM_FIELDS], tensor[NUM_TENSOR_FIELDS];
    uint64_t values[NUM_FIELDS] = {0}, tensor_values[NUM_TENSOR_FIELDS] = {0}, token;
    PyObject *result = NULL, *table = NULL;
    Py_buffer payload;
    if (!has_count(given, 4)) return NULL;
    const int64_t vocab_size = PyLong_AsLongLong(args[1]), width = PyLong_AsLongLong(args[3]);
    const uint64_t incarnation = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &payload, PyBUF_SIMPLE) != 0) return NULL;
    const uint8_t *begin = payload.buf;
    if (!fields_of((Span){begin, begin + payload.len}, EXTEND + 1, outer, values, 0)) goto other;
    if (!outer[EXTEND].at || outer[1].at || outer[2].at) goto other;
    if (!fields_of(outer[EXTEND], NUM_FIELDS, fields, values, 1 << INCARNATION)) goto other;
    if (!fields_of(fields[FEATURES], NUM_TENSOR_FIELDS, tensor, tensor_values, 1 << DTYPE)) goto other;
    if (!is_packed(fields[ACCEPT_LENGTH]) || tensor_values[DTYPE] > INT32_MAX) goto other;
    if (values[INCARNATION] != incarnation) goto other;
    const int64_t count = count_varints(fields[SESSION]), rows = count_varints(fields[TOKENS]);
    int64_t shape[2];
    if (!tensor[DATA].at) tensor[DATA] = (Span){begin, begin}; /* an empty field is not written */
    if (!count || !have_count(fields, count)) goto other;
    if (count_varints(tensor[SHAPE]) != 2 || !column(tensor[SHAPE], shape, 2, limit)) goto other;
    if (shape[0] != rows || shape[1] != width) goto other;
    table = PyByteArray_FromStringAndSize(NULL, NUM_TABLE_ROWS * count * 8 + rows * 4);
    int64_t *to = table ? (int64_t *)PyByteArray_AsString(table) : NULL;
    if (!to) goto done;
    if (!column(fields[SESSION], to + SESSIONS * count, count, 0)) goto other;
    for (int i = 0; i < NUM_COLUMNS; i++) {
        int64_t *at = to + columns[i].row * count;
        if (is_absent(fields, i)) memset(at, 0, (size_t)count * 8);
        else if (!column(fields[columns[i].field], at, count, limit)) goto other;
    }
    Span proposes = fields[PROPOSES];
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t asks;
        int64_t *own = to + i;
        if (!get_varint(&proposes, &asks) || (asks && !is_shape(own + SHAPES * count, count))) goto other;
        for (int n = 0; n < 4 && !asks; n++) own[(SHAPES + n) * count] = 0;
        total += own[ROWS * count];
        own[COMMITTED_LEN * count] = own[BASE_LENS * count] + own[ROWS * count];
        own[SEATS * count] = -1;
        own[ARRIVED_S * count] = 0;
    }
    if (proposes.at != proposes.stop || total != rows) goto other;
    int32_t *tokens = (int32_t *)(to + NUM_TABLE_ROWS * count);
    for (int64_t i = 0; i < rows; i++) {
        if (!get_varint(&fields[TOKENS], &token) || token >= (uint64_t)vocab_size) goto other;
        tokens[i] = (int32_t)token;
    }
    if (fields[TOKENS].at != fields[TOKENS].stop) goto other;
    result = Py_BuildValue("(OLLLLL)", table, (long long)count, (long long)rows, (long long)tensor_values[DTYPE],
                           (long long)(tensor[DATA].at - begin), (long long)(tensor[DATA].stop - begin));
    goto done;
other:
    Py_INCREF(Py_None);
    result = Py_None;
done:
    Py_XDECREF(table);
    PyBuffer_Release(&payload);
    return result;
}
