/* CRC-32C (Castagnoli), which tensor bundles have of each tensor and of each block of their index. */
#include "kernel.h"

/* The polynomial with its bits reversed. */
#define CASTAGNOLI 0x82F63B78U

/* tables[k][b] is the checksum of byte b and k zero bytes after it. */
static uint32_t tables[8][256];

static void fill_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? CASTAGNOLI : 0);
        tables[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 255];
}

static uint32_t by_tables(uint32_t crc, const uint8_t *p, Py_ssize_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word = load64(p) ^ crc;
        crc = 0;
        for (int k = 7; k >= 0; k--, word >>= 8)
            crc ^= tables[k][word & 255];
    }
    for (; n > 0; n--)
        crc = (crc >> 8) ^ tables[0][(crc ^ *p++) & 255];
    return crc;
}

#ifdef HAVE_X86_TARGETS
/* For clang the instruction is a feature of its own; gcc below 11 has no such name. */
#if defined(__clang__) && __clang_major__ >= 14
#define CRC_TARGET "sse4.2,crc32"
#else
#define CRC_TARGET "sse4.2"
#endif
__attribute__((target(CRC_TARGET))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, Py_ssize_t n)
{
    uint64_t wide = crc;
    for (; n >= 8; p += 8, n -= 8)
        wide = _mm_crc32_u64(wide, load64(p));
    crc = (uint32_t)wide;
    for (; n > 0; n--)
        crc = _mm_crc32_u8(crc, *p++);
    return crc;
}
#endif

PyObject *crc32c(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *data = &b.view[0];
    unsigned int value;
    uint32_t (*add)(uint32_t, const uint8_t *, Py_ssize_t) = by_tables;
    if (!take(&b, args, "y*I:crc32c", data, &value))
        return NULL;
#ifdef HAVE_X86_TARGETS
    if (simd_level > 0 && __builtin_cpu_supports("sse4.2"))
        add = by_instruction;
#endif
    if (!tables[0][1])
        fill_tables();
    Py_BEGIN_ALLOW_THREADS
    value = ~add(~(uint32_t)value, data->buf, data->len);
    Py_END_ALLOW_THREADS
    return give(&b, PyLong_FromUnsignedLong(value));
}
