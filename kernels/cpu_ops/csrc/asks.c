/* What a round's sessions bring and ask for, judged all at once; kernels/round_asks.py is Python's face. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>

#include "buffers.h"
#include "tables.h"

/* take_round(facts, seats, round, base_len, num_rows, shapes, max_rows, most_len): of SessionColumns, whose facts are
 * arrived_len, newest_round, max_len and state. */
PyObject *py_take_round(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    enum { ARRIVED, NEWEST, MAX_LEN, STATE };
    enum { IDLE, WAITING };
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[2];
    if (!has_count(given, 8) || !integers(args + 6, v, 2)) return NULL;
    const Py_buffer *facts = array(&buffers, args[0], 8, 2, PyBUF_WRITABLE);
    const Py_buffer *seats = facts ? array(&buffers, args[1], 8, 1, 0) : NULL;
    const Py_buffer *round = seats ? array(&buffers, args[2], 8, 1, 0) : NULL;
    const Py_buffer *base_len = round ? array(&buffers, args[3], 8, 1, 0) : NULL;
    const Py_buffer *num_rows = base_len ? array(&buffers, args[4], 8, 1, 0) : NULL;
    const Py_buffer *shapes = num_rows ? array(&buffers, args[5], 8, 2, 0) : NULL;
    if (!shapes) goto done;
    const int64_t count = seats->shape[0], num_seats = facts->shape[1];
    if (facts->shape[0] != 4 || round->shape[0] != count || base_len->shape[0] != count || num_rows->shape[0] != count ||
        shapes->shape[0] != 4 || shapes->shape[1] != count) {
        PyErr_SetString(PyExc_ValueError, "the columns of a round disagree");
        goto done;
    }
    int64_t *column = facts->buf, i = 0;
    for (; i < count; i++) {
        const int64_t seat = ((const int64_t *)seats->buf)[i], rows = ((const int64_t *)num_rows->buf)[i];
        const int64_t base = ((const int64_t *)base_len->buf)[i], steps = ((const int64_t *)shapes->buf)[i];
        if (seat < 0 || seat >= num_seats || rows < 1 || rows > v[0]) break;
        const int64_t *own = column + seat;
        if (own[STATE * num_seats] != IDLE || own[ARRIVED * num_seats] != base) break;
        if (base + rows > own[MAX_LEN * num_seats] || steps > v[1] - base - rows) break;
        if (((const int64_t *)round->buf)[i] <= own[NEWEST * num_seats]) break;
        column[STATE * num_seats + seat] = WAITING; /* so that the session does not pass a second time */
    }
    const int64_t passed = i;
    while (i-- > 0) {
        int64_t *own = column + ((const int64_t *)seats->buf)[i];
        if (passed < count) own[STATE * num_seats] = IDLE;
        else {
            own[ARRIVED * num_seats] = ((const int64_t *)base_len->buf)[i] + ((const int64_t *)num_rows->buf)[i];
            own[NEWEST * num_seats] = ((const int64_t *)round->buf)[i];
        }
    }
    result = PyBool_FromLong(passed == count);
done:
    release(&buffers);
    return result;
}

/* survey(shapes, seats, capacity, base_len, num_rows, most_room) */
PyObject *py_survey(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t most_room;
    if (!has_count(given, 6) || !integers(args + 5, &most_room, 1)) return NULL;
    const Py_buffer *shapes = array(&buffers, args[0], 8, 2, 0);
    const Py_buffer *seats = shapes ? array(&buffers, args[1], 8, 1, 0) : NULL;
    const Py_buffer *capacity = seats ? array(&buffers, args[2], 8, 1, 0) : NULL;
    const Py_buffer *base_len = capacity ? array(&buffers, args[3], 8, 1, 0) : NULL;
    const Py_buffer *num_rows = base_len ? array(&buffers, args[4], 8, 1, 0) : NULL;
    if (!num_rows) goto done;
    const int64_t count = seats->shape[0], *numbers = shapes->buf, *seat = seats->buf;
    if (count < 1 || shapes->shape[0] != 4 || shapes->shape[1] != count || base_len->shape[0] != count ||
        num_rows->shape[0] != count) {
        PyErr_SetString(PyExc_ValueError, "the columns of a batch disagree");
        goto done;
    }
    int64_t asking = 0, first_room = 0, is_one = 1;
    for (int64_t i = 0; i < count; i++) {
        if (seat[i] < 0 || seat[i] >= capacity->shape[0]) {
            PyErr_Format(PyExc_IndexError, "there is no seat %lld", (long long)seat[i]);
            goto done;
        }
        asking += numbers[i] > 0;
        for (int64_t n = 0; n < 3; n++) is_one &= numbers[n * count + i] == numbers[n * count];
        int64_t room = ((const int64_t *)capacity->buf)[seat[i]] - ((const int64_t *)base_len->buf)[i] -
                       ((const int64_t *)num_rows->buf)[i];
        if (room > most_room) room = most_room;
        if (i == 0) first_room = room;
        is_one &= room == first_room;
    }
    if (is_one && asking == count)
        result = Py_BuildValue("(L(LLLL))", (long long)asking, (long long)numbers[0], (long long)numbers[count],
                               (long long)numbers[2 * count], (long long)first_room);
    else
        result = Py_BuildValue("(LO)", (long long)asking, Py_None);
done:
    release(&buffers);
    return result;
}
