/* Varints: decoded, counted, encoded. */
#include "kernel.h"

/* Close up the seven-bit groups of up to eight bytes, pair by pair. */
static uint64_t close_up(uint64_t word, int length)
{
    uint64_t value = word & (~0ULL >> (64 - 8 * length)) & 0x7F7F7F7F7F7F7F7FULL;
    value = (value & 0x007F007F007F007FULL) | ((value & 0x7F007F007F007F00ULL) >> 1);
    value = (value & 0x00003FFF00003FFFULL) | ((value & 0x3FFF00003FFF0000ULL) >> 2);
    return (value & 0x000000000FFFFFFFULL) | ((value & 0x0FFFFFFF00000000ULL) >> 4);
}

/* Decode one varint of any length; return its length, or 0 when it is bad or passes the end. */
static int decode_one(const uint8_t *data, Py_ssize_t left, int64_t *value)
{
    uint64_t sum = 0;
    int length;
    for (length = 0; length < left && length < 10; length++) {
        uint8_t byte = data[length];
        if (length == 9 && byte > 1)
            return 0;
        sum |= (uint64_t)(byte & 0x7F) << (7 * length);
        if (byte < 0x80) {
            *value = (int64_t)sum;
            return length + 1;
        }
    }
    return 0;
}

/* Return the bytes below 0x80 among 64, one bit each. */
static uint64_t ends_of(const uint8_t *data)
{
    uint64_t bits = 0;
    int k;
#ifdef HAVE_X86_TARGETS
    for (k = 0; k < 4; k++) {
        __m128i some = _mm_loadu_si128((const __m128i *)(data + 16 * k));
        bits |= (uint64_t)(uint16_t)_mm_movemask_epi8(some) << (16 * k);
    }
#else
    for (k = 0; k < 64; k++)
        bits |= (uint64_t)(data[k] >> 7) << k;
#endif
    return ~bits;
}

/* Decode up to n varints; return the position of the first bad one, or -1.
 * The ends of varints are found 64 bytes at a time, so that no decoding waits for the length of the one before.
 * CLOSE_UP(word, length) is close_up, or an instruction that does the same. */
#define DEFINE_DECODE(NAME, TARGET, CLOSE_UP)                                                                         \
    TARGET static Py_ssize_t NAME(const uint8_t *data, Py_ssize_t size, int64_t *values, uint8_t *lengths,            \
                                  Py_ssize_t n)                                                                       \
    {                                                                                                                 \
        Py_ssize_t at = 0, k = 0, block;                                                                              \
        for (block = 0; block + 72 <= size; block += 64) {                                                            \
            uint64_t ends = ends_of(data + block);                                                                    \
            for (; ends; ends &= ends - 1) {                                                                          \
                Py_ssize_t length = block + __builtin_ctzll(ends) + 1 - at;                                           \
                if (k >= n)                                                                                           \
                    return at;                                                                                        \
                if (length <= 8) {                                                                                    \
                    values[k] = (int64_t)CLOSE_UP(load64(data + at), (int)length);                                    \
                } else {                                                                                              \
                    uint64_t last = length == 10 ? data[at + 9] : 0;                                                  \
                    if (length > 10 || last > 1)                                                                      \
                        return at;                                                                                    \
                    values[k] = (int64_t)(CLOSE_UP(load64(data + at), 8) | (uint64_t)(data[at + 8] & 0x7F) << 56 |    \
                                          last << 63);                                                                \
                }                                                                                                     \
                lengths[k++] = (uint8_t)length;                                                                       \
                at += length;                                                                                         \
            }                                                                                                         \
        }                                                                                                             \
        while (at < size) {                                                                                           \
            int length = k < n ? decode_one(data + at, size - at, &values[k]) : 0;                                    \
            if (!length)                                                                                              \
                return at;                                                                                            \
            lengths[k++] = (uint8_t)length;                                                                           \
            at += length;                                                                                             \
        }                                                                                                             \
        return k == n ? -1 : size;                                                                                    \
    }

DEFINE_DECODE(decode_plain, , close_up)

#ifdef HAVE_X86_TARGETS
#define EXTRACT(WORD, LENGTH) _pext_u64(WORD, 0x7F7F7F7F7F7F7F7FULL >> (64 - 8 * (LENGTH)))
DEFINE_DECODE(decode_bmi2, __attribute__((target("bmi2"))), EXTRACT)
#endif

