/* Messages as protobuf writes and reads them: numbers, and fields of bytes. */

#pragma once

#include <stddef.h>
#include <stdint.h>

enum { WIRE_VARINT = 0, WIRE_BYTES = 2 }; /* wire types */

/* Bytes that are read, [at, stop). */
typedef struct {
    const uint8_t *at, *stop;
} Span;

/* The next number; 0 where there is none or it has more than 64 bits. */
static inline int get_varint(Span *from, uint64_t *value) {
    uint64_t sum = 0;
    for (int shift = 0; from->at < from->stop && shift < 64; shift += 7) {
        const uint8_t byte = *from->at++;
        if (shift == 63 && byte > 1) return 0;
        sum |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = sum;
            return 1;
        }
    }
    return 0;
}

/* How many packed numbers there are. */
static inline int64_t count_varints(Span packed) {
    int64_t count = 0;
    for (; packed.at < packed.stop; packed.at++) count += *packed.at < 0x80;
    return count;
}

static inline size_t varint_size(uint64_t value) {
    size_t size = 1;
    for (; value > 0x7f; value >>= 7) size++;
    return size;
}

/* Returns the byte behind it. */
static inline uint8_t *put_varint(uint8_t *at, uint64_t value) {
    for (; value > 0x7f; value >>= 7) *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}
