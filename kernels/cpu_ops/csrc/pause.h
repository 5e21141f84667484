/* A round of a wait that keeps looking. It leaves the core to its sibling, which may be the thread that is waited for. */

#pragma once

static inline void pause_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
