/* Python's door to the kernels: plain integers in (addresses, sizes), nothing owned, no state. Callers check shapes.
 *
 * OpenMP's symbols are left for the loader to find in the copy that torch has mapped, so that one pool of threads
 * serves both: import torch first, and do not link a runtime.
 */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdlib.h>

#include "isa.h"

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

/* Blocks are handed out as threads come for them: a core that others use slows the call by its share, not to its pace. */
static int run_linear(const Isa *isa, LinearJob *job, const void *x, int num_threads) {
    const int64_t size = job->is_bf16 ? 2 : 4;
    job->kp = (job->k + MAX_STEP - 1) / MAX_STEP * MAX_STEP;
    float *scratch = aligned_alloc(64, (size_t)(job->m * job->kp + MAX_STEP) * 4);
    if (!scratch) return 0;
    job->x = scratch;
    int64_t block = BLOCK_BYTES / (size * (job->k ? job->k : 1)) / 12 * 12;
    if (block < 12) block = 12;
    int64_t next = 0;
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < job->m; row++)
            isa->widen(scratch + row * job->kp, (const char *)x + row * job->k * size, job->k, job->kp, job->is_bf16);
        for (;;) {
            const int64_t n0 = __atomic_fetch_add(&next, block, __ATOMIC_RELAXED);
            if (n0 >= job->n) break;
            isa->linear_block(job, n0, n0 + block < job->n ? n0 + block : job->n);
        }
    }
    free(scratch);
    return 1;
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
    LinearJob job = {.weight = (const void *)v[2], .bias = (const void *)v[3], .out = (void *)v[4], .m = v[5], .n = v[6],
                     .k = v[7], .is_bf16 = v[8] != 0, .out_is_bf16 = v[9] != 0};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_linear(isa, &job, (const void *)v[1], (int)v[10]);
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
