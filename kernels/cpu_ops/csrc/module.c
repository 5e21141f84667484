/* Python's door to the kernels: plain integers in (addresses, sizes), nothing owned but the helper threads of pool.h.
 * Callers check shapes. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "block.h"

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

/* Small jobs keep the GIL: no other thread could do much in the time. */
static void call_rows(RowFn fn, const void *job, int64_t rows, int64_t width, int64_t num_threads) {
    if (rows * width < PARALLEL_ELEMENTS) {
        run_rows(fn, job, rows, 1);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    run_rows(fn, job, rows, (int)num_threads);
    Py_END_ALLOW_THREADS
}

/* Whether all slots are in the cache; an IndexError is set where one is not. */
static int check_slots(const int64_t *slots, int64_t rows, int64_t num_slots) {
    for (int64_t i = 0; i < rows; i++)
        if (slots[i] < 0 || slots[i] >= num_slots) {
            PyErr_Format(PyExc_IndexError, "slot %lld of row %lld is not one of the cache's %lld slots",
                         (long long)slots[i], (long long)i, (long long)num_slots);
            return 0;
        }
    return 1;
}

PyDoc_STRVAR(pack_doc,
             "pack(isa, weight, out, n, k, item_size)\n"
             "out = the row-major weight[n, k] in the order that the products of this instruction set read; see linear.inc.");

static PyObject *pack(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[6];
    if (!read_integers(args, given, v, 6)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    isa->pack((const char *)v[1], (char *)v[2], v[3], v[4], v[5]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(linear_doc,
             "linear(isa, x, weight, bias, out, m, n, k, is_bf16, out_is_bf16, num_threads)\n"
             "out[m, n] = x[m, k] @ weight[n, k].T + bias[n]. Addresses of row-major data, the weight packed; x, weight and\n"
             "bias are bf16 or all fp32; bias 0 for none. Releases the GIL. MemoryError when the scratch of m rows cannot be had.");

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

PyDoc_STRVAR(rms_norm_doc,
             "rms_norm(isa, x, weight, residual, out, rows, width, is_bf16, num_threads, eps)\n"
             "out = rms_norm(x) * weight over rows of width; residual 0 for none, else residual += x first and\n"
             "out = rms_norm(residual) * weight. All of one type; out may be x.");

static PyObject *rms_norm(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[9];
    if (!read_integers(args, given - 1, v, 9)) return NULL;
    const double eps = PyFloat_AsDouble(args[9]);
    if (eps == -1.0 && PyErr_Occurred()) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const NormJob job = {.x = (const void *)v[1], .weight = (const void *)v[2], .residual = (void *)v[3],
                         .out = (void *)v[4], .width = v[6], .is_bf16 = v[7] != 0, .eps = (float)eps};
    call_rows(isa->norm_row, &job, v[5], v[6], v[8]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(silu_mul_doc,
             "silu_mul(isa, gate_up, out, rows, width, is_bf16, num_threads)\n"
             "out[rows, width] = silu(gate) * up of gate_up[rows, 2 * width].");

static PyObject *silu_mul(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[7];
    if (!read_integers(args, given, v, 7)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const SiluJob job = {.gate_up = (const void *)v[1], .out = (void *)v[2], .width = v[4], .is_bf16 = v[5] != 0};
    call_rows(isa->silu_mul_row, &job, v[3], v[4], v[6]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(rope_doc,
             "rope(isa, q, k, cos_sin, rows, q_stride, k_stride, q_heads, k_heads, head_dim, is_bf16, num_threads)\n"
             "Rotates q and k by halves in place. Strides are elements from row to row; cos_sin is fp32 [rows, head_dim].");

static PyObject *rope(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[12];
    if (!read_integers(args, given, v, 12)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const RopeJob job = {.q = (void *)v[1], .k = (void *)v[2], .cos_sin = (const float *)v[3], .q_stride = v[5],
                         .k_stride = v[6], .q_heads = v[7], .k_heads = v[8], .head_dim = v[9], .is_bf16 = v[10] != 0};
    call_rows(isa->rope_row, &job, v[4], (v[7] + v[8]) * v[9], v[11]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(append_doc,
             "append(src, src_stride, slots, cache, rows, num_slots, row_bytes)\n"
             "cache[slots[i]] = src row i. src_stride in bytes, slots int64. IndexError, before anything is written,\n"
             "where a slot is not in [0, num_slots).");

static PyObject *append(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[7];
    if (!read_integers(args, given, v, 7)) return NULL;
    const int64_t *slots = (const int64_t *)v[2];
    if (!check_slots(slots, v[4], v[5])) return NULL;
    for (int64_t i = 0; i < v[4]; i++)
        memcpy((char *)v[3] + slots[i] * v[6], (const char *)v[0] + i * v[1], (size_t)v[6]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(attention_doc,
             "attention(isa, q, k_cache, v_cache, out, ancestors, page_ids, tiles, num_tiles, q_stride, heads, kv_heads,\n"
             "          head_dim, page_size, is_bf16, num_threads, scale)\n"
             "Attention of the rows that the tiles cover; kernels/cpu_ops/attention.py makes the tiles. Releases the GIL.");

static PyObject *attention(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[16];
    if (!read_integers(args, given - 1, v, 16)) return NULL;
    const double scale = PyFloat_AsDouble(args[16]);
    if (scale == -1.0 && PyErr_Occurred()) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const AttentionJob job = {.q = (const void *)v[1], .k_cache = (const void *)v[2], .v_cache = (const void *)v[3],
                              .out = (void *)v[4], .ancestors = (const uint64_t *)v[5],
                              .page_ids = (const int32_t *)v[6], .q_stride = v[9], .heads = v[10], .kv_heads = v[11],
                              .head_dim = v[12], .page_size = v[13], .is_bf16 = v[14] != 0, .scale = (float)scale};
    const AttentionTiles tiles = {.table = (const int64_t *)v[7], .num_tiles = v[8]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_attention(isa, &job, &tiles, (int)v[15]);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(attention_block_doc,
             "attention_block(isa, x, qkv, qkv_bias, q_norm, k_norm, output, output_bias, cos_sin, slots, k_cache, v_cache,\n"
             "                out, ancestors, page_ids, tiles, num_tiles, rows, input, hidden, heads, kv_heads, head_dim,\n"
             "                page_size, num_slots, is_bf16, num_threads, eps, scale)\n"
             "A layer's attention from the normed rows to what it adds to the residual; see block.h. Addresses that are 0:\n"
             "the layer has no such weight. Releases the GIL. IndexError as append.");

static PyObject *attention_block(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[27];
    if (!read_integers(args, given - 2, v, 27)) return NULL;
    const double eps = PyFloat_AsDouble(args[27]), scale = PyFloat_AsDouble(args[28]);
    if (PyErr_Occurred()) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const AttentionBlock block = {
        .x = (const void *)v[1], .qkv = (const void *)v[2], .qkv_bias = (const void *)v[3], .q_norm = (const void *)v[4],
        .k_norm = (const void *)v[5], .output = (const void *)v[6], .output_bias = (const void *)v[7],
        .cos_sin = (const float *)v[8], .slots = (const int64_t *)v[9], .k_cache = (void *)v[10], .v_cache = (void *)v[11],
        .out = (void *)v[12], .ancestors = (const uint64_t *)v[13], .page_ids = (const int32_t *)v[14],
        .tiles = {.table = (const int64_t *)v[15], .num_tiles = v[16]}, .rows = v[17], .input = v[18], .hidden = v[19],
        .heads = v[20], .kv_heads = v[21], .head_dim = v[22], .page_size = v[23], .is_bf16 = v[25] != 0,
        .num_threads = (int)v[26], .eps = (float)eps, .scale = (float)scale};
    if (!check_slots(block.slots, block.rows, v[24])) return NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_attention_block(isa, &block);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(mlp_doc,
             "mlp(isa, x, gate_up, down, out, rows, hidden, inner, is_bf16, num_threads)\n"
             "out = down(silu(gate) * up) of x[rows, hidden], the gate's rows first in gate_up. Releases the GIL.");

static PyObject *mlp(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[10];
    if (!read_integers(args, given, v, 10)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const MlpBlock block = {.x = (const void *)v[1], .gate_up = (const void *)v[2], .down = (const void *)v[3],
                            .out = (void *)v[4], .rows = v[5], .hidden = v[6], .inner = v[7], .is_bf16 = v[8] != 0,
                            .num_threads = (int)v[9]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_mlp_block(isa, &block);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(top_k_doc,
             "top_k(isa, scores, values, indices, rows, width, k, is_log_prob, num_threads)\n"
             "The k <= width largest of each row of fp32 scores[rows, width], descending, ties to the lowest index: fp32 values\n"
             "and int64 indices [rows, k]; with is_log_prob, values of log_softmax(scores).");

static PyObject *top_k(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t v[9];
    if (!read_integers(args, given, v, 9)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const TopKJob job = {.scores = (const float *)v[1], .values = (float *)v[2], .indices = (int64_t *)v[3],
                         .width = v[5], .k = v[6], .is_log_prob = v[7] != 0};
    call_rows(isa->top_k_row, &job, v[4], v[5], v[8]);
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
    {"pack", (PyCFunction)(void (*)(void))pack, METH_FASTCALL, pack_doc},
    {"linear", (PyCFunction)(void (*)(void))linear, METH_FASTCALL, linear_doc},
    {"rms_norm", (PyCFunction)(void (*)(void))rms_norm, METH_FASTCALL, rms_norm_doc},
    {"silu_mul", (PyCFunction)(void (*)(void))silu_mul, METH_FASTCALL, silu_mul_doc},
    {"rope", (PyCFunction)(void (*)(void))rope, METH_FASTCALL, rope_doc},
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, append_doc},
    {"attention", (PyCFunction)(void (*)(void))attention, METH_FASTCALL, attention_doc},
    {"attention_block", (PyCFunction)(void (*)(void))attention_block, METH_FASTCALL, attention_block_doc},
    {"mlp", (PyCFunction)(void (*)(void))mlp, METH_FASTCALL, mlp_doc},
    {"top_k", (PyCFunction)(void (*)(void))top_k, METH_FASTCALL, top_k_doc},
    {"isas", isas, METH_NOARGS, isas_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