Py_ssize_t decode(const uint8_t *data, Py_ssize_t size, int64_t *values, uint8_t *lengths, Py_ssize_t n)
{
#ifdef HAVE_X86_TARGETS
    if (simd_level >= 1 && __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2"))
        return decode_bmi2(data, size, values, lengths, n); /* pext takes those two 18 cycles and more */
#endif
    return decode_plain(data, size, values, lengths, n);
}

PyObject *decode_varints(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *data = &b.view[0], *values = &b.view[1], *lengths = &b.view[2];
    Py_ssize_t bad;
    if (!take(&b, args, "y*w*w*:decode_varints", data, values, lengths))
        return NULL;
    if (values->len != lengths->len * 8)
        return refuse_size(&b, "decode_varints", "values", values, lengths->len, 8);
    Py_BEGIN_ALLOW_THREADS
    bad = decode(data->buf, data->len, values->buf, lengths->buf, lengths->len);
    Py_END_ALLOW_THREADS
    return give(&b, PyLong_FromSsize_t(bad));
}

/* Count the bytes below 0x80 in whole vectors; `k` is where the rest begins. */
static Py_ssize_t ends_among(const uint8_t *bytes, Py_ssize_t size, Py_ssize_t *k)
{
    Py_ssize_t count = 0;
    *k = 0;
#ifdef HAVE_X86_TARGETS
    while (*k + 64 <= size) {
        const __m128i zero = _mm_setzero_si128(), below = _mm_set1_epi8(-1);
        __m128i sum = zero; /* at most 252 in each byte */
        uint64_t both[2];
        int turn, v;
        for (turn = 0; turn < 63 && *k + 64 <= size; turn++, *k += 64)
            for (v = 0; v < 64; v += 16)
                sum = _mm_sub_epi8(sum, _mm_cmpgt_epi8(_mm_loadu_si128((const __m128i *)(bytes + *k + v)), below));
        _mm_storeu_si128((__m128i *)both, _mm_sad_epu8(sum, zero));
        count += (Py_ssize_t)(both[0] + both[1]);
    }
#endif
    return count;
}

PyObject *count_varints(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *data = &b.view[0];
    Py_ssize_t k, count = 0;
    if (!take(&b, args, "y*:count_varints", data))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    {
        const uint8_t *bytes = data->buf;
        count = ends_among(bytes, data->len, &k);
        for (; k < data->len; k++)
            count += bytes[k] < 0x80;
    }
    Py_END_ALLOW_THREADS
    return give(&b, PyLong_FromSsize_t(count));
}

/* Return how many bytes the varint of a value takes. */
static int length_of(uint64_t value)
{
    return (int)((70 - (uint64_t)__builtin_clzll(value | 1)) / 7);
}

/* Encode values back to back; `out` has exactly the bytes that they need. */
static void encode(const int64_t *values, Py_ssize_t n, uint8_t *out)
{
    Py_ssize_t k;
    for (k = 0; k < n; k++) {
        uint64_t value = (uint64_t)values[k];
        for (; value >= 0x80; value >>= 7)
            *out++ = (uint8_t)(value | 0x80);
        *out++ = (uint8_t)value;
    }
}

PyObject *varint_lengths(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *values = &b.view[0], *out = &b.view[1];
    Py_ssize_t k;
    if (!take(&b, args, "y*w*:varint_lengths", values, out))
        return NULL;
    if (values->len != out->len * 8)
        return refuse_size(&b, "varint_lengths", "values", values, out->len, 8);
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < out->len; k++)
        ((uint8_t *)out->buf)[k] = (uint8_t)length_of(((const uint64_t *)values->buf)[k]);
    Py_END_ALLOW_THREADS
    return give(&b, Py_NewRef(Py_None));
}

PyObject *encode_varints(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *values = &b.view[0], *out = &b.view[1];
    Py_ssize_t k, n, needed = 0;
    if (!take(&b, args, "y*w*:encode_varints", values, out))
        return NULL;
    n = values->len / 8;
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n; k++)
        needed += length_of(((const uint64_t *)values->buf)[k]);
    if (needed == out->len)
        encode(values->buf, n, out->buf);
    Py_END_ALLOW_THREADS
    if (needed != out->len)
        return refuse(&b, "encode_varints: out has %zd byte%s, the values need %zd", COUNTED(out->len), needed);
    return give(&b, Py_NewRef(Py_None));
}
