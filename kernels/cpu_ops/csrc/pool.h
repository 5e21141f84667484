/* Threads that help a caller with one job at a time.
 *
 * A caller never waits for a helper that did not come: it closes the job when it finds no work left, and then waits only
 * for helpers in the middle of a piece. So a core that another process holds costs its share of a step, where a barrier
 * costs the whole of that process's time slice. A helper spins for about a tenth of a millisecond, which bridges the gaps
 * between the calls of a step, and then sleeps. `python -m bench.cpu_step` times it.
 */
#ifndef PACELINE_CPU_POOL_H
#define PACELINE_CPU_POOL_H

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

#include "pause.h"

typedef void (*Work)(void *job); /* Takes pieces of the job until none is left; runs on several threads at once. */

enum { MAX_HELPERS = 255, SPIN_ROUNDS = 4000 };

static struct {
    uint64_t state; /* generation << 32 | places left for helpers << 16 | helpers at work */
    Work work;
    void *job;
    int is_taken;    /* by a caller */
    int num_helpers; /* started; of the caller that has it */
    int num_asleep;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static inline uint32_t pool_generation(uint64_t state) { return (uint32_t)(state >> 32); }

/* The state of a generation other than seen. */
static uint64_t pool_await(uint32_t seen) {
    uint64_t state;
    for (int round = 0; round < SPIN_ROUNDS; round++) {
        state = __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE);
        if (pool_generation(state) != seen) return state;
        pause_core();
    }
    pthread_mutex_lock(&pool.mutex);
    __atomic_add_fetch(&pool.num_asleep, 1, __ATOMIC_SEQ_CST);
    while (pool_generation(state = __atomic_load_n(&pool.state, __ATOMIC_SEQ_CST)) == seen)
        pthread_cond_wait(&pool.wake, &pool.mutex);
    __atomic_sub_fetch(&pool.num_asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&pool.mutex);
    return state;
}

static void *pool_help(void *first_seen) {
    uint32_t seen = (uint32_t)(uintptr_t)first_seen;
    for (;;) {
        uint64_t state = pool_await(seen);
        seen = pool_generation(state);
        while (pool_generation(state) == seen && (state >> 16 & 0xffff) > 0) {
            const uint64_t joined = state - (1 << 16) + 1;
            if (!__atomic_compare_exchange_n(&pool.state, &state, joined, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                continue;
            pool.work(pool.job); /* both stand until this helper is no longer at work */
            __atomic_sub_fetch(&pool.state, 1, __ATOMIC_RELEASE);
            break;
        }
    }
    return NULL;
}

/* A fork's child has none of the helpers. */
static void pool_forget(void) {
    pool.is_taken = pool.num_helpers = pool.num_asleep = 0;
    pool.state &= ~(uint64_t)0xffffffff;
    pool.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

/* Brings the helpers up to count, as far as the system gives threads. For the caller that has the pool. */
static void pool_grow(int count) {
    if (pool.num_helpers == 0 && count > 0) {
        static int is_registered = 0;
        if (!is_registered) is_registered = pthread_atfork(NULL, NULL, pool_forget) == 0;
    }
    const uintptr_t seen = pool_generation(pool.state);
    for (pthread_t thread; pool.num_helpers < count; pool.num_helpers++) {
        if (pthread_create(&thread, NULL, pool_help, (void *)seen) != 0) return;
        pthread_detach(thread);
    }
}

/* Runs work(job) on this thread and on up to num_threads - 1 helpers; returns when all have returned. Where another
 * caller has the helpers, this thread does it alone. */
static void pool_run(Work work, void *job, int num_threads) {
    const int wanted = num_threads - 1 > MAX_HELPERS ? MAX_HELPERS : num_threads - 1;
    if (wanted <= 0 || __atomic_exchange_n(&pool.is_taken, 1, __ATOMIC_ACQUIRE)) {
        work(job);
        return;
    }
    pool_grow(wanted);
    pool.work = work;
    pool.job = job;
    const uint64_t generation = (uint32_t)(pool_generation(pool.state) + 1);
    __atomic_store_n(&pool.state, generation << 32 | (uint64_t)wanted << 16, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool.num_asleep, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&pool.mutex);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.mutex);
    }
    work(job);
    __atomic_and_fetch(&pool.state, ~(uint64_t)0xffff0000, __ATOMIC_ACQ_REL);
    for (int round = 0; __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE) & 0xffff; round++)
        if (round < SPIN_ROUNDS) pause_core();
        else sched_yield();
    __atomic_store_n(&pool.is_taken, 0, __ATOMIC_RELEASE);
}

#endif
