/* An ExtendInput that fills a SpeculateRequest, from its bytes to columns, and a VerifyInput that fills a
 * SpeculateResponse, from columns to its bytes; kernels/round_wire.py is Python's face.
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

/* read_extend(payload, vocab_size) */
PyObject *py_read_extend(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    static const int order[] = {ROUND, BASE_LEN, NUM_ROWS, NUM_STEPS, TOPK, NUM_NODES, MIN_PERMILLE};
    enum { NUM_COLUMNS = 8 };
    const uint64_t limit = (uint64_t)1 << 32;
    Span outer[EXTEND + 1], fields[NUM_FIELDS], tensor[NUM_TENSOR_FIELDS];
    uint64_t values[NUM_FIELDS] = {0}, tensor_values[NUM_TENSOR_FIELDS] = {0}, token;
    PyObject *result = NULL, *columns = NULL;
    Py_buffer payload;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "expected 2 arguments");
        return NULL;
    }
    const int64_t vocab_size = PyLong_AsLongLong(args[1]);
    if ((vocab_size == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[0], &payload, PyBUF_SIMPLE) != 0) return NULL;
    const uint8_t *begin = payload.buf;
    if (!fields_of((Span){begin, begin + payload.len}, EXTEND + 1, outer, values, 0)) goto other;
    if (!outer[EXTEND].at || outer[1].at || outer[2].at) goto other;
    if (!fields_of(outer[EXTEND], NUM_FIELDS, fields, values, 1 << INCARNATION)) goto other;
    if (!fields_of(fields[FEATURES], NUM_TENSOR_FIELDS, tensor, tensor_values, 1 << DTYPE)) goto other;
    if (!is_packed(fields[ACCEPT_LENGTH]) || tensor_values[DTYPE] > INT32_MAX) goto other;
    const int64_t count = count_varints(fields[SESSION]), rows = count_varints(fields[TOKENS]);
    int64_t shape[2];
    if (!tensor[DATA].at) tensor[DATA] = (Span){begin, begin}; /* an empty field is not written */
    if (!count || count_varints(tensor[SHAPE]) != 2 || !column(tensor[SHAPE], shape, 2, limit)) goto other;
    columns = PyBytes_FromStringAndSize(NULL, NUM_COLUMNS * count * 8 + rows * 4);
    int64_t *to = columns ? (int64_t *)PyBytes_AsString(columns) : NULL;
    if (!to) goto done;
    if (!column(fields[SESSION], to, count, 0)) goto other;
    for (int i = 0; i < NUM_COLUMNS - 1; i++) {
        int64_t *at = to + (i + 1) * count;
        if (order[i] == MIN_PERMILLE && !fields[MIN_PERMILLE].at) memset(at, 0, (size_t)count * 8);
        else if (!column(fields[order[i]], at, count, limit)) goto other;
    }
    Span proposes = fields[PROPOSES];
    int64_t total = 0, *shapes = to + 4 * count, is_one = 1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t asks;
        if (!get_varint(&proposes, &asks) || (asks && !shapes[i])) goto other;
        for (int n = 0; n < 4; n++) {
            if (!asks) shapes[n * count + i] = 0;
            is_one &= shapes[n * count + i] == shapes[n * count];
        }
        total += to[3 * count + i];
    }
    if (proposes.at != proposes.stop || total != rows || shape[0] != rows) goto other;
    int32_t *tokens = (int32_t *)(to + NUM_COLUMNS * count);
    for (int64_t i = 0; i < rows; i++) {
        if (!get_varint(&fields[TOKENS], &token) || token >= (uint64_t)vocab_size) goto other;
        tokens[i] = (int32_t)token;
    }
    if (fields[TOKENS].at != fields[TOKENS].stop) goto other;
    result = Py_BuildValue("(KLLLLLLiO)", (unsigned long long)values[INCARNATION], (long long)count, (long long)rows,
                           (long long)tensor_values[DTYPE], (long long)shape[1], (long long)(tensor[DATA].at - begin),
                           (long long)(tensor[DATA].stop - begin), (int)is_one, columns);
    goto done;
other:
    Py_INCREF(Py_None);
    result = Py_None;
done:
    Py_XDECREF(columns);
    PyBuffer_Release(&payload);
    return result;
}

/* Field numbers of a SpeculateResponse and of its VerifyInput, whose first is the incarnation, a number. */
enum { VERIFY = 2, NUM_VERIFY_COLUMNS = 6 };

/* Signed numbers travel as the 64 bits of their two's complement. */
static uint64_t value_at(const Py_buffer *numbers, Py_ssize_t i) {
    return numbers->itemsize == 8 ? ((const uint64_t *)numbers->buf)[i]
                                  : (uint64_t)(int64_t)((const int32_t *)numbers->buf)[i];
}

/* write_verify(incarnation, session, round, base_committed_len, num_nodes, tokens, parents) */
PyObject *py_write_verify(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    size_t sizes[NUM_VERIFY_COLUMNS], total = 0;
    if (!has_count(given, NUM_VERIFY_COLUMNS + 1)) return NULL;
    const uint64_t incarnation = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred()) return NULL;
    if (incarnation) total = 1 + varint_size(incarnation);
    for (int i = 0; i < NUM_VERIFY_COLUMNS; i++) {
        const Py_buffer *numbers = array(&buffers, args[i + 1], i < 4 ? 8 : 4, 1, 0);
        if (!numbers) goto done;
        sizes[i] = 0;
        for (Py_ssize_t n = 0; n < numbers->shape[0]; n++) sizes[i] += varint_size(value_at(numbers, n));
        if (sizes[i]) total += 1 + varint_size(sizes[i]) + sizes[i];
    }
    result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(1 + varint_size(total) + total));
    if (!result) goto done;
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
        const Py_buffer *numbers = &buffers.views[i];
        for (Py_ssize_t n = 0; n < numbers->shape[0]; n++) at = put_varint(at, value_at(numbers, n));
    }
done:
    release(&buffers);
    return result;
}
