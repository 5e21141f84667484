/* Python's door to the kernels: plain integers in (addresses, sizes), nothing owned but the helper threads of pool.h.
 * Callers check shapes. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "ask_wire.h"
#include "commit.h"
#include "grow.h"
#include "tables.h"
#include "tree_wire.h"
#include "trees.h"

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

/* Whether all indices are in their table; an IndexError is set where one is not. */
static int check_indices(const int64_t *indices, int64_t rows, int64_t limit, const char *what) {
    for (int64_t i = 0; i < rows; i++)
        if (indices[i] < 0 || indices[i] >= limit) {
            PyErr_Format(PyExc_IndexError, "%s %lld of row %lld is not one of %lld", what, (long long)indices[i],
                         (long long)i, (long long)limit);
            return 0;
        }
    return 1;
}

static Weight weight_of(int64_t data, int64_t is_rounded) { return (Weight){(const char *)data, is_rounded != 0}; }

PyDoc_STRVAR(pack_doc,
             "pack(isa, weight, out, n, k, item_size)\n"
             "out = the row-major weight[n, k] in the order that the products of this instruction set read; see linear.inc.");

static PyObject *pack(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[6];
    if (!read_integers(args, given, v, 6)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    isa->pack((const char *)v[1], (char *)v[2], v[3], v[4], v[5]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(pack_rounded_doc,
             "pack_rounded(isa, weight, out, n, k)\n"
             "out = the row-major int8 weight[n, k] in the order that the products of this instruction set read; see rounded.inc.\n"
             "k is a multiple of 32. The fp32 scales of the rows are to follow it in memory.");

static PyObject *pack_rounded(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[5];
    if (!read_integers(args, given, v, 5)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    isa->pack_rounded((const char *)v[1], (char *)v[2], v[3], v[4]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(linear_doc,
             "linear(isa, x, weight, is_rounded, bias, out, m, n, k, is_bf16, out_is_bf16, num_threads)\n"
             "out[m, n] = x[m, k] @ weight[n, k].T + bias[n]. Addresses of row-major data, the weight packed; x, weight and\n"
             "bias are bf16 or all fp32, or the weight is rounded; bias 0 for none. Releases the GIL. MemoryError when the scratch of m rows cannot be had.");

static PyObject *linear(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[12];
    if (!read_integers(args, given, v, 12)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    LinearJob job = {.x = (const void *)v[1], .weight = weight_of(v[2], v[3]), .bias = (const void *)v[4],
                     .out = (void *)v[5], .m = v[6], .n = v[7], .k = v[8], .is_bf16 = v[9] != 0, .out_is_bf16 = v[10] != 0};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_linear(isa, &job, (int)v[11]);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(rms_norm_doc,
             "rms_norm(isa, x, weight, residual, out, rows, width, is_bf16, num_threads, eps)\n"
             "out = rms_norm(x) * weight over rows of width; residual 0 for none, else residual += x first and\n"
             "out = rms_norm(residual) * weight. All of one type; out may be x.");

static PyObject *rms_norm(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
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

static PyObject *silu_mul(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
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

static PyObject *rope(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
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

static PyObject *append(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[7];
    if (!read_integers(args, given, v, 7)) return NULL;
    const int64_t *slots = (const int64_t *)v[2];
    if (!check_indices(slots, v[4], v[5], "slot")) return NULL;
    for (int64_t i = 0; i < v[4]; i++)
        memcpy((char *)v[3] + slots[i] * v[6], (const char *)v[0] + i * v[1], (size_t)v[6]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(attention_doc,
             "attention(isa, q, k_cache, v_cache, out, ancestors, page_ids, tiles, num_tiles, q_stride, heads, kv_heads,\n"
             "          head_dim, page_size, is_bf16, num_threads, scale)\n"
             "Attention of the rows that the tiles cover; kernels/cpu_ops/attention.py makes the tiles. Releases the GIL.");

static PyObject *attention(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
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
             "attention_block(isa, x, qkv, is_rounded, qkv_bias, q_norm, k_norm, output, is_rounded, output_bias, cos_sin, slots,\n"
             "                k_cache, v_cache, out, ancestors, page_ids, tiles, num_tiles, rows, input, hidden, heads, kv_heads,\n"
             "                head_dim, page_size, num_slots, is_bf16, num_threads, eps, scale)\n"
             "A layer's attention from the normed rows to what it adds to the residual; see block.h. Addresses that are 0:\n"
             "the layer has no such weight. Releases the GIL. IndexError as append.");

static PyObject *attention_block(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[29];
    if (!read_integers(args, given - 2, v, 29)) return NULL;
    const double eps = PyFloat_AsDouble(args[29]), scale = PyFloat_AsDouble(args[30]);
    if (PyErr_Occurred()) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const AttentionBlock block = {
        .x = (const void *)v[1], .qkv = weight_of(v[2], v[3]), .qkv_bias = (const void *)v[4], .q_norm = (const void *)v[5],
        .k_norm = (const void *)v[6], .output = weight_of(v[7], v[8]), .output_bias = (const void *)v[9],
        .cos_sin = (const float *)v[10], .slots = (const int64_t *)v[11], .k_cache = (void *)v[12], .v_cache = (void *)v[13],
        .out = (void *)v[14], .ancestors = (const uint64_t *)v[15], .page_ids = (const int32_t *)v[16],
        .tiles = {.table = (const int64_t *)v[17], .num_tiles = v[18]}, .rows = v[19], .input = v[20], .hidden = v[21],
        .heads = v[22], .kv_heads = v[23], .head_dim = v[24], .page_size = v[25], .is_bf16 = v[27] != 0,
        .num_threads = (int)v[28], .eps = (float)eps, .scale = (float)scale};
    if (!check_indices(block.slots, block.rows, v[26], "slot")) return NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_attention_block(isa, &block);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(mlp_doc,
             "mlp(isa, x, gate_up, is_rounded, down, is_rounded, out, rows, hidden, inner, is_bf16, num_threads)\n"
             "out = down(silu(gate) * up) of x[rows, hidden], the gate's rows first in gate_up. Releases the GIL.");

static PyObject *mlp(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[12];
    if (!read_integers(args, given, v, 12)) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    const MlpBlock block = {.x = (const void *)v[1], .gate_up = weight_of(v[2], v[3]), .down = weight_of(v[4], v[5]),
                            .out = (void *)v[6], .rows = v[7], .hidden = v[8], .inner = v[9], .is_bf16 = v[10] != 0,
                            .num_threads = (int)v[11]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_mlp_block(isa, &block);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* What the first 29 arguments of head_forward and head_trees say. */
static HeadBlock head_of(const int64_t *v, double eps, double norms_eps, double scale) {
    return (HeadBlock){
        .embedding = (const char *)v[1], .cos_sin = (const float *)v[3], .token_norm = (const void *)v[5],
        .feature_norm = (const void *)v[6], .post_norm = (const void *)v[7], .norm = (const void *)v[8],
        .norms_residual = v[9] != 0, .gate_up = weight_of(v[18], v[19]), .down = weight_of(v[20], v[21]), .inner = v[23],
        .eps = (float)eps,
        .attention = {.qkv = weight_of(v[10], v[11]), .qkv_bias = (const void *)v[12], .q_norm = (const void *)v[13],
                      .k_norm = (const void *)v[14], .output = weight_of(v[15], v[16]), .output_bias = (const void *)v[17],
                      .input = 2 * v[22], .hidden = v[22], .heads = v[24], .kv_heads = v[25], .head_dim = v[26],
                      .is_bf16 = v[27] != 0, .num_threads = (int)v[28], .eps = (float)norms_eps, .scale = (float)scale}};
}

PyDoc_STRVAR(head_forward_doc,
             "head_forward(isa, embedding, num_tokens, cos_sin, num_positions, token_norm, feature_norm, post_norm, norm,\n"
             "             norms_residual, qkv, is_rounded, qkv_bias, q_norm, k_norm, output, is_rounded, output_bias, gate_up,\n"
             "             is_rounded, down, is_rounded, hidden, inner, heads, kv_heads, head_dim, is_bf16, num_threads, tokens,\n"
             "             features, positions, slots, rows, k_cache, v_cache, num_slots, ancestors, page_ids, tiles, num_tiles,\n"
             "             page_size, out, eps, head_norms_eps, scale)\n"
             "A draft head's layer; see head.h. Releases the GIL. IndexError, before anything is written, for a token, position\n"
             "or slot out of range.");

static PyObject *head_forward(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[43];
    if (!read_integers(args, given - 3, v, 43)) return NULL;
    const double eps = PyFloat_AsDouble(args[43]), norms_eps = PyFloat_AsDouble(args[44]), scale = PyFloat_AsDouble(args[45]);
    if (PyErr_Occurred()) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    HeadBlock block = head_of(v, eps, norms_eps, scale);
    block.tokens = (const int64_t *)v[29];
    block.features = (const char *)v[30];
    block.positions = (const int64_t *)v[31];
    block.attention.slots = (const int64_t *)v[32];
    block.attention.rows = v[33];
    block.attention.k_cache = (void *)v[34];
    block.attention.v_cache = (void *)v[35];
    block.attention.ancestors = (const uint64_t *)v[37];
    block.attention.page_ids = (const int32_t *)v[38];
    block.attention.tiles = (AttentionTiles){.table = (const int64_t *)v[39], .num_tiles = v[40]};
    block.attention.page_size = v[41];
    block.out = (char *)v[42];
    if (!check_indices(block.tokens, v[33], v[2], "token") || !check_indices(block.positions, v[33], v[4], "position") ||
        !check_indices(block.attention.slots, v[33], v[36], "slot"))
        return NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_head_block(isa, &block);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* What the eight arguments of head_best and head_trees from norm on say. */
static HeadRanking ranking_of(const int64_t *v, double eps) {
    return (HeadRanking){.norm = (const void *)v[0], .lm_head = weight_of(v[1], v[2]), .target_ids = (const int64_t *)v[3],
                         .width = v[4], .vocabulary = v[5], .is_bf16 = v[6] != 0, .num_threads = (int)v[7],
                         .eps = (float)eps};
}

PyDoc_STRVAR(head_best_doc,
             "head_best(isa, norm, lm_head, is_rounded, target_ids, width, vocabulary, is_bf16, num_threads, hidden, values, ids,\n"
             "          rows, k, eps)\n"
             "The k likeliest draft tokens of each of hidden[rows, width]: fp32 log-probabilities and int64 target ids [rows, k],\n"
             "descending, ties to the lower draft id. norm 0 for none. Releases the GIL.");

static PyObject *head_best(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[14];
    if (!read_integers(args, given - 1, v, 14)) return NULL;
    const double eps = PyFloat_AsDouble(args[14]);
    if (PyErr_Occurred()) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    HeadRanking ranking = ranking_of(v + 1, eps);
    ranking.hidden = (const void *)v[9];
    ranking.values = (float *)v[10];
    ranking.ids = (int64_t *)v[11];
    ranking.rows = v[12];
    ranking.k = v[13];
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_head_ranking(isa, &ranking);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(head_trees_doc,
             "head_trees(the 29 arguments of head_forward up to num_threads, the 8 of head_best up to num_threads, asks, least,\n"
             "           num_asks, tokens, num_rows, features, page_ids, num_page_ids, page_size, k_cache, v_cache, nodes, eps,\n"
             "           head_norms_eps, scale)\n"
             "Writes rows and grows greedy trees; see grow.h. asks int64 [num_asks, 6], least fp32 [num_asks], tokens int64,\n"
             "page_ids int32, all within the caches. Releases the GIL. Before anything is written, IndexError for a token or\n"
             "position out of range, and ValueError where an ask needs more rows or pages than there are.");

/* Whether tokens and page_ids hold all that the asks read; ValueError where not. */
static int check_asks(const TreesJob *job, int64_t num_tokens, int64_t num_page_ids) {
    int64_t rows = 0;
    for (int64_t i = 0; i < job->num_asks; i++) {
        const TreeAsk *ask = job->asks + i;
        const int64_t scratch = ask->num_steps > 1 ? (ask->num_steps - 1) * ask->topk : 0;
        const int64_t places = ask->base_len + ask->num_rows + scratch, size = job->head.attention.page_size;
        const int64_t pages = ask->first_page + (places + size - 1) / size;
        rows += ask->num_rows;
        if (ask->num_rows < 1 || rows > num_tokens) {
            PyErr_Format(PyExc_ValueError, "ask %lld has %lld rows up to the %lldth; there are %lld tokens", (long long)i,
                         (long long)ask->num_rows, (long long)rows, (long long)num_tokens);
            return 0;
        }
        if (ask->first_page < 0 || pages > num_page_ids) {
            PyErr_Format(PyExc_ValueError, "ask %lld reads page ids %lld to %lld; there are %lld: give its session's pages, "
                         "those of its scratch nodes too", (long long)i, (long long)ask->first_page, (long long)pages - 1,
                         (long long)num_page_ids);
            return 0;
        }
    }
    return 1;
}

static PyObject *head_trees(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    int64_t v[49];
    if (!read_integers(args, given - 3, v, 49)) return NULL;
    const double eps = PyFloat_AsDouble(args[49]), norms_eps = PyFloat_AsDouble(args[50]), scale = PyFloat_AsDouble(args[51]);
    if (PyErr_Occurred()) return NULL;
    const Isa *isa = isa_at(v[0]);
    if (!isa) return NULL;
    TreesJob job = {.head = head_of(v, eps, norms_eps, scale), .ranking = ranking_of(v + 29, eps),
                    .asks = (const TreeAsk *)v[37], .least = (const float *)v[38], .num_asks = v[39],
                    .tokens = (const int64_t *)v[40], .features = (const char *)v[42], .nodes = (int32_t *)v[48]};
    job.head.attention.page_ids = (const int32_t *)v[43];
    job.head.attention.page_size = v[45];
    job.head.attention.k_cache = (void *)v[46];
    job.head.attention.v_cache = (void *)v[47];
    if (!check_indices(job.tokens, v[41], v[2], "token")) return NULL;
    for (int64_t i = 0; i < job.num_asks; i++) {
        const int64_t levels = job.asks[i].num_steps > 1 ? job.asks[i].num_steps - 1 : 0; /* past the rows */
        const int64_t last = job.asks[i].base_len + job.asks[i].num_rows - 1 + levels;
        if (!check_indices(&job.asks[i].base_len, 1, v[4], "position") || !check_indices(&last, 1, v[4], "position"))
            return NULL;
    }
    if (!check_asks(&job, v[41], v[44])) return NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run_trees(isa, &job);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(top_k_doc,
             "top_k(isa, scores, values, indices, rows, width, k, is_log_prob, num_threads)\n"
             "The k <= width largest of each row of fp32 scores[rows, width], descending, ties to the lowest index: fp32 values\n"
             "and int64 indices [rows, k]; with is_log_prob, values of log_softmax(scores).");

static PyObject *top_k(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
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

static PyObject *isas(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args)) {
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
    {"pack_rounded", (PyCFunction)(void (*)(void))pack_rounded, METH_FASTCALL, pack_rounded_doc},
    {"linear", (PyCFunction)(void (*)(void))linear, METH_FASTCALL, linear_doc},
    {"rms_norm", (PyCFunction)(void (*)(void))rms_norm, METH_FASTCALL, rms_norm_doc},
    {"silu_mul", (PyCFunction)(void (*)(void))silu_mul, METH_FASTCALL, silu_mul_doc},
    {"rope", (PyCFunction)(void (*)(void))rope, METH_FASTCALL, rope_doc},
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, append_doc},
    {"attention", (PyCFunction)(void (*)(void))attention, METH_FASTCALL, attention_doc},
    {"attention_block", (PyCFunction)(void (*)(void))attention_block, METH_FASTCALL, attention_block_doc},
    {"mlp", (PyCFunction)(void (*)(void))mlp, METH_FASTCALL, mlp_doc},
    {"head_forward", (PyCFunction)(void (*)(void))head_forward, METH_FASTCALL, head_forward_doc},
    {"head_best", (PyCFunction)(void (*)(void))head_best, METH_FASTCALL, head_best_doc},
    {"head_trees", (PyCFunction)(void (*)(void))head_trees, METH_FASTCALL, head_trees_doc},
    {"top_k", (PyCFunction)(void (*)(void))top_k, METH_FASTCALL, top_k_doc},
    {"commit_walk", (PyCFunction)(void (*)(void))commit_walk, METH_FASTCALL, commit_walk_doc},
    {"plan_step", (PyCFunction)(void (*)(void))plan_step, METH_FASTCALL, plan_step_doc},
    {"read_trees", (PyCFunction)(void (*)(void))read_trees, METH_FASTCALL, read_trees_doc},
    {"write_extend", (PyCFunction)(void (*)(void))write_extend, METH_FASTCALL, write_extend_doc},
    {"isas", isas, METH_NOARGS, isas_doc},
    {NULL, NULL, 0, NULL},
};

static int add_tables(PyObject *module) { return PyModule_AddFunctions(module, table_methods); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_tables}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = 0, .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
