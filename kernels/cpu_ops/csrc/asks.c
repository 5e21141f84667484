/* What a round's sessions bring and ask for, judged all at once; kernels/round_asks.py is Python's face. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "buffers.h"
#include "tables.h"

/* The seat of a session, -1 where it has none; -2 with an exception set. */
static int64_t seat_of(PyObject *seats, int64_t session) {
    PyObject *number = PyLong_FromUnsignedLongLong((unsigned long long)session);
    if (!number) return -2;
    PyObject *seat = PyDict_GetItemWithError(seats, number);
    Py_DECREF(number);
    if (!seat) return PyErr_Occurred() ? -2 : -1;
    const int64_t found = PyLong_AsLongLong(seat);
    return found == -1 && PyErr_Occurred() ? -2 : found;
}

/* take_round(facts, seats, table, arrived_s, max_rows, most_len): facts are those of SessionColumns, arrived_len,
 * newest_round, max_len and state; seats is a dict. */
PyObject *py_take_round(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    enum { ARRIVED, NEWEST, MAX_LEN, STATE };
    enum { IDLE, WAITING };
    Buffers buffers = {.count = 0};
    PyObject *result = NULL;
    int64_t v[2];
    if (!has_count(given, 6) || !integers(args + 4, v, 2)) return NULL;
    const double arrived_s = PyFloat_AsDouble(args[3]);
    if (arrived_s == -1.0 && PyErr_Occurred()) return NULL;
    const Py_buffer *facts = array(&buffers, args[0], 8, 2, PyBUF_WRITABLE);
    const Py_buffer *table = table_of(&buffers, args[2], PyBUF_WRITABLE);
    if (!table) goto done;
    if (facts->shape[0] != 4 || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "four rows of facts and a dict of seats are expected");
        goto done;
    }
    const int64_t count = table->shape[1], num_seats = facts->shape[1];
    int64_t *column = facts->buf, *numbers = table->buf, i;
    for (i = 0; i < count; i++) {
        const int64_t seat = seat_of(args[1], numbers[SESSIONS * count + i]);
        if (seat < -1) goto done;
        numbers[SEATS * count + i] = seat;
        memcpy(&numbers[ARRIVED_S * count + i], &arrived_s, sizeof arrived_s);
    }
    for (i = 0; i < count; i++) {
        const int64_t *ask = numbers + i;
        const int64_t seat = ask[SEATS * count], rows = ask[ROWS * count], base = ask[BASE_LENS * count];
        if (seat < 0 || seat >= num_seats || rows < 1 || rows > v[0]) break;
        const int64_t *own = column + seat;
        if (own[STATE * num_seats] != IDLE || own[ARRIVED * num_seats] != base) break;
        if (rows > own[MAX_LEN * num_seats] - base || ask[SHAPES * count] > v[1] - base - rows) break;
        if (ask[ROUNDS * count] <= own[NEWEST * num_seats]) break;
        column[STATE * num_seats + seat] = WAITING; /* so that the session does not pass a second time */
    }
    const int64_t passed = i;
    while (i-- > 0) {
        int64_t *own = column + numbers[SEATS * count + i];
        if (passed < count) own[STATE * num_seats] = IDLE;
        else {
            own[ARRIVED * num_seats] = numbers[BASE_LENS * count + i] + numbers[ROWS * count + i];
            own[NEWEST * num_seats] = numbers[ROUNDS * count + i];
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
    const Py_buffer *seats = array(&buffers, args[1], 8, 1, 0);
    const Py_buffer *capacity = array(&buffers, args[2], 8, 1, 0);
    const Py_buffer *base_len = array(&buffers, args[3], 8, 1, 0);
    const Py_buffer *num_rows = array(&buffers, args[4], 8, 1, 0);
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
