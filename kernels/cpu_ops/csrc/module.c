/* Python's door to the kernels: plain integers in (addresses, sizes), nothing owned, no state. Callers check shapes.
 *
 * OpenMP's symbols are left for the loader to find in the copy that torch has mapped, so that one pool of threads
 * serves both: import torch first, and do not link a runtime.
 */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "linear_job.h"

/* Reads exactly count integers; returns 0 with an exception set on a mismatch. */
static int read_integers(PyObject *const *args, Py_ssize_t given, int64_t *values, Py_ssize_t count) {
    if (given != count) {
        PyErr_Format(PyExc_TypeError, "expected %zd integers, got %zd", count, given);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = PyLong_AsLongLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

static const Isa *isa_at(int64_t index) {
    const Isa *table[NUM_ISAS];
    const int count = supported_isas(table);
    if (index >= 0 && index < count) return table[index];
    PyErr_Format(PyExc_ValueError, "instruction set %lld is not one of the %d that isas() lists", (long long)index, count);
    return NULL;
}

PyDoc_STRVAR(linear_doc,
             "linear(isa, x, weight, bias, out, m, n, k, is_bf16, out_is_bf16, num_threads)\n"
             "out[m, n] = x[m, k] @ weight[n, k].T + bias[n]. Addresses of row-major data; x, weight and bias are bf16 or\n"
             "all fp32; bias 0 for none. Releases the GIL. MemoryError when the scratch of m rows cannot be had.");

static PyObject *linear(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[11];
    if (!read_integers(args, given, v, 11)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    LinearJob job = {.x = (const void *)v[1], .weight = (const void *)v[2], .bias = (const void *)v[3], .out = (void *)v[4], .m = v[5], .n = v[6],
                     .k = v[7], .is_bf16 = v[8] != 0, .out_is_bf16 = v[9] != 0};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_linear(isa, &job, (int)v[10]);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(isas_doc, "isas() -> the names of the instruction sets that this CPU runs, best first.");

static PyObject *isas(PyObject *self, PyObject *unused) {
    const Isa *table[NUM_ISAS];
    const int count = supported_isas(table);
    PyObject *names = PyTuple_New(count);
    for (int i = 0; names && i < count; i++) {
        PyObject *name = PyUnicode_FromString(table[i]->name);
        if (!name || PyTuple_SetItem(names, i, name) != 0) {
            Py_DECREF(names);
            return NULL;
        }
    }
    return names;
}

static PyMethodDef methods[] = {
    {"linear", (PyCFunction)(void (*)(void))linear, METH_FASTCALL, linear_doc},
    {"isas", isas, METH_NOARGS, isas_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
