/* Whole proposal trees in one call: committed rows through the head, then level after level of each tree. Between the calls
 * of a level Python took as long as the head. What it chooses is what engine/tree_growth.py does. */
#ifndef PACELINE_CPU_GROW_H
#define PACELINE_CPU_GROW_H

#include "head.h"

enum { MAX_BEAM = 64, TILE_ROWS = 4 };

/* A session's new rows, and the tree that starts from the last of them. */
typedef struct {
    int64_t base_len, num_rows, first_page; /* position of the first row; of its pages in page_ids */
    int64_t num_steps, topk, num_nodes;     /* num_steps 0: no tree; num_nodes with the root */
} TreeAsk;

typedef struct {
    HeadBlock head;       /* all but the rows */
    HeadRanking ranking;  /* all but the rows and k */
    const TreeAsk *asks;  /* [num_asks] */
    const float *least;   /* [num_asks]: scores below it are never chosen */
    const int64_t *tokens; /* of all rows, session after session */
    const char *features;
    int64_t num_asks;
    int32_t *nodes; /* [num_asks][2][MAX_BEAM]: tokens and parents from the second node on; -1 past the last */
} TreesJob;

/* A tree's candidates in the order of levels, places and ranks, and its beam. */
typedef struct {
    const TreeAsk *ask;
    int64_t count;
    float *scores;
    int32_t *tokens, *parents; /* target ids; candidates, -1 the root */
    int64_t first_row;         /* of the beam, in the last forward */
    int32_t beam[MAX_BEAM];    /* candidates */
    int32_t parent_rows[MAX_BEAM];
    uint64_t masks[MAX_BEAM]; /* the scratch nodes on the path */
} GrowingTree;

/* The rows of one forward, and what came of them. */
typedef struct {
    int64_t num_rows, num_tiles, width;
    int64_t *tokens, *positions, *slots, *tiles, *ids;
    uint64_t *ancestors;
    float *values;
    char *hidden, *out;
} TreeRows;

static int64_t num_candidates(const TreeAsk *ask) {
    return ask->num_steps ? ask->topk + (ask->num_steps - 1) * ask->topk * ask->topk : 0;
}

/* out = the k best of the scores [first, end), by (score descending, index). */
static void best_scores(const float *scores, int64_t first, int64_t end, int64_t k, int32_t *out) {
    int64_t count = 0;
    for (int64_t i = first; i < end; i++) {
        if (count == k && !(scores[i] > scores[out[k - 1]])) continue;
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && scores[i] > scores[out[at - 1]]; at--) out[at] = out[at - 1];
        out[at] = (int32_t)i;
    }
}

/* Adds a row of the ask at a position of its cache and a RoPE position. */
static void add_row(const TreesJob *job, TreeRows *rows, const TreeAsk *ask, int64_t token, int64_t place, int64_t position) {
    const AttentionBlock *a = &job->head.attention;
    const int64_t page = a->page_ids[ask->first_page + place / a->page_size];
    rows->tokens[rows->num_rows] = token;
    rows->positions[rows->num_rows] = position;
    rows->slots[rows->num_rows++] = page * a->page_size + place % a->page_size;
}

/* Tiles over the last count rows, which follow `prefix` positions that all of them see. */
static void add_tiles(TreeRows *rows, const TreeAsk *ask, int64_t count, int64_t prefix, int64_t end, int is_causal) {
    for (int64_t first = 0; first < count; first += TILE_ROWS) {
        const int64_t size = count - first < TILE_ROWS ? count - first : TILE_ROWS, seen = end - count + first + 1;
        const int64_t fields[TILE_FIELDS] = {rows->num_rows - count + first, size, ask->first_page, prefix,
                                             is_causal ? seen + size - 1 : end, seen, is_causal};
        memcpy(rows->tiles + rows->num_tiles++ * TILE_FIELDS, fields, sizeof fields);
    }
}

static int run_rows_of_trees(const Isa *isa, const TreesJob *job, TreeRows *rows, const char *features) {
    HeadBlock head = job->head;
    head.tokens = rows->tokens;
    head.positions = rows->positions;
    head.features = features;
    head.out = rows->out;
    head.attention.slots = rows->slots;
    head.attention.rows = rows->num_rows;
    head.attention.ancestors = rows->ancestors;
    head.attention.tiles = (AttentionTiles){.table = rows->tiles, .num_tiles = rows->num_tiles};
    return run_head_block(isa, &head);
}

