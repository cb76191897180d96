/* CRC-32, which zips have of each member, and CRC-32C (Castagnoli), which tensor bundles have of each tensor and of each
 * block of their index. */
#include "kernel.h"

typedef struct {
    /* The polynomial with its bits reversed. */
    uint32_t polynomial;
    /* bytes[k][b] is the checksum of byte b and k zero bytes after it. */
    uint32_t bytes[8][256];
} Tables;

static Tables zlib = {.polynomial = 0xEDB88320U}, castagnoli = {.polynomial = 0x82F63B78U};

/* The caller holds the lock of the interpreter. */
static void fill(Tables *tables)
{
    if (tables->bytes[7][1])
        return;
    for (int k = 0; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8 * (k + 1); bit++)
                crc = (crc >> 1) ^ (crc & 1 ? tables->polynomial : 0);
            tables->bytes[k][byte] = crc;
        }
}

static uint32_t by_tables(const Tables *tables, uint32_t crc, const uint8_t *p, Py_ssize_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word = load64(p) ^ crc;
        crc = 0;
        for (int k = 7; k >= 0; k--, word >>= 8)
            crc ^= tables->bytes[k][word & 255];
    }
    for (; n > 0; n--)
        crc = (crc >> 8) ^ tables->bytes[0][(crc ^ *p++) & 255];
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

#define MULTIPLY_TARGET __attribute__((target("sse4.1,pclmul")))

/* The 16 bytes that have, before the next bytes, the checksum that `sum` has so many bytes earlier: `powers` are those of
 * x for that many bits and 32 more or less (Gopal and others, "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction", Intel 2009). */
MULTIPLY_TARGET static inline __m128i fold(__m128i sum, __m128i powers, const uint8_t *next)
{
    __m128i low = _mm_clmulepi64_si128(sum, powers, 0x00), high = _mm_clmulepi64_si128(sum, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128((const __m128i *)next));
}

/* CRC-32 of zlib, of 64 bytes or more: four streams of 16 bytes each are multiplied on, then joined. */
MULTIPLY_TARGET static uint32_t by_multiplying(uint32_t crc, const uint8_t *p, Py_ssize_t n)
{
    const __m128i far = _mm_set_epi64x(0x1C6E41596, 0x154442BD4), near = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i sum[4];
    uint8_t last[16];
    for (int k = 0; k < 4; k++)
        sum[k] = _mm_loadu_si128((const __m128i *)(p + 16 * k));
    sum[0] = _mm_xor_si128(sum[0], _mm_cvtsi32_si128((int)crc));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int k = 0; k < 4; k++)
            sum[k] = fold(sum[k], far, p + 16 * k);
    for (int k = 1; k < 4; k++) {
        _mm_storeu_si128((__m128i *)last, sum[k]);
        sum[0] = fold(sum[0], near, last);
    }
    for (; n >= 16; p += 16, n -= 16)
        sum[0] = fold(sum[0], near, p);
    _mm_storeu_si128((__m128i *)last, sum[0]);
    return by_tables(&zlib, by_tables(&zlib, 0, last, 16), p, n);
}
#endif

PyObject *crc32(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *data = &b.view[0];
    unsigned int value;
    if (!take(&b, args, "y*I:crc32", data, &value))
        return NULL;
    fill(&zlib);
    Py_BEGIN_ALLOW_THREADS
    value = ~(uint32_t)value;
#ifdef HAVE_X86_TARGETS
    if (simd_level > 0 && data->len >= 64 && __builtin_cpu_supports("pclmul"))
        value = by_multiplying(value, data->buf, data->len);
    else
#endif
        value = by_tables(&zlib, value, data->buf, data->len);
    value = ~value;
    Py_END_ALLOW_THREADS
    return give(&b, PyLong_FromUnsignedLong(value));
}

PyObject *crc32c(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *data = &b.view[0];
    unsigned int value;
    if (!take(&b, args, "y*I:crc32c", data, &value))
        return NULL;
    fill(&castagnoli);
    Py_BEGIN_ALLOW_THREADS
    value = ~(uint32_t)value;
#ifdef HAVE_X86_TARGETS
    if (simd_level > 0 && __builtin_cpu_supports("sse4.2"))
        value = by_instruction(value, data->buf, data->len);
    else
#endif
        value = by_tables(&castagnoli, value, data->buf, data->len);
    value = ~value;
    Py_END_ALLOW_THREADS
    return give(&b, PyLong_FromUnsignedLong(value));
}
