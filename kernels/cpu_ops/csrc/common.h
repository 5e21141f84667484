/* What the kernels of every instruction set share: jobs, bf16 conversion, the driver's entry points. */
#ifndef PACELINE_CPU_JOB_H
#define PACELINE_CPU_JOB_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE inline __attribute__((always_inline))


enum { MAX_COLS = 6, MAX_STEP = 32, PREFETCH_BYTES = 1024, BLOCK_BYTES = 64 * 1024 };

/* out[m, n] = x[m, k] @ weight[n, k].T + bias. x is the converted scratch: fp32, rows of kp values, zero past k. */
typedef struct {
    const float *x;
    const void *weight;
    const void *bias; /* [n] of the weight's type, or NULL */
    void *out;
    int64_t m, n, k, kp;
    int is_bf16, out_is_bf16;
} LinearJob;

static inline float bf16_to_f32(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest even; a NaN stays a NaN. */
static inline uint16_t f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float load_element(const void *base, int64_t i, int is_bf16) {
    return is_bf16 ? bf16_to_f32(((const uint16_t *)base)[i]) : ((const float *)base)[i];
}

static inline void store_element(void *base, int64_t i, float value, int is_bf16) {
    if (is_bf16)
        ((uint16_t *)base)[i] = f32_to_bf16(value);
    else
        ((float *)base)[i] = value;
}

#endif