static int rank_rows(const Isa *isa, const TreesJob *job, TreeRows *rows, const char *hidden, int64_t count) {
    HeadRanking ranking = job->ranking;
    ranking.hidden = hidden;
    ranking.values = rows->values;
    ranking.ids = rows->ids;
    ranking.rows = count;
    ranking.k = rows->width;
    return run_head_ranking(isa, &ranking);
}

/* The children of one row become candidates. */
static void add_children(GrowingTree *tree, const TreeRows *rows, int64_t row, float path, int32_t parent) {
    for (int64_t j = 0; j < tree->ask->topk; j++, tree->count++) {
        const float score = path + rows->values[row * rows->width + j];
        tree->scores[tree->count] = score != score ? -INFINITY : score;
        tree->tokens[tree->count] = (int32_t)rows->ids[row * rows->width + j];
        tree->parents[tree->count] = parent;
    }
}

/* Level 1: the root's children. */
static void start_tree(GrowingTree *tree, const TreeRows *rows, int64_t row) {
    add_children(tree, rows, row, 0.0f, -1);
    for (int64_t place = 0; place < tree->ask->topk; place++) {
        tree->beam[place] = (int32_t)place;
        tree->parent_rows[place] = (int32_t)row;
        tree->masks[place] = 0;
    }
}

static void grow_tree(GrowingTree *tree, const TreeRows *rows) {
    const int64_t topk = tree->ask->topk, first = tree->count;
    int32_t best[MAX_BEAM];
    uint64_t masks[MAX_BEAM];
    for (int64_t place = 0; place < topk; place++)
        add_children(tree, rows, tree->first_row + place, tree->scores[tree->beam[place]], tree->beam[place]);
    best_scores(tree->scores, first, tree->count, topk, best);
    memcpy(masks, tree->masks, sizeof masks);
    for (int64_t place = 0; place < topk; place++) {
        const int64_t parent = (best[place] - first) / topk;
        tree->beam[place] = best[place];
        tree->parent_rows[place] = (int32_t)(tree->first_row + parent);
        tree->masks[place] = masks[parent];
    }
}

/* The rows of the beams of all trees that have steps left after `level` levels. */
static void fill_beams(const TreesJob *job, TreeRows *rows, GrowingTree *trees, int64_t num_trees, int64_t level) {
    const int64_t size = job->ranking.width * (job->ranking.is_bf16 ? 2 : 4);
    rows->num_rows = rows->num_tiles = 0;
    for (GrowingTree *tree = trees; tree < trees + num_trees; tree++) {
        const TreeAsk *ask = tree->ask;
        const int64_t committed = ask->base_len + ask->num_rows, before = (level - 1) * ask->topk;
        if (ask->num_steps <= level) continue;
        tree->first_row = rows->num_rows;
        for (int64_t place = 0; place < ask->topk; place++) {
            tree->masks[place] |= (uint64_t)1 << (before + place);
            rows->ancestors[rows->num_rows] = tree->masks[place];
            memcpy(rows->hidden + rows->num_rows * size, rows->out + tree->parent_rows[place] * size, (size_t)size);
            add_row(job, rows, ask, tree->tokens[tree->beam[place]], committed + before + place, committed + level - 1);
        }
        add_tiles(rows, ask, ask->topk, committed, committed + before + ask->topk, 0);
    }
}

/* The num_nodes - 1 best candidates, in order of index. */
static void choose_tree(const GrowingTree *tree, float least, int32_t *nodes) {
    int32_t best[MAX_BEAM];
    const int64_t most = tree->ask->num_nodes - 1 < tree->count ? tree->ask->num_nodes - 1 : tree->count;
    best_scores(tree->scores, 0, tree->count, most, best);
    uint8_t *is_chosen = (uint8_t *)(tree->parents + num_candidates(tree->ask));
    memset(is_chosen, 0, (size_t)tree->count);
    for (int64_t i = 0; i < most; i++) {
        const float score = tree->scores[best[i]];
        is_chosen[best[i]] = score >= least && score > -INFINITY && score < INFINITY;
    }
    int32_t count = 0;
    for (int64_t i = 0; i < tree->count; i++)
        if (is_chosen[i]) {
            const int32_t parent = tree->parents[i];
            nodes[count] = tree->tokens[i];
            nodes[MAX_BEAM + count++] = parent < 0 ? 0 : is_chosen[parent];
            is_chosen[i] = (uint8_t)count;
        }
}

static void *take(char **at, int64_t bytes) {
    char *taken = *at;
    *at += (bytes + 63) / 64 * 64;
    return taken;
}

