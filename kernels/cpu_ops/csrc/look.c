/* A wait of a thread that must not sleep; kernels/busy_wait.py is Python's face. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <time.h>

#include "buffers.h"
#include "pause.h"
#include "tables.h"

enum { PAUSES = 20 }; /* between two looks: 1 us of an Intel Xeon */

static double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The descriptors of those that have something, as a list; NULL with an exception set. */
static PyObject *ready_of(const struct pollfd *polled, Py_ssize_t count) {
    PyObject *ready = PyList_New(0);
    for (Py_ssize_t i = 0; ready && i < count; i++) {
        if (!polled[i].revents) continue;
        PyObject *descriptor = PyLong_FromLong(polled[i].fd);
        if (!descriptor || PyList_Append(ready, descriptor) != 0) {
            Py_DECREF(ready);
            ready = NULL;
        }
        Py_XDECREF(descriptor);
    }
    return ready;
}

/* look(descriptors, for_s): a list of descriptors, which may be empty; looks at least once. */
PyObject *py_look(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    if (!has_count(given, 2)) return NULL;
    const Py_ssize_t count = PyList_Size(args[0]);
    const double for_s = PyFloat_AsDouble(args[1]);
    if (count < 0 || PyErr_Occurred()) return NULL;
    struct pollfd *polled = PyMem_Calloc((size_t)count, sizeof *polled);
    if (!polled) return PyErr_NoMemory();
    PyObject *ready = NULL;
    int found;
    for (Py_ssize_t i = 0; i < count; i++) {
        const long descriptor = PyLong_AsLong(PyList_GetItem(args[0], i));
        if (descriptor == -1 && PyErr_Occurred()) goto done;
        if (descriptor < 0 || descriptor > INT_MAX) {
            PyErr_Format(PyExc_ValueError, "%ld is no descriptor", descriptor);
            goto done;
        }
        polled[i] = (struct pollfd){.fd = (int)descriptor, .events = POLLIN};
    }
    Py_BEGIN_ALLOW_THREADS
    const double until_s = monotonic_s() + for_s;
    while ((found = poll(polled, (nfds_t)count, 0)) == 0 && monotonic_s() < until_s)
        for (int i = 0; i < PAUSES; i++) pause_core();
    if (found < 0 && errno == EINTR) found = 0; /* the main thread is to run its handlers */
    Py_END_ALLOW_THREADS
    ready = found < 0 ? PyErr_SetFromErrno(PyExc_OSError) : ready_of(polled, count);
done:
    PyMem_Free(polled);
    return ready;
}