/* Memory for the forwards of a job and for its trees; to be freed. NULL where it cannot be had. */
static char *lay_out(const TreesJob *job, TreeRows *rows, GrowingTree **trees, int64_t most_rows, int64_t candidates) {
    const int64_t size = most_rows * job->ranking.width * (job->ranking.is_bf16 ? 2 : 4);
    const int64_t per_row = 8 * (5 + TILE_FIELDS) + 12 * rows->width;
    char *memory = (char *)scratch_of((most_rows * per_row + 2 * size + candidates * 13 +
                                       job->num_asks * (int64_t)(sizeof(GrowingTree) + 4 * 64) + 16 * 64) / 4 + 1);
    if (!memory) return NULL;
    char *at = memory;
    rows->tokens = take(&at, most_rows * 8);
    rows->positions = take(&at, most_rows * 8);
    rows->slots = take(&at, most_rows * 8);
    rows->ancestors = take(&at, most_rows * 8);
    rows->tiles = take(&at, most_rows * TILE_FIELDS * 8);
    rows->ids = take(&at, most_rows * rows->width * 8);
    rows->values = take(&at, most_rows * rows->width * 4);
    rows->hidden = take(&at, size);
    rows->out = take(&at, size);
    *trees = take(&at, job->num_asks * (int64_t)sizeof(GrowingTree));
    GrowingTree *tree = *trees;
    for (const TreeAsk *ask = job->asks; ask < job->asks + job->num_asks; ask++) {
        const int64_t count = num_candidates(ask);
        if (!count) continue;
        *tree++ = (GrowingTree){.ask = ask, .scores = take(&at, count * 4), .tokens = take(&at, count * 4),
                                .parents = take(&at, count * 5)};
    }
    return memory;
}

/* Returns 0 where scratch cannot be had. MUTATES the head's cache at the rows, and at the scratch positions past them. */
static int run_trees(const Isa *isa, const TreesJob *job) {
    const int64_t size = job->ranking.width * (job->ranking.is_bf16 ? 2 : 4);
    int64_t num_new = 0, num_beams = 0, num_trees = 0, candidates = 0, num_levels = 0;
    TreeRows rows = {.width = 1};
    for (const TreeAsk *ask = job->asks; ask < job->asks + job->num_asks; ask++) {
        num_new += ask->num_rows;
        if (!ask->num_steps) continue;
        num_trees++;
        num_beams += ask->topk;
        candidates += num_candidates(ask);
        num_levels = ask->num_steps > num_levels ? ask->num_steps : num_levels;
        rows.width = ask->topk > rows.width ? ask->topk : rows.width;
    }
    GrowingTree *trees;
    char *memory = lay_out(job, &rows, &trees, num_new > num_beams ? num_new : num_beams, candidates);
    if (!memory) return 0;
    for (const TreeAsk *ask = job->asks; ask < job->asks + job->num_asks; ask++) {
        memset(rows.ancestors + rows.num_rows, 0, (size_t)ask->num_rows * 8);
        for (int64_t i = 0; i < ask->num_rows; i++)
            add_row(job, &rows, ask, job->tokens[rows.num_rows], ask->base_len + i, ask->base_len + i);
        add_tiles(&rows, ask, ask->num_rows, ask->base_len, ask->base_len + ask->num_rows, 1);
    }
    int done = run_rows_of_trees(isa, job, &rows, job->features);
    for (int64_t i = 0, row = 0, last = 0; i < job->num_asks; i++) {
        last += job->asks[i].num_rows;
        if (job->asks[i].num_steps) memcpy(rows.hidden + row++ * size, rows.out + (last - 1) * size, (size_t)size);
    }
    memcpy(rows.out, rows.hidden, (size_t)(num_trees * size));
    done = done && (num_trees == 0 || rank_rows(isa, job, &rows, rows.out, num_trees));
    for (int64_t i = 0; done && i < num_trees; i++) start_tree(&trees[i], &rows, i);
    for (int64_t level = 1; done && level < num_levels; level++) {
        fill_beams(job, &rows, trees, num_trees, level);
        done = run_rows_of_trees(isa, job, &rows, rows.hidden) && rank_rows(isa, job, &rows, rows.out, rows.num_rows);
        for (int64_t i = 0; done && i < num_trees; i++)
            if (trees[i].ask->num_steps > level) grow_tree(&trees[i], &rows);
    }
    memset(job->nodes, -1, (size_t)(job->num_asks * 2 * MAX_BEAM * 4));
    for (int64_t i = 0; done && i < num_trees; i++) {
        const int64_t at = trees[i].ask - job->asks;
        choose_tree(&trees[i], job->least[at], job->nodes + at * 2 * MAX_BEAM);
    }
    free(memory);
    return done;
}

#endif
