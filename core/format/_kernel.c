/* Compiled inner loops of bulk.py, which has each of them in numpy too: the same results and the same errors, faster.
 *
 * `move_file_rows`, `sketch_file_rows` and `write_groups` use files too; without them, Python reads and writes beside
 * the other calls.
 * Every function takes buffers of exact element types and releases the GIL. It checks the sizes of all buffers first,
 * and no write ever leaves a buffer. A failed check raises a ValueError that names the argument, the expected value
 * and the one that came. Multi-byte values are little-endian: on other machines the module refuses to load, and numpy
 * does the work.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_X86_TARGETS 1
#endif

/* The instructions that may be used: 2 all, 1 up to AVX2 and BMI2, 0 none; tests compare each level with numpy. */
static int simd_level = 2;

#define LIMBS 8
#define BLOCK_ROWS 256
#define CHUNK_BYTES 4096
#define CHUNK_STEP 0x9E3779B97F4A7C15ULL

typedef struct {
    Py_buffer view[7];
    int written[7];
    int count;
} Buffers;

static void release(Buffers *b)
{
    while (b->count > 0)
        PyBuffer_Release(&b->view[--b->count]);
}

/* Return the buffer of an argument, or NULL with an exception set. A buffer that is written shares no byte with another
 * one: what a check has seen would change before it is used. */
static Py_buffer *acquire(Buffers *b, PyObject *object, int writable)
{
    Py_buffer *view = &b->view[b->count];
    int k;
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return NULL;
    b->written[b->count++] = writable;
    for (k = 0; k < b->count - 1; k++) {
        const uintptr_t start = (uintptr_t)view->buf, other = (uintptr_t)b->view[k].buf;
        if ((writable || b->written[k]) && start < other + (size_t)b->view[k].len && other < start + (size_t)view->len) {
            PyErr_Format(PyExc_ValueError, "arrays %d and %d overlap, and one of them is written", k + 1, b->count);
            return NULL;
        }
    }
    return view;
}

/* Release the buffers and raise a ValueError with this message. */
static PyObject *refuse(Buffers *b, const char *format, ...)
{
    va_list values;
    release(b);
    va_start(values, format);
    PyErr_FormatV(PyExc_ValueError, format, values);
    va_end(values);
    return NULL;
}

/* A number and the plural of its noun, for "%zd row%s". */
#define COUNTED(N) (Py_ssize_t)(N), (N) == 1 ? "" : "s"

/* Refuse a buffer of another size than this many rows need. */
static PyObject *refuse_size(Buffers *b, const char *function, const char *name, const Py_buffer *view,
                             Py_ssize_t rows, Py_ssize_t itemsize)
{
    return refuse(b, "%s: %s has %zd byte%s, the %zd row%s %s %zd", function, name, COUNTED(view->len), COUNTED(rows),
                  rows == 1 ? "needs" : "need", (Py_ssize_t)((size_t)rows * (size_t)itemsize));
}

static PyObject *refuse_owner(Buffers *b, const char *function, const uint16_t *owner, Py_ssize_t row,
                              Py_ssize_t targets)
{
    return refuse(b, "%s: owner %d of row %zd is out of range for %zd target%s", function, (int)owner[row], row,
                  COUNTED(targets));
}

static uint64_t load64(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

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

static Py_ssize_t decode(const uint8_t *data, Py_ssize_t size, int64_t *values, uint8_t *lengths, Py_ssize_t n)
{
#ifdef HAVE_X86_TARGETS
    if (simd_level >= 1 && __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2"))
        return decode_bmi2(data, size, values, lengths, n); /* pext takes those two 18 cycles and more */
#endif
    return decode_plain(data, size, values, lengths, n);
}

static PyObject *decode_varints(PyObject *self, PyObject *args)
{
    PyObject *data_o, *values_o, *lengths_o;
    Buffers b = {.count = 0};
    Py_buffer *data, *values, *lengths;
    Py_ssize_t bad;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO:decode_varints", &data_o, &values_o, &lengths_o))
        return NULL;
    if (!(data = acquire(&b, data_o, 0)) || !(values = acquire(&b, values_o, 1)) ||
        !(lengths = acquire(&b, lengths_o, 1))) {
        release(&b);
        return NULL;
    }
    if (values->len != lengths->len * 8)
        return refuse_size(&b, "decode_varints", "values", values, lengths->len, 8);
    Py_BEGIN_ALLOW_THREADS
    bad = decode(data->buf, data->len, values->buf, lengths->buf, lengths->len);
    Py_END_ALLOW_THREADS
    release(&b);
    return PyLong_FromSsize_t(bad);
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

static PyObject *count_varints(PyObject *self, PyObject *args)
{
    PyObject *data_o;
    Buffers b = {.count = 0};
    Py_buffer *data;
    Py_ssize_t k, count = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "O:count_varints", &data_o))
        return NULL;
    if (!(data = acquire(&b, data_o, 0)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    {
        const uint8_t *bytes = data->buf;
        count = ends_among(bytes, data->len, &k);
        for (; k < data->len; k++)
            count += bytes[k] < 0x80;
    }
    Py_END_ALLOW_THREADS
    release(&b);
    return PyLong_FromSsize_t(count);
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

static PyObject *varint_lengths(PyObject *self, PyObject *args)
{
    PyObject *values_o, *out_o;
    Buffers b = {.count = 0};
    Py_buffer *values, *out;
    Py_ssize_t k;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO:varint_lengths", &values_o, &out_o))
        return NULL;
    if (!(values = acquire(&b, values_o, 0)) || !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    if (values->len != out->len * 8)
        return refuse_size(&b, "varint_lengths", "values", values, out->len, 8);
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < out->len; k++)
        ((uint8_t *)out->buf)[k] = (uint8_t)length_of(((const uint64_t *)values->buf)[k]);
    Py_END_ALLOW_THREADS
    release(&b);
    Py_RETURN_NONE;
}

static PyObject *encode_varints(PyObject *self, PyObject *args)
{
    PyObject *values_o, *out_o;
    Buffers b = {.count = 0};
    Py_buffer *values, *out;
    Py_ssize_t k, n, needed = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO:encode_varints", &values_o, &out_o))
        return NULL;
    if (!(values = acquire(&b, values_o, 0)) || !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    n = values->len / 8;
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n; k++)
        needed += length_of(((const uint64_t *)values->buf)[k]);
    if (needed == out->len)
        encode(values->buf, n, out->buf);
    Py_END_ALLOW_THREADS
    if (needed != out->len)
        return refuse(&b, "encode_varints: out has %zd byte%s, the values need %zd", COUNTED(out->len), needed);
    release(&b);
    Py_RETURN_NONE;
}

#ifdef HAVE_X86_TARGETS
/* Do what owners_of does without a product of 128 bits, so that gcc does eight ids at a time. The halves of a number
 * are reduced by themselves: a quotient of 32 bits from a product of 64 is exact or at most one too small, and twice
 * where the halves are put together again. */
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static void
owners_512(const int64_t *ids, Py_ssize_t n, uint64_t ps_num, uint16_t *out)
{
    const uint64_t inverse = (1ULL << 32) / ps_num, high = (1ULL << 32) % ps_num, low32 = UINT32_MAX;
    Py_ssize_t k;
#define REDUCED(R) ((R) - (((R) & low32) * inverse >> 32) * ps_num)
#define BELOW(R) ((R) < ps_num ? (R) : (R) - ps_num)
    for (k = 0; k < n; k++) {
        uint64_t negative = (uint64_t)(ids[k] >> 63), u = (uint64_t)ids[k] ^ negative, upper, lower, r;
        upper = REDUCED(u >> 32);
        upper = BELOW(upper);
        lower = REDUCED(u & low32);
        lower = BELOW(lower);
        r = upper * high; /* both are below 2**16 */
        r = REDUCED(r);
        r = BELOW(r) + lower;
        r = BELOW(r);
        out[k] = (uint16_t)(negative ? ps_num - 1 - r : r);
    }
#undef REDUCED
#undef BELOW
}
#endif

/* Fill `out` with Python's modulo. A quotient from the high half of a product is exact or at most two too small. */
static void owners_of(const int64_t *ids, Py_ssize_t n, uint64_t ps_num, uint16_t *out)
{
    Py_ssize_t k;
    if ((ps_num & (ps_num - 1)) == 0) {
        uint64_t mask = ps_num - 1;
        for (k = 0; k < n; k++)
            out[k] = (uint16_t)((uint64_t)ids[k] & mask);
        return;
    }
#ifdef HAVE_X86_TARGETS
    if (simd_level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        owners_512(ids, n, ps_num, out);
        return;
    }
#endif
    {
        uint64_t inverse = ~0ULL / ps_num;
        for (k = 0; k < n; k++) {
            uint64_t negative = ids[k] < 0 ? ~0ULL : 0;
            uint64_t u = (uint64_t)ids[k] ^ negative; /* -id - 1 for a negative id */
            uint64_t q = (uint64_t)(((unsigned __int128)u * inverse) >> 64);
            uint64_t r = u - q * ps_num;
            r -= r >= ps_num ? ps_num : 0; /* no branches: the CPU would guess them wrong */
            r -= r >= ps_num ? ps_num : 0;
            out[k] = (uint16_t)(negative ? ps_num - 1 - r : r);
        }
    }
}

static PyObject *owners(PyObject *self, PyObject *args)
{
    PyObject *ids_o, *out_o;
    Py_ssize_t ps_num, n;
    Buffers b = {.count = 0};
    Py_buffer *ids, *out;
    (void)self;
    if (!PyArg_ParseTuple(args, "OnO:owners", &ids_o, &ps_num, &out_o))
        return NULL;
    if (!(ids = acquire(&b, ids_o, 0)) || !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    n = out->len / 2;
    if (ps_num < 1 || ps_num > 65536)
        return refuse(&b, "owners: ps_num must be 1 to 65536, got %zd", ps_num);
    if (ids->len != n * 8)
        return refuse_size(&b, "owners", "ids", ids, n, 8);
    Py_BEGIN_ALLOW_THREADS
    owners_of(ids->buf, n, (uint64_t)ps_num, out->buf);
    Py_END_ALLOW_THREADS
    release(&b);
    Py_RETURN_NONE;
}

/* Say whether n ids all have one owner: `base`, where they are unsigned numbers, 2**63 more. A number is a multiple of
 * odd * 2**twos exactly when its product with the inverse of `odd`, rotated by `twos`, is not above the highest
 * quotient: no remainder is computed. */
#define DEFINE_ALL_HAVE(NAME, TARGET)                                                                                 \
    TARGET static int NAME(const int64_t *ids, Py_ssize_t n, uint64_t base, uint64_t inverse, int twos, uint64_t most) \
    {                                                                                                                 \
        uint64_t wrong = 0;                                                                                           \
        Py_ssize_t k;                                                                                                 \
        for (k = 0; k < n; k++) {                                                                                     \
            uint64_t u = (uint64_t)ids[k] ^ 1ULL << 63, product = (u - base) * inverse;                               \
            product = product >> twos | product << ((64 - twos) & 63);                                                \
            wrong |= (uint64_t)(u < base) | (uint64_t)(product > most);                                               \
        }                                                                                                             \
        return !wrong;                                                                                                \
    }

DEFINE_ALL_HAVE(all_have_plain, )

#ifdef HAVE_X86_TARGETS
DEFINE_ALL_HAVE(all_have_512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif

static int all_have(const int64_t *ids, Py_ssize_t n, uint64_t ps_num, uint64_t ps_id)
{
    uint64_t wrong = 0, odd = ps_num, most = ~0ULL / ps_num, inverse, base;
    int twos = 0, step;
    Py_ssize_t k;
    if ((ps_num & (ps_num - 1)) == 0) {
        for (k = 0; k < n; k++)
            wrong |= ((uint64_t)ids[k] ^ ps_id) & (ps_num - 1);
        return !wrong;
    }
    for (; !(odd & 1); odd >>= 1)
        twos++;
    inverse = odd; /* right in 3 bits; each step doubles them */
    for (step = 0; step < 5; step++)
        inverse *= 2 - odd * inverse;
    base = (ps_id + (1ULL << 63) % ps_num) % ps_num;
#ifdef HAVE_X86_TARGETS
    if (simd_level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return all_have_512(ids, n, base, inverse, twos, most);
#endif
    return all_have_plain(ids, n, base, inverse, twos, most);
}

static PyObject *have_owner(PyObject *self, PyObject *args)
{
    PyObject *ids_o;
    Py_ssize_t ps_num, ps_id;
    Buffers b = {.count = 0};
    Py_buffer *ids;
    int all;
    (void)self;
    if (!PyArg_ParseTuple(args, "Onn:have_owner", &ids_o, &ps_num, &ps_id))
        return NULL;
    if (!(ids = acquire(&b, ids_o, 0))) {
        release(&b);
        return NULL;
    }
    if (ps_id < 0 || ps_id >= ps_num)
        return refuse(&b, "have_owner: ps_id must be below ps_num, got %zd of %zd", ps_id, ps_num);
    Py_BEGIN_ALLOW_THREADS
    all = all_have(ids->buf, ids->len / 8, (uint64_t)ps_num, (uint64_t)ps_id);
    Py_END_ALLOW_THREADS
    release(&b);
    return PyBool_FromLong(all);
}

/* Ids that are tallied at a time: so many lengths of a byte add up in 32 bits. */
#define TALLIED_AT_ONCE ((Py_ssize_t)1 << 24)

/* Return the first owner that is no target, or -1. */
static Py_ssize_t first_bad_owner(const uint16_t *of, Py_ssize_t n, Py_ssize_t ps_num)
{
    Py_ssize_t k;
    uint16_t most = 0;
    for (k = 0; k < n; k++)
        most = of[k] > most ? of[k] : most;
    for (k = 0; most >= ps_num && k < n; k++)
        if (of[k] >= ps_num)
            return k;
    return -1;
}

/* Add the rows and bytes of owners below ps_num; `sums` is room for 2 * ps_num numbers. A row and its bytes are one
 * addition, and rows that follow each other are added to different sums: neither waits for the one before. */
static void add_tally(const uint16_t *of, const uint8_t *length, Py_ssize_t n, Py_ssize_t ps_num, int64_t *rows,
                      int64_t *bytes, uint64_t *sums)
{
    Py_ssize_t done, k;
    for (done = 0; done < n; done += TALLIED_AT_ONCE) {
        Py_ssize_t end = n - done < TALLIED_AT_ONCE ? n : done + TALLIED_AT_ONCE;
        memset(sums, 0, (size_t)ps_num * 16);
        for (k = done; k + 1 < end; k += 2) {
            sums[of[k]] += (uint64_t)1 << 32 | length[k];
            sums[ps_num + of[k + 1]] += (uint64_t)1 << 32 | length[k + 1];
        }
        if (k < end)
            sums[of[k]] += (uint64_t)1 << 32 | length[k];
        for (k = 0; k < ps_num; k++) {
            rows[k] += (int64_t)((sums[k] >> 32) + (sums[ps_num + k] >> 32));
            bytes[k] += (int64_t)((sums[k] & UINT32_MAX) + (sums[ps_num + k] & UINT32_MAX));
        }
    }
}

static PyObject *tally(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    Buffers b = {.count = 0};
    Py_buffer *owner, *lengths, *rows, *id_bytes;
    Py_ssize_t n, ps_num, bad;
    uint64_t *sums;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO:tally", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    if (!(owner = acquire(&b, o[0], 0)) || !(lengths = acquire(&b, o[1], 0)) || !(rows = acquire(&b, o[2], 1)) ||
        !(id_bytes = acquire(&b, o[3], 1))) {
        release(&b);
        return NULL;
    }
    n = lengths->len;
    ps_num = rows->len / 8;
    if (owner->len != n * 2)
        return refuse_size(&b, "tally", "owner", owner, n, 2);
    if (id_bytes->len != rows->len)
        return refuse(&b, "tally: id_bytes has %zd byte%s, rows has %zd", COUNTED(id_bytes->len), rows->len);
    if (!(sums = PyMem_Malloc((size_t)ps_num * 16 + 1))) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    bad = first_bad_owner(owner->buf, n, ps_num);
    if (bad < 0)
        add_tally(owner->buf, lengths->buf, n, ps_num, rows->buf, id_bytes->buf, sums);
    Py_END_ALLOW_THREADS
    PyMem_Free(sums);
    if (bad >= 0)
        return refuse_owner(&b, "tally", owner->buf, bad, ps_num);
    release(&b);
    Py_RETURN_NONE;
}

/* Where the next row of the same target will lie is fetched ahead: no processor follows so many streams by itself. */
#if defined(__GNUC__)
#define PREFETCH(ADDRESS) __builtin_prefetch(ADDRESS)
#define PREFETCH_WRITE(ADDRESS) __builtin_prefetch(ADDRESS, 1)
#else
#define PREFETCH(ADDRESS) (void)0
#define PREFETCH_WRITE(ADDRESS) (void)0
#endif

#define COPY_ROWS(SIZE)                                                                                               \
    for (k = 0; k < n; k++) {                                                                                         \
        uint8_t *to = out + next[of[k]]++ * (SIZE);                                                                   \
        memcpy(to, in + k * (SIZE), (SIZE));                                                                          \
        PREFETCH_WRITE(to + 2 * (SIZE) - 1);                                                                          \
    }

static void copy_rows(const uint8_t *in, Py_ssize_t size, const uint16_t *of, Py_ssize_t n, int64_t *next, uint8_t *out)
{
    Py_ssize_t k;
    switch (size) {
    case 4: COPY_ROWS(4) break;
    case 8: COPY_ROWS(8) break;
    case 16: COPY_ROWS(16) break;
    case 32: COPY_ROWS(32) break;
    case 64: COPY_ROWS(64) break;
    case 128: COPY_ROWS(128) break;
    default: COPY_ROWS(size) break;
    }
}

/* The first disagreement of owners and starts: a row whose owner is no target, or a target that starts elsewhere. */
typedef struct {
    Py_ssize_t row;    /* -1 when every owner is a target */
    Py_ssize_t target; /* -1 when every target starts where the one before it ends */
    int64_t start;     /* where that target should start */
} Mismatch;

/* Compare starts with the sizes that owners add up to; sizes NULL means one each. With no mismatch every place that
 * `next` hands out is inside of the sum of all sizes. */
static Mismatch compare(const uint16_t *of, const uint8_t *sizes, Py_ssize_t n, const int64_t *starts,
                        Py_ssize_t ps_num, int64_t *scratch)
{
    Mismatch found = {-1, -1, 0};
    Py_ssize_t k;
    memset(scratch, 0, (size_t)ps_num * 8);
    for (k = 0; k < n; k++) {
        if (of[k] >= ps_num) {
            found.row = k;
            return found;
        }
        scratch[of[k]] += sizes ? sizes[k] : 1;
    }
    for (k = 0; k < ps_num; k++) {
        if (starts[k] != found.start) {
            found.target = k;
            return found;
        }
        found.start += scratch[k];
    }
    return found;
}

static int agrees(Mismatch found)
{
    return found.row < 0 && found.target < 0;
}

static PyObject *refuse_mismatch(Buffers *b, const char *function, Mismatch found, const Py_buffer *owner,
                                 const Py_buffer *starts, const char *noun)
{
    if (found.row >= 0)
        return refuse_owner(b, function, owner->buf, found.row, starts->len / 8);
    return refuse(b, "%s: target %zd starts at %s %lld, expected %lld", function, found.target, noun,
                  (long long)((const int64_t *)starts->buf)[found.target], (long long)found.start);
}

static PyObject *group_rows(PyObject *self, PyObject *args)
{
    PyObject *values_o, *owner_o, *starts_o, *out_o;
    Py_ssize_t row_bytes, n, ps_num;
    Buffers b = {.count = 0};
    Py_buffer *values, *owner, *starts, *out;
    int64_t *next;
    Mismatch found;
    (void)self;
    if (!PyArg_ParseTuple(args, "OnOOO:group_rows", &values_o, &row_bytes, &owner_o, &starts_o, &out_o))
        return NULL;
    if (!(values = acquire(&b, values_o, 0)) || !(owner = acquire(&b, owner_o, 0)) ||
        !(starts = acquire(&b, starts_o, 0)) || !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    if (row_bytes < 1)
        return refuse(&b, "group_rows: row_bytes must be at least 1, got %zd", row_bytes);
    n = values->len / row_bytes;
    ps_num = starts->len / 8;
    if (values->len % row_bytes)
        return refuse(&b, "group_rows: values has %zd byte%s, not a multiple of row_bytes %zd", COUNTED(values->len),
                      row_bytes);
    if (owner->len != n * 2)
        return refuse_size(&b, "group_rows", "owner", owner, n, 2);
    if (out->len != values->len)
        return refuse_size(&b, "group_rows", "out", out, n, row_bytes);
    next = PyMem_Malloc((size_t)(ps_num ? ps_num : 1) * 8);
    if (!next) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    found = compare(owner->buf, NULL, n, starts->buf, ps_num, next);
    if (agrees(found)) {
        memcpy(next, starts->buf, (size_t)ps_num * 8);
        copy_rows(values->buf, row_bytes, owner->buf, n, next, out->buf);
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(next);
    if (!agrees(found))
        return refuse_mismatch(&b, "group_rows", found, owner, starts, "row");
    release(&b);
    Py_RETURN_NONE;
}

static void copy_varints(const uint8_t *in, const uint8_t *sizes, const uint16_t *of, Py_ssize_t n, int64_t *next,
                         uint8_t *out)
{
    Py_ssize_t k;
    for (k = 0; k < n; k++) {
        size_t size = sizes[k];
        uint8_t *to = out + next[of[k]];
        next[of[k]] += (int64_t)size;
        if (size >= 8) {
            memcpy(to, in, 8);
            memcpy(to + size - 2, in + size - 2, 2);
        } else if (size >= 4) { /* two loads that overlap */
            memcpy(to, in, 4);
            memcpy(to + size - 4, in + size - 4, 4);
        } else {
            to[0] = in[0];
            to[size - 1] = in[size - 1];
            to[size / 2] = in[size / 2];
        }
        in += size;
    }
}

/* Refuse lengths that no varint has, or that do not add up to the size of the data. */
static PyObject *refuse_lengths(Buffers *b, const Py_buffer *lengths, Py_ssize_t total, Py_ssize_t size)
{
    Py_ssize_t k;
    for (k = 0; k < lengths->len; k++) {
        int length = ((const uint8_t *)lengths->buf)[k];
        if (length < 1 || length > 10)
            return refuse(b, "group_varints: the varint of row %zd has length %d, expected 1 to 10", k, length);
    }
    return refuse(b, "group_varints: data has %zd byte%s, the %zd length%s %s up to %zd", COUNTED(size),
                  COUNTED(lengths->len), lengths->len == 1 ? "adds" : "add", total);
}

static PyObject *group_varints(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    Buffers b = {.count = 0};
    Py_buffer *data, *lengths, *owner, *starts, *out;
    Py_ssize_t k, n, ps_num, total = 0;
    int64_t *next;
    int good = 1;
    Mismatch found = {-1, -1, 0};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOO:group_varints", &o[0], &o[1], &o[2], &o[3], &o[4]))
        return NULL;
    if (!(data = acquire(&b, o[0], 0)) || !(lengths = acquire(&b, o[1], 0)) || !(owner = acquire(&b, o[2], 0)) ||
        !(starts = acquire(&b, o[3], 0)) || !(out = acquire(&b, o[4], 1))) {
        release(&b);
        return NULL;
    }
    n = lengths->len;
    ps_num = starts->len / 8;
    if (owner->len != n * 2)
        return refuse_size(&b, "group_varints", "owner", owner, n, 2);
    if (out->len != data->len)
        return refuse(&b, "group_varints: out has %zd byte%s, data has %zd", COUNTED(out->len), data->len);
    next = PyMem_Malloc((size_t)(ps_num ? ps_num : 1) * 8);
    if (!next) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n; k++) {
        uint8_t size = ((const uint8_t *)lengths->buf)[k];
        good &= size >= 1 && size <= 10;
        total += size;
    }
    good = good && total == data->len;
    if (good)
        found = compare(owner->buf, lengths->buf, n, starts->buf, ps_num, next);
    if (good && agrees(found)) {
        memcpy(next, starts->buf, (size_t)ps_num * 8);
        copy_varints(data->buf, lengths->buf, owner->buf, n, next, out->buf);
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(next);
    if (!good)
        return refuse_lengths(&b, lengths, total, data->len);
    if (!agrees(found))
        return refuse_mismatch(&b, "group_varints", found, owner, starts, "byte");
    release(&b);
    Py_RETURN_NONE;
}

#define KEY_ADD 0x9FB21C651E98DF25ULL
#define KEY_FIRST 0xBF58476D1CE4E5B9ULL
#define KEY_SECOND 0x94D049BB133111EBULL
#define KEY_MORE 0xD6E8FEB86659FD93ULL
#define KEY_THIRD 0xA0761D6478BD642FULL

/* Compute the eight 16-bit limbs of the key of a row (fingerprint.py). */
static void row_key(uint64_t id, uint64_t salt, int16_t key[LIMBS])
{
    uint64_t words[2];
    words[0] = (id + salt + KEY_ADD) * KEY_FIRST;
    words[0] ^= words[0] >> 32;
    words[0] *= KEY_SECOND;
    words[0] ^= words[0] >> 29;
    words[1] = (words[0] + KEY_MORE) * KEY_THIRD;
    words[1] ^= words[1] >> 32;
    memcpy(key, words, 16);
}

/* Add n rows, of `size` bytes every `stride`, times their keys to sums[LIMBS][columns]. */
static void sketch_plain(uint32_t *sums, Py_ssize_t columns, const int16_t keys[][LIMBS], const uint8_t *rows,
                         Py_ssize_t stride, Py_ssize_t size, Py_ssize_t n)
{
    Py_ssize_t r, j, m;
    for (r = 0; r < n; r++)
        for (j = 0; j < size; j += 2) {
            uint16_t raw = rows[r * stride + j];
            int32_t x;
            if (j + 1 < size)
                raw |= (uint16_t)(rows[r * stride + j + 1] << 8);
            x = (int16_t)raw;
            for (m = 0; m < LIMBS; m++)
                sums[m * columns + j / 2] += (uint32_t)(x * (int32_t)keys[r][m]);
        }
}

#ifdef HAVE_X86_TARGETS
/* Pair the keys of two rows, as the instructions below want them: the limbs of both next to each other. */
static void pair_keys(const int16_t keys[][LIMBS], Py_ssize_t n, uint32_t pairs[][LIMBS])
{
    Py_ssize_t p;
    for (p = 0; 2 * p < n; p++) {
        __m128i a = _mm_loadu_si128((const __m128i *)keys[2 * p]);
        __m128i b = 2 * p + 1 < n ? _mm_loadu_si128((const __m128i *)keys[2 * p + 1]) : _mm_setzero_si128();
        _mm_storeu_si128((__m128i *)pairs[p], _mm_unpacklo_epi16(a, b));
        _mm_storeu_si128((__m128i *)(pairs[p] + 4), _mm_unpackhi_epi16(a, b));
    }
}

/* Add the paired keys of n rows to the totals of the limbs. */
__attribute__((target("avx2"))) static void add_keys(uint32_t pairs[][LIMBS], Py_ssize_t n, uint32_t total[LIMBS])
{
    __m256i sum = _mm256_loadu_si256((const __m256i *)total);
    const __m256i ones = _mm256_set1_epi16(1);
    Py_ssize_t p;
    for (p = 0; 2 * p < n; p++)
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)pairs[p]), ones));
    _mm256_storeu_si256((__m256i *)total, sum);
}

/* Add the sums of one limb, which unpacking has left in two halves of 128-bit lanes, to columns from `first` on. */
static void add_out(uint32_t *sums, Py_ssize_t first, Py_ssize_t bytes, const uint32_t *low, const uint32_t *high,
                    int lanes)
{
    uint32_t ordered[32] = {0};
    Py_ssize_t k, wanted = (bytes + 1) / 2;
    for (k = 0; k < lanes; k++) {
        memcpy(ordered + 8 * k, low + 4 * k, 16);
        memcpy(ordered + 8 * k + 4, high + 4 * k, 16);
    }
    for (k = 0; k < wanted; k++)
        sums[first + k] += ordered[k];
}

/* Copy the last bytes of rows, fewer than a vector, into vectors of zeros. */
static void copy_tails(const uint8_t *rows, Py_ssize_t stride, Py_ssize_t n, Py_ssize_t bytes, Py_ssize_t vector,
                       uint8_t *tails)
{
    Py_ssize_t r;
    memset(tails, 0, (size_t)(n * vector));
    for (r = 0; r < n; r++)
        memcpy(tails + r * vector, rows + r * stride, (size_t)bytes);
}

/* Two rows at a time: pmaddwd multiplies a column of both by their two keys and adds the products. */
__attribute__((target("avx2"))) static void sketch_avx2(uint32_t *sums, Py_ssize_t columns, uint32_t pairs[][LIMBS],
                                                         const uint8_t *rows, Py_ssize_t stride, Py_ssize_t size,
                                                         Py_ssize_t n)
{
    uint8_t tails[BLOCK_ROWS * 32];
    Py_ssize_t p, c, half;
    for (c = 0; c < size; c += 32) {
        const uint8_t *from = rows + c;
        Py_ssize_t step = stride, bytes = size - c < 32 ? size - c : 32;
        if (bytes < 32) {
            copy_tails(from, stride, n, bytes, 32, tails);
            from = tails;
            step = 32;
        }
        for (half = 0; half < LIMBS; half += 4) {
            __m256i low0, low1, low2, low3, high0, high1, high2, high3, key;
            uint32_t out[2][8];
            low0 = low1 = low2 = low3 = high0 = high1 = high2 = high3 = _mm256_setzero_si256();
            for (p = 0; 2 * p < n; p++) {
                Py_ssize_t other = 2 * p + 1 < n ? 2 * p + 1 : 2 * p;
                __m256i a = _mm256_loadu_si256((const __m256i *)(from + 2 * p * step));
                __m256i b = _mm256_loadu_si256((const __m256i *)(from + other * step));
                __m256i first = _mm256_unpacklo_epi16(a, b), second = _mm256_unpackhi_epi16(a, b);
#define ADD_HALF(M)                                                                                                   \
    key = _mm256_set1_epi32((int)pairs[p][half + (M)]);                                                               \
    low##M = _mm256_add_epi32(low##M, _mm256_madd_epi16(first, key));                                                 \
    high##M = _mm256_add_epi32(high##M, _mm256_madd_epi16(second, key));
                ADD_HALF(0) ADD_HALF(1) ADD_HALF(2) ADD_HALF(3)
            }
#define STORE_HALF(M)                                                                                                 \
    _mm256_storeu_si256((__m256i *)out[0], low##M);                                                                   \
    _mm256_storeu_si256((__m256i *)out[1], high##M);                                                                  \
    add_out(sums + (half + (M)) * columns, c / 2, bytes, out[0], out[1], 2);
            STORE_HALF(0) STORE_HALF(1) STORE_HALF(2) STORE_HALF(3)
        }
    }
}

#define VNNI_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

/* Compute the keys of eight rows at a time; `row_key` does the remaining ones. */
VNNI_TARGET static void row_keys_vnni(const int64_t *ids, Py_ssize_t n, uint64_t salt, int16_t keys[][LIMBS])
{
    const __m512i add = _mm512_set1_epi64((long long)(salt + KEY_ADD)), more = _mm512_set1_epi64((long long)KEY_MORE);
    const __m512i first = _mm512_set1_epi64((long long)KEY_FIRST), second = _mm512_set1_epi64((long long)KEY_SECOND);
    const __m512i third = _mm512_set1_epi64((long long)KEY_THIRD);
    const __m512i front = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i back = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    Py_ssize_t r;
    for (r = 0; r + 8 <= n; r += 8) {
        __m512i k0 = _mm512_mullo_epi64(_mm512_add_epi64(_mm512_loadu_si512(ids + r), add), first), k1;
        k0 = _mm512_mullo_epi64(_mm512_xor_si512(k0, _mm512_srli_epi64(k0, 32)), second);
        k0 = _mm512_xor_si512(k0, _mm512_srli_epi64(k0, 29));
        k1 = _mm512_mullo_epi64(_mm512_add_epi64(k0, more), third);
        k1 = _mm512_xor_si512(k1, _mm512_srli_epi64(k1, 32));
        _mm512_storeu_si512(keys[r], _mm512_permutex2var_epi64(k0, front, k1));
        _mm512_storeu_si512(keys[r + 4], _mm512_permutex2var_epi64(k0, back, k1));
    }
    for (; r < n; r++)
        row_key((uint64_t)ids[r], salt, keys[r]);
}

/* The sums of each limb have a name of their own: in an array, gcc writes all of them to memory for each pair of rows,
 * which takes three times as long as the sums. */
#define EACH_LIMB(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define DECLARE_LIMB(M) __m512i low##M = _mm512_setzero_si512(), high##M = _mm512_setzero_si512();
#define ADD_LIMB(M)                                                                                                   \
    key = KEY_OF(M);                                                                                                  \
    low##M = _mm512_dpwssd_epi32(low##M, first, key);                                                                 \
    high##M = _mm512_dpwssd_epi32(high##M, second, key);
#define STORE_LIMB(M)                                                                                                 \
    _mm512_storeu_si512(out[0], low##M);                                                                              \
    _mm512_storeu_si512(out[1], high##M);                                                                             \
    add_out(sums + (M) * columns, c / 2, bytes, out[0], out[1], 4);

/* Do what sketch_avx2 does with 512 bits, multiplying and adding in one instruction, for columns from byte c on. */
VNNI_TARGET static void sketch_wide(uint32_t *sums, Py_ssize_t columns, uint32_t pairs[][LIMBS], const uint8_t *rows,
                                    Py_ssize_t stride, Py_ssize_t c, Py_ssize_t bytes, Py_ssize_t n)
{
#define KEY_OF(M) _mm512_set1_epi32((int)pairs[p][M])
    __mmask64 inside = ~0ULL >> (64 - bytes);
    uint32_t out[2][16];
    Py_ssize_t p;
    EACH_LIMB(DECLARE_LIMB)
    for (p = 0; 2 * p < n; p++) {
        Py_ssize_t other = 2 * p + 1 < n ? 2 * p + 1 : 2 * p;
        __m512i a = _mm512_maskz_loadu_epi8(inside, rows + 2 * p * stride + c), key;
        __m512i b = _mm512_maskz_loadu_epi8(inside, rows + other * stride + c);
        __m512i first = _mm512_unpacklo_epi16(a, b), second = _mm512_unpackhi_epi16(a, b);
        EACH_LIMB(ADD_LIMB)
    }
    EACH_LIMB(STORE_LIMB)
#undef KEY_OF
}

#undef STORE_LIMB
#define STORE_LIMB(M)                                                                                                 \
    low##M = _mm512_add_epi32(low##M, _mm512_shuffle_i64x2(low##M, low##M, 0x4E));                                    \
    high##M = _mm512_add_epi32(high##M, _mm512_shuffle_i64x2(high##M, high##M, 0x4E));                                \
    _mm512_storeu_si512(out[0], low##M);                                                                              \
    _mm512_storeu_si512(out[1], high##M);                                                                             \
    add_out(sums + (M) * columns, c / 2, bytes, out[0], out[1], 2);

/* The same for at most 32 bytes of each row: two pairs of rows share the registers. */
VNNI_TARGET static void sketch_narrow(uint32_t *sums, Py_ssize_t columns, uint32_t pairs[][LIMBS], const uint8_t *rows,
                                      Py_ssize_t stride, Py_ssize_t c, Py_ssize_t bytes, Py_ssize_t n)
{
#define ROW_OF(R) _mm256_maskz_loadu_epi8((R) < n ? inside : 0, rows + ((R) < n ? (R) : 0) * stride + c)
#define TWO_ROWS(R) _mm512_inserti64x4(_mm512_castsi256_si512(ROW_OF(R)), ROW_OF((R) + 2), 1)
#define KEY_OF(M) _mm512_permutexvar_epi32(_mm512_add_epi32(halves, _mm512_set1_epi32(M)), keys)
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
    __mmask32 inside = ~0U >> (32 - bytes);
    uint32_t out[2][16];
    Py_ssize_t p;
    EACH_LIMB(DECLARE_LIMB)
    for (p = 0; 2 * p < n; p += 2) { /* the keys of a pair without rows do not matter */
        __m512i a = TWO_ROWS(2 * p), b = TWO_ROWS(2 * p + 1), keys = _mm512_loadu_si512(pairs[p]), key;
        __m512i first = _mm512_unpacklo_epi16(a, b), second = _mm512_unpackhi_epi16(a, b);
        EACH_LIMB(ADD_LIMB)
    }
    EACH_LIMB(STORE_LIMB)
#undef KEY_OF
#undef TWO_ROWS
#undef ROW_OF
}

static void sketch_vnni(uint32_t *sums, Py_ssize_t columns, uint32_t pairs[][LIMBS], const uint8_t *rows,
                        Py_ssize_t stride, Py_ssize_t size, Py_ssize_t n)
{
    Py_ssize_t c;
    for (c = 0; c < size; c += 64) {
        Py_ssize_t bytes = size - c < 64 ? size - c : 64;
        (bytes <= 32 ? sketch_narrow : sketch_wide)(sums, columns, pairs, rows, stride, c, bytes, n);
    }
}
#endif

static void sketch_rows(uint32_t *sums, Py_ssize_t columns, const int64_t *ids, Py_ssize_t n, const uint8_t *rows,
                        Py_ssize_t stride, Py_ssize_t size, uint64_t salt)
{
    int16_t keys[BLOCK_ROWS][LIMBS];
    uint32_t total[LIMBS] = {0};
    Py_ssize_t done, r, m;
#ifdef HAVE_X86_TARGETS
    uint32_t pairs[BLOCK_ROWS / 2][LIMBS] = {{0}};
    int avx2 = __builtin_cpu_supports("avx2");
    int vnni = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && simd_level >= 2;
    avx2 = avx2 && simd_level >= 1;
#endif
    for (done = 0; done < n; done += BLOCK_ROWS) {
        Py_ssize_t some = n - done < BLOCK_ROWS ? n - done : BLOCK_ROWS;
        const uint8_t *from = rows + done * stride;
#ifdef HAVE_X86_TARGETS
        if (vnni)
            row_keys_vnni(ids + done, some, salt, keys);
        else
#endif
            for (r = 0; r < some; r++)
                row_key((uint64_t)ids[done + r], salt, keys[r]);
#ifdef HAVE_X86_TARGETS
        if (avx2) {
            pair_keys((const int16_t (*)[LIMBS])keys, some, pairs);
            add_keys(pairs, some, total);
            (vnni ? sketch_vnni : sketch_avx2)(sums, columns, pairs, from, stride, size, some);
            continue;
        }
#endif
        for (r = 0; r < some; r++)
            for (m = 0; m < LIMBS; m++)
                total[m] += (uint32_t)(int32_t)keys[r][m];
        sketch_plain(sums, columns, (const int16_t (*)[LIMBS])keys, from, stride, size, some);
    }
    for (m = 0; m < LIMBS; m++)
        sums[m * columns + columns - 1] += total[m];
}

static PyObject *sketch(PyObject *self, PyObject *args)
{
    PyObject *sums_o, *ids_o, *values_o;
    Py_ssize_t row_bytes, start, size, n, columns, needed;
    unsigned long long salt;
    Buffers b = {.count = 0};
    Py_buffer *sums, *ids, *values;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOnnnK:sketch", &sums_o, &ids_o, &values_o, &row_bytes, &start, &size, &salt))
        return NULL;
    if (!(sums = acquire(&b, sums_o, 1)) || !(ids = acquire(&b, ids_o, 0)) || !(values = acquire(&b, values_o, 0))) {
        release(&b);
        return NULL;
    }
    if (row_bytes < 1)
        return refuse(&b, "sketch_rows: row_bytes must be at least 1, got %zd", row_bytes);
    if (start < 0 || size < 0 || start > row_bytes - size)
        return refuse(&b, "sketch_rows: %zd byte%s from byte %zd on %s not inside of rows of %zd byte%s",
                      COUNTED(size), start, size == 1 ? "is" : "are", COUNTED(row_bytes));
    n = values->len / row_bytes;
    columns = sums->len / (4 * LIMBS);
    needed = size / 2 + size % 2 + 1;
    if (values->len % row_bytes)
        return refuse(&b, "sketch_rows: values has %zd byte%s, not a multiple of row_bytes %zd", COUNTED(values->len),
                      row_bytes);
    if (ids->len != n * 8)
        return refuse_size(&b, "sketch_rows", "ids", ids, n, 8);
    if (columns < needed)
        return refuse(&b, "sketch_rows: sketch has %zd column%s, rows of %zd byte%s need %zd", COUNTED(columns),
                      COUNTED(row_bytes), needed);
    Py_BEGIN_ALLOW_THREADS
    sketch_rows(sums->buf, columns, ids->buf, n, (const uint8_t *)values->buf + start, row_bytes, size, salt);
    Py_END_ALLOW_THREADS
    release(&b);
    Py_RETURN_NONE;
}

/* Add n rows to a sketch, chunk by chunk, as bulk.sketch_rows does; a row of no bytes has one chunk of no columns. */
static void sketch_whole_rows(uint32_t *sums, const int64_t *ids, Py_ssize_t n, const uint8_t *rows,
                              Py_ssize_t row_bytes)
{
    Py_ssize_t widest = row_bytes < CHUNK_BYTES ? row_bytes : CHUNK_BYTES, columns = (widest + 1) / 2 + 1, start = 0;
    uint64_t chunk = 0;
    do {
        Py_ssize_t size = row_bytes - start < CHUNK_BYTES ? row_bytes - start : CHUNK_BYTES;
        sketch_rows(sums, columns, ids, n, rows + start, row_bytes, size, chunk++ * CHUNK_STEP);
        start += CHUNK_BYTES;
    } while (start < row_bytes);
}

/* Copy n rows to the places of their owners, which move on; 0 when a row would leave `out`. */
static int place_rows(const uint8_t *in, Py_ssize_t row_bytes, const uint16_t *of, Py_ssize_t n, int64_t *places,
                      uint8_t *out, Py_ssize_t size)
{
    Py_ssize_t k;
    for (k = 0; k < n; k++) {
        int64_t to = places[of[k]];
        if (to < 0 || to > size - row_bytes)
            return 0;
        places[of[k]] = to + row_bytes;
        switch (row_bytes) { /* a constant size is copied without a call */
        case 16: memcpy(out + to, in + k * 16, 16); break;
        case 32: memcpy(out + to, in + k * 32, 32); break;
        case 64: memcpy(out + to, in + k * 64, 64); break;
        default: memcpy(out + to, in + k * row_bytes, (size_t)row_bytes);
        }
        PREFETCH_WRITE(out + to + 2 * row_bytes - 1);
    }
    return 1;
}

static PyObject *move_rows(PyObject *self, PyObject *args)
{
    PyObject *sums_o, *ids_o, *owner_o, *values_o, *places_o, *out_o;
    Py_ssize_t row_bytes, n, k, done, ps_num, bad = -1, needed;
    Buffers b = {.count = 0};
    Py_buffer *sums, *ids, *owner, *values, *places, *out;
    int fits = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOnOO:move_rows", &sums_o, &ids_o, &owner_o, &values_o, &row_bytes, &places_o,
                          &out_o))
        return NULL;
    if (!(sums = acquire(&b, sums_o, 1)) || !(ids = acquire(&b, ids_o, 0)) || !(owner = acquire(&b, owner_o, 0)) ||
        !(values = acquire(&b, values_o, 0)) || !(places = acquire(&b, places_o, 1)) ||
        !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    n = ids->len / 8;
    ps_num = places->len / 8;
    if (row_bytes < 1)
        return refuse(&b, "move_rows: row_bytes must be at least 1, got %zd", row_bytes);
    if (owner->len != n * 2)
        return refuse_size(&b, "move_rows", "owner", owner, n, 2);
    if (values->len / row_bytes != n || values->len % row_bytes)
        return refuse_size(&b, "move_rows", "values", values, n, row_bytes);
    needed = (((row_bytes < CHUNK_BYTES ? row_bytes : CHUNK_BYTES) + 1) / 2 + 1) * LIMBS * 4;
    if (sums->len != needed)
        return refuse(&b, "move_rows: sketch has %zd byte%s, rows of %zd byte%s need %zd", COUNTED(sums->len),
                      COUNTED(row_bytes), needed);
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n && bad < 0; k++)
        if (((const uint16_t *)owner->buf)[k] >= ps_num)
            bad = k;
    for (done = 0; done < n && bad < 0 && fits; done += BLOCK_ROWS) { /* both looks while the rows are in the cache */
        Py_ssize_t some = n - done < BLOCK_ROWS ? n - done : BLOCK_ROWS;
        const uint8_t *from = (const uint8_t *)values->buf + done * row_bytes;
        sketch_whole_rows(sums->buf, (const int64_t *)ids->buf + done, some, from, row_bytes);
        fits = place_rows(from, row_bytes, (const uint16_t *)owner->buf + done, some, places->buf, out->buf, out->len);
    }
    Py_END_ALLOW_THREADS
    if (bad >= 0)
        return refuse_owner(&b, "move_rows", owner->buf, bad, ps_num);
    if (!fits)
        return refuse(&b, "move_rows: a row has its place outside of the %zd byte%s of out", COUNTED(out->len));
    release(&b);
    Py_RETURN_NONE;
}

/* Fill a buffer from a file; 0 when done, -1 when the file ends before that, else the number of the error. */
static int read_whole(int file, uint8_t *to, Py_ssize_t size, int64_t at)
{
    while (size > 0) {
        ssize_t count = pread(file, to, (size_t)size, (off_t)at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 ? errno : -1;
        to += count, at += count, size -= count;
    }
    return 0;
}

/* Write a buffer to a file; 0 when done, else the number of the error. */
static int write_whole(int file, const uint8_t *from, Py_ssize_t size, int64_t at)
{
    while (size > 0) {
        ssize_t count = pwrite(file, from, (size_t)size, (off_t)at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno;
        from += count, at += count, size -= count;
    }
    return 0;
}

/* Write the stretches of `data`, one for each target, at its offset; None, or (target, number of the error). */
static PyObject *write_groups(PyObject *self, PyObject *args)
{
    PyObject *targets_o, *data_o, *sizes_o, *offsets_o;
    Py_ssize_t k, ps_num, failed = -1;
    Buffers b = {.count = 0};
    Py_buffer *targets, *data, *sizes, *offsets;
    const int64_t *size;
    int64_t left, start = 0;
    int error = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO:write_groups", &targets_o, &data_o, &sizes_o, &offsets_o))
        return NULL;
    if (!(targets = acquire(&b, targets_o, 0)) || !(data = acquire(&b, data_o, 0)) ||
        !(sizes = acquire(&b, sizes_o, 0)) || !(offsets = acquire(&b, offsets_o, 0))) {
        release(&b);
        return NULL;
    }
    ps_num = sizes->len / 8;
    if (targets->len != ps_num * 4)
        return refuse_size(&b, "write_groups", "targets", targets, ps_num, 4);
    if (offsets->len != ps_num * 8)
        return refuse_size(&b, "write_groups", "offsets", offsets, ps_num, 8);
    size = sizes->buf;
    left = data->len;
    for (k = 0; k < ps_num; left -= size[k++])
        if (size[k] < 0 || size[k] > left)
            return refuse(&b, "write_groups: target %zd has %lld bytes, there are %lld", k, (long long)size[k],
                          (long long)left);
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < ps_num && !error; start += size[k++])
        if (size[k] && (error = write_whole(((const int32_t *)targets->buf)[k], (const uint8_t *)data->buf + start,
                                            (Py_ssize_t)size[k], ((const int64_t *)offsets->buf)[k])))
            failed = k;
    Py_END_ALLOW_THREADS
    release(&b);
    if (!error)
        Py_RETURN_NONE;
    return Py_BuildValue("ni", failed, error);
}

/* Count the rows of each owner; let `starts` and `places` be where each begins, in bytes, when they are put in order.
 * Return the greatest count. */
static int64_t order_by_owner(const uint16_t *of, Py_ssize_t n, Py_ssize_t row_bytes, Py_ssize_t ps_num,
                              int64_t *starts, int64_t *places)
{
    int64_t start = 0, most = 0;
    Py_ssize_t k;
    memset(places, 0, (size_t)ps_num * 8);
    for (k = 0; k < n; k++)
        places[of[k]]++;
    for (k = 0; k < ps_num; k++) {
        int64_t own = places[k];
        most = own > most ? own : most;
        starts[k] = places[k] = start;
        start += own * row_bytes;
    }
    return most;
}

static PyObject *move_file_rows(PyObject *self, PyObject *args)
{
    PyObject *sums_o, *ids_o, *owner_o, *targets_o, *values_at_o, *look_o, *gathered_o;
    Py_ssize_t row_bytes, step, n, k, done, some, ps_num, look_rows, bad = -1, needed, failed = -1;
    Buffers b = {.count = 0};
    Py_buffer *sums, *ids, *owner, *targets, *values_at, *look, *gathered;
    int64_t *starts, *places;
    long long offset;
    int source, error = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOiLnnOOOO:move_file_rows", &sums_o, &ids_o, &owner_o, &source, &offset, &row_bytes,
                          &step, &targets_o, &values_at_o, &look_o, &gathered_o))
        return NULL;
    if (!(sums = acquire(&b, sums_o, 1)) || !(ids = acquire(&b, ids_o, 0)) || !(owner = acquire(&b, owner_o, 0)) ||
        !(targets = acquire(&b, targets_o, 0)) || !(values_at = acquire(&b, values_at_o, 1)) ||
        !(look = acquire(&b, look_o, 1)) || !(gathered = acquire(&b, gathered_o, 1))) {
        release(&b);
        return NULL;
    }
    n = ids->len / 8;
    ps_num = values_at->len / 8;
    if (row_bytes < 1 || step < 1)
        return refuse(&b, "move_file_rows: row_bytes and step must be at least 1, got %zd and %zd", row_bytes, step);
    if (owner->len != n * 2)
        return refuse_size(&b, "move_file_rows", "owner", owner, n, 2);
    if (targets->len != ps_num * 4)
        return refuse_size(&b, "move_file_rows", "targets", targets, ps_num, 4);
    if (look->len < row_bytes || gathered->len / row_bytes < (n < step ? n : step))
        return refuse(&b, "move_file_rows: look or gathered is too small for the rows of %zd byte%s",
                      COUNTED(row_bytes));
    needed = (((row_bytes < CHUNK_BYTES ? row_bytes : CHUNK_BYTES) + 1) / 2 + 1) * LIMBS * 4;
    if (sums->len != needed)
        return refuse(&b, "move_file_rows: sketch has %zd byte%s, rows of %zd byte%s need %zd", COUNTED(sums->len),
                      COUNTED(row_bytes), needed);
    starts = PyMem_Malloc((size_t)ps_num * 16 + 1);
    if (!starts) {
        release(&b);
        return PyErr_NoMemory();
    }
    places = starts + ps_num;
    look_rows = look->len / row_bytes;
    Py_BEGIN_ALLOW_THREADS
    bad = first_bad_owner(owner->buf, n, ps_num);
    for (done = 0; done < n && bad < 0 && !error; done += some) {
        const uint16_t *of = (const uint16_t *)owner->buf + done;
        const int64_t *id = (const int64_t *)ids->buf + done;
        Py_ssize_t from, now, row, count;
        int straight;
        some = n - done < step ? n - done : step;
        straight = order_by_owner(of, some, row_bytes, ps_num, starts, places) == some; /* all to one target */
        for (from = 0; from < some && !error; from += now) {
            uint8_t *to = straight ? (uint8_t *)gathered->buf + from * row_bytes : look->buf;
            now = some - from < look_rows ? some - from : look_rows;
            error = read_whole(source, to, now * row_bytes, offset + (done + from) * row_bytes);
            for (row = 0; row < now && !error; row += count) { /* both looks while the rows are in the cache */
                count = now - row < BLOCK_ROWS ? now - row : BLOCK_ROWS;
                sketch_whole_rows(sums->buf, id + from + row, count, to + row * row_bytes, row_bytes);
                if (!straight)
                    place_rows(to + row * row_bytes, row_bytes, of + from + row, count, places, gathered->buf,
                               gathered->len);
            }
            if (straight)
                places[of[0]] += now * row_bytes;
        }
        for (k = 0; k < ps_num && !error; k++) {
            int64_t size = places[k] - starts[k];
            if (!size)
                continue;
            error = write_whole(((const int32_t *)targets->buf)[k], (const uint8_t *)gathered->buf + starts[k],
                                (Py_ssize_t)size, ((int64_t *)values_at->buf)[k]);
            if (error)
                failed = k;
            else
                ((int64_t *)values_at->buf)[k] += size;
        }
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(starts);
    if (bad >= 0)
        return refuse_owner(&b, "move_file_rows", owner->buf, bad, ps_num);
    release(&b);
    if (!error)
        Py_RETURN_NONE;
    return Py_BuildValue("ni", failed, error);
}

static PyObject *sketch_file_rows(PyObject *self, PyObject *args)
{
    PyObject *sums_o, *ids_o, *data_o;
    Py_ssize_t row_bytes, look_rows, n, from, now, needed;
    Buffers b = {.count = 0};
    Py_buffer *sums, *ids, *data;
    long long offset;
    int file, error = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOiLnnO:sketch_file_rows", &sums_o, &ids_o, &file, &offset, &row_bytes, &look_rows,
                          &data_o))
        return NULL;
    if (!(sums = acquire(&b, sums_o, 1)) || !(ids = acquire(&b, ids_o, 0)) || !(data = acquire(&b, data_o, 1))) {
        release(&b);
        return NULL;
    }
    n = ids->len / 8;
    if (row_bytes < 1 || look_rows < 1)
        return refuse(&b, "sketch_file_rows: row_bytes and look_rows must be at least 1, got %zd and %zd", row_bytes,
                      look_rows);
    if (data->len / row_bytes != n || data->len % row_bytes)
        return refuse_size(&b, "sketch_file_rows", "data", data, n, row_bytes);
    needed = (((row_bytes < CHUNK_BYTES ? row_bytes : CHUNK_BYTES) + 1) / 2 + 1) * LIMBS * 4;
    if (sums->len != needed)
        return refuse(&b, "sketch_file_rows: sketch has %zd byte%s, rows of %zd byte%s need %zd", COUNTED(sums->len),
                      COUNTED(row_bytes), needed);
    Py_BEGIN_ALLOW_THREADS
    for (from = 0; from < n && !error; from += now) {
        uint8_t *to = (uint8_t *)data->buf + from * row_bytes;
        Py_ssize_t row, count;
        now = n - from < look_rows ? n - from : look_rows;
        error = read_whole(file, to, now * row_bytes, offset + from * row_bytes);
        for (row = 0; row < now && !error; row += count) {
            count = now - row < BLOCK_ROWS ? now - row : BLOCK_ROWS;
            sketch_whole_rows(sums->buf, (const int64_t *)ids->buf + from + row, count, to + row * row_bytes,
                              row_bytes);
        }
    }
    Py_END_ALLOW_THREADS
    release(&b);
    return PyLong_FromLong(error);
}

/* Small parts of many tables in one call. Each is a row of int64 numbers, in this order. */
enum { PART_IDS, PART_ID_BYTES, PART_ROWS, PART_TABLE, PART_VALUES, PART_ROW_BYTES, PART_SUMS, PART_NUMBERS };

/* Say whether [start, start + size) is inside of a buffer. */
static int inside(const Py_buffer *view, int64_t start, int64_t size)
{
    return start >= 0 && size >= 0 && start <= view->len && size <= view->len - start;
}

/* Say whether all numbers of a part are possible: its ids, and with values also those and its sums. */
static int is_possible(const int64_t *part, const Py_buffer *ids, const Py_buffer *values, const Py_buffer *sums,
                       Py_ssize_t tables)
{
    int64_t rows = part[PART_ROWS], width = part[PART_ROW_BYTES], columns;
    if (!inside(ids, part[PART_IDS], part[PART_ID_BYTES]) || rows < 0 || rows > part[PART_ID_BYTES])
        return 0;
    if (part[PART_TABLE] < 0 || part[PART_TABLE] >= tables)
        return 0;
    if (!values)
        return 1;
    if (width < 0 || width > INT32_MAX || (rows && width > values->len / rows) ||
        !inside(values, part[PART_VALUES], rows * width))
        return 0;
    columns = ((width < CHUNK_BYTES ? width : CHUNK_BYTES) + 1) / 2 + 1;
    return part[PART_SUMS] >= 0 && part[PART_SUMS] <= sums->len / 4 &&
           inside(sums, part[PART_SUMS] * 4, columns * LIMBS * 4);
}

/* Return the most rows of all parts, or -1 with the number of an impossible part in `bad`. */
static Py_ssize_t most_rows(const Py_buffer *parts, const Py_buffer *ids, const Py_buffer *values,
                            const Py_buffer *sums, Py_ssize_t tables, Py_ssize_t *bad)
{
    Py_ssize_t k, most = 0, count = parts->len / (8 * PART_NUMBERS);
    for (k = 0; k < count; k++) {
        const int64_t *part = (const int64_t *)parts->buf + k * PART_NUMBERS;
        if (!is_possible(part, ids, values, sums, tables)) {
            *bad = k;
            return -1;
        }
        if (part[PART_ROWS] > most)
            most = part[PART_ROWS];
    }
    return most;
}

static int decode_part(const int64_t *part, const Py_buffer *data, int64_t *ids, uint8_t *lengths)
{
    return decode((const uint8_t *)data->buf + part[PART_IDS], part[PART_ID_BYTES], ids, lengths, part[PART_ROWS]) < 0;
}

static PyObject *sketch_parts(PyObject *self, PyObject *args)
{
    PyObject *sums_o, *data_o, *parts_o;
    Buffers b = {.count = 0};
    Py_buffer *sums, *data, *parts;
    Py_ssize_t k, most, bad = -1, ps_num = 1, ps_id = 0; /* every id has the one owner of one */
    int64_t *ids;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO|nn:sketch_parts", &sums_o, &data_o, &parts_o, &ps_num, &ps_id))
        return NULL;
    if (!(sums = acquire(&b, sums_o, 1)) || !(data = acquire(&b, data_o, 0)) || !(parts = acquire(&b, parts_o, 0))) {
        release(&b);
        return NULL;
    }
    if (ps_id < 0 || ps_id >= ps_num)
        return refuse(&b, "sketch_parts: ps_id must be below ps_num, got %zd of %zd", ps_id, ps_num);
    most = most_rows(parts, data, data, sums, INT32_MAX, &bad);
    if (most < 0)
        return refuse(&b, "sketch_parts: part %zd is not inside of the data or the sketch", bad);
    ids = PyMem_Malloc((size_t)most * 9 + 1);
    if (!ids) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < parts->len / (8 * PART_NUMBERS) && bad < 0; k++) {
        const int64_t *part = (const int64_t *)parts->buf + k * PART_NUMBERS;
        if (decode_part(part, data, ids, (uint8_t *)(ids + most)) &&
            all_have(ids, part[PART_ROWS], (uint64_t)ps_num, (uint64_t)ps_id))
            sketch_whole_rows((uint32_t *)sums->buf + part[PART_SUMS], ids, part[PART_ROWS],
                              (const uint8_t *)data->buf + part[PART_VALUES], part[PART_ROW_BYTES]);
        else
            bad = k;
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(ids);
    release(&b);
    return PyLong_FromSsize_t(bad);
}

static PyObject *tally_parts(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    Buffers b = {.count = 0};
    Py_buffer *data, *parts, *rows, *id_bytes, *ids;
    Py_ssize_t ps_num, tables, k, j, most, total = 0, bad = -1;
    char *spare;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOnOOO:tally_parts", &o[0], &o[1], &ps_num, &o[2], &o[3], &o[4]))
        return NULL;
    if (!(data = acquire(&b, o[0], 0)) || !(parts = acquire(&b, o[1], 0)) || !(rows = acquire(&b, o[2], 1)) ||
        !(id_bytes = acquire(&b, o[3], 1)) || !(ids = acquire(&b, o[4], 1))) {
        release(&b);
        return NULL;
    }
    if (ps_num < 1 || ps_num > 65536)
        return refuse(&b, "tally_parts: ps_num must be 1 to 65536, got %zd", ps_num);
    if (id_bytes->len != rows->len)
        return refuse(&b, "tally_parts: id_bytes has %zd byte%s, rows has %zd", COUNTED(id_bytes->len), rows->len);
    tables = rows->len / 8 / ps_num;
    most = most_rows(parts, data, NULL, NULL, tables, &bad);
    if (most < 0)
        return refuse(&b, "tally_parts: part %zd is not inside of the data or the tables", bad);
    for (k = 0; k < parts->len / (8 * PART_NUMBERS); k++)
        total += ((const int64_t *)parts->buf + k * PART_NUMBERS)[PART_ROWS];
    if (ids->len != total * 8)
        return refuse_size(&b, "tally_parts", "ids", ids, total, 8);
    spare = PyMem_Malloc((size_t)most * 3 + 1);
    if (!spare) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    {
        uint16_t *of = (uint16_t *)spare;
        uint8_t *lengths = (uint8_t *)(of + most);
        int64_t *to = ids->buf;
        for (k = 0; k < parts->len / (8 * PART_NUMBERS) && bad < 0; k++) {
            const int64_t *part = (const int64_t *)parts->buf + k * PART_NUMBERS;
            int64_t *row_count = (int64_t *)rows->buf + part[PART_TABLE] * ps_num;
            int64_t *byte_count = (int64_t *)id_bytes->buf + part[PART_TABLE] * ps_num;
            if (!decode_part(part, data, to, lengths)) {
                bad = k;
                break;
            }
            owners_of(to, part[PART_ROWS], (uint64_t)ps_num, of);
            for (j = 0; j < part[PART_ROWS]; j++) {
                row_count[of[j]]++;
                byte_count[of[j]] += lengths[j];
            }
            to += part[PART_ROWS];
        }
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(spare);
    release(&b);
    return PyLong_FromSsize_t(bad);
}

/* Copy varints to the places of their owners, which move on; 0 when one would leave `out`. */
static int place_varints(const uint8_t *in, const uint8_t *lengths, const uint16_t *of, Py_ssize_t n, int64_t *places,
                         uint8_t *out, Py_ssize_t size)
{
    Py_ssize_t k;
    for (k = 0; k < n; k++) {
        int64_t to = places[of[k]];
        if (to < 0 || to > size - lengths[k])
            return 0;
        memcpy(out + to, in, lengths[k]);
        in += lengths[k];
        places[of[k]] = to + lengths[k];
    }
    return 1;
}

static PyObject *move_parts(PyObject *self, PyObject *args)
{
    PyObject *o[7];
    Buffers b = {.count = 0};
    Py_buffer *sums, *data, *values, *parts, *values_at, *ids_at, *out;
    Py_ssize_t ps_num, tables, k, most, bad = -1;
    char *spare;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOnOOO:move_parts", &o[0], &o[1], &o[2], &o[3], &ps_num, &o[4], &o[5], &o[6]))
        return NULL;
    if (!(sums = acquire(&b, o[0], 1)) || !(data = acquire(&b, o[1], 0)) || !(values = acquire(&b, o[2], 0)) ||
        !(parts = acquire(&b, o[3], 0)) || !(values_at = acquire(&b, o[4], 1)) || !(ids_at = acquire(&b, o[5], 1)) ||
        !(out = acquire(&b, o[6], 1))) {
        release(&b);
        return NULL;
    }
    if (ps_num < 1 || ps_num > 65536)
        return refuse(&b, "move_parts: ps_num must be 1 to 65536, got %zd", ps_num);
    if (ids_at->len != values_at->len)
        return refuse(&b, "move_parts: ids_at has %zd byte%s, values_at has %zd", COUNTED(ids_at->len),
                      values_at->len);
    tables = values_at->len / 8 / ps_num;
    most = most_rows(parts, data, values, sums, tables, &bad);
    if (most < 0)
        return refuse(&b, "move_parts: part %zd is not inside of the data, the tables or the sketch", bad);
    spare = PyMem_Malloc((size_t)most * 11 + 1);
    if (!spare) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    {
        int64_t *ids = (int64_t *)spare;
        uint16_t *of = (uint16_t *)(ids + most);
        uint8_t *lengths = (uint8_t *)(of + most);
        for (k = 0; k < parts->len / (8 * PART_NUMBERS) && bad < 0; k++) {
            const int64_t *part = (const int64_t *)parts->buf + k * PART_NUMBERS;
            int64_t rows = part[PART_ROWS], width = part[PART_ROW_BYTES], at = part[PART_TABLE] * ps_num;
            const uint8_t *from = (const uint8_t *)values->buf + part[PART_VALUES];
            if (!decode_part(part, data, ids, lengths)) {
                bad = k;
                break;
            }
            owners_of(ids, rows, (uint64_t)ps_num, of);
            sketch_whole_rows((uint32_t *)sums->buf + part[PART_SUMS], ids, rows, from, width);
            if (!place_varints((const uint8_t *)data->buf + part[PART_IDS], lengths, of, rows,
                               (int64_t *)ids_at->buf + at, out->buf, out->len) ||
                (width && !place_rows(from, width, of, rows, (int64_t *)values_at->buf + at, out->buf, out->len)))
                bad = k;
        }
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(spare);
    release(&b);
    return PyLong_FromSsize_t(bad);
}

/* A message that is being walked: everything before `end` belongs to it, bytes from `have` on are not there yet. */
typedef struct {
    const uint8_t *data;
    int64_t at, have;
} Walk;

/* Read a varint of at most nine bytes; -1 when it is longer, or cut off. */
static int64_t walk_number(Walk *walk)
{
    uint64_t value = 0;
    int shift;
    for (shift = 0; shift < 63 && walk->at < walk->have; shift += 7) {
        uint8_t byte = walk->data[walk->at++];
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return (int64_t)value;
    }
    return -1;
}

/* Pass over this tag; 0 when there is another one. */
static int walk_tag(Walk *walk, uint8_t tag)
{
    if (walk->at >= walk->have || walk->data[walk->at] != tag)
        return 0;
    walk->at++;
    return 1;
}

/* Pass over this tag and a length; return where its payload ends, -1 unless it ends by `end`. */
static int64_t walk_bytes(Walk *walk, uint8_t tag, int64_t end)
{
    int64_t size = walk_tag(walk, tag) ? walk_number(walk) : -1;
    return size < 0 || size > end - walk->at ? -1 : walk->at + size;
}

/* What `walk_entries` finds of an entry, in this order; offsets are those of the file. */
enum {
    ENTRY_KIND, ENTRY_OFFSET, ENTRY_END, ENTRY_NAME, ENTRY_NAME_END, ENTRY_DTYPE, ENTRY_FIRST, ENTRY_SECOND,
    ENTRY_VALUES, ENTRY_VALUES_END, ENTRY_IDS, ENTRY_IDS_END, ENTRY_NUMBERS
};

/* Walk an EmbeddingTableInfo: name, dim, initializer, dtype. FIRST is dim, SECOND where its payload begins, VALUES the
 * initializer. */
static int walk_info(Walk *walk, int64_t end, int64_t *found)
{
    found[ENTRY_NAME_END] = walk_bytes(walk, 0x0A, end);
    found[ENTRY_NAME] = walk->at;
    if (found[ENTRY_NAME_END] < 0)
        return 0;
    walk->at = found[ENTRY_NAME_END];
    if (!walk_tag(walk, 0x10) || (found[ENTRY_FIRST] = walk_number(walk)) <= 0 || found[ENTRY_FIRST] > INT32_MAX)
        return 0;
    found[ENTRY_VALUES_END] = walk_bytes(walk, 0x1A, end);
    found[ENTRY_VALUES] = walk->at;
    if (found[ENTRY_VALUES_END] < 0)
        return 0;
    walk->at = found[ENTRY_VALUES_END];
    if (!walk_tag(walk, 0x20) || (found[ENTRY_DTYPE] = walk_number(walk)) < 0 || found[ENTRY_DTYPE] > 127)
        return 0;
    return walk->at == end && end <= walk->have;
}

/* Walk one size of a shape. */
static int64_t walk_size(Walk *walk, int64_t end)
{
    int64_t size = 0, stop = walk_bytes(walk, 0x12, end);
    if (stop < 0)
        return -1;
    if (stop > walk->at && (!walk_tag(walk, 0x08) || (size = walk_number(walk)) < 0))
        return -1;
    return walk->at == stop ? size : -1;
}

/* Walk a TensorProto of two dimensions: dtype, shape, values. */
static int walk_tensor(Walk *walk, int64_t end, int64_t *found)
{
    int64_t shape;
    if (!walk_tag(walk, 0x08) || (found[ENTRY_DTYPE] = walk_number(walk)) < 0 || found[ENTRY_DTYPE] > 127)
        return 0;
    shape = walk_bytes(walk, 0x12, end);
    if (shape < 0 || (found[ENTRY_FIRST] = walk_size(walk, shape)) < 0 ||
        (found[ENTRY_SECOND] = walk_size(walk, shape)) < 0 || walk->at != shape)
        return 0;
    if (found[ENTRY_FIRST] > INT32_MAX || found[ENTRY_SECOND] > INT32_MAX)
        return 0;
    if (walk->at < end) {
        found[ENTRY_VALUES_END] = walk_bytes(walk, 0x22, end);
        found[ENTRY_VALUES] = walk->at;
        if (found[ENTRY_VALUES_END] != end)
            return 0;
        walk->at = end;
    }
    return 1;
}

/* Walk a map entry of an IndexedSlicesProto: name, tensor, packed ids. */
static int walk_table(Walk *walk, int64_t end, int64_t *found)
{
    int64_t tensor;
    found[ENTRY_NAME_END] = walk_bytes(walk, 0x0A, end);
    found[ENTRY_NAME] = walk->at;
    if (found[ENTRY_NAME_END] < 0)
        return 0;
    walk->at = found[ENTRY_NAME_END];
    if (walk_bytes(walk, 0x12, end) != end)
        return 0;
    tensor = walk_bytes(walk, 0x0A, end);
    if (tensor < 0 || !walk_tensor(walk, tensor, found))
        return 0;
    if (walk->at < end) {
        found[ENTRY_IDS_END] = walk_bytes(walk, 0x12, end);
        found[ENTRY_IDS] = walk->at;
        if (found[ENTRY_IDS_END] != end || found[ENTRY_IDS] == end)
            return 0;
    }
    return 1;
}

/* Walk a map entry of a TensorProto: name, then dtype, shape and values. FIRST and SECOND are where its shape lies. */
static int walk_dense(Walk *walk, int64_t end, int64_t *found)
{
    found[ENTRY_NAME_END] = walk_bytes(walk, 0x0A, end);
    found[ENTRY_NAME] = walk->at;
    if (found[ENTRY_NAME_END] < 0)
        return 0;
    walk->at = found[ENTRY_NAME_END];
    if (walk_bytes(walk, 0x12, end) != end)
        return 0;
    if (!walk_tag(walk, 0x08) || (found[ENTRY_DTYPE] = walk_number(walk)) < 0 || found[ENTRY_DTYPE] > 127)
        return 0;
    found[ENTRY_SECOND] = walk_bytes(walk, 0x12, end);
    found[ENTRY_FIRST] = walk->at;
    if (found[ENTRY_SECOND] < 0 || found[ENTRY_SECOND] > walk->have)
        return 0;
    walk->at = found[ENTRY_SECOND];
    if (walk->at < end) {
        found[ENTRY_VALUES_END] = walk_bytes(walk, 0x22, end);
        found[ENTRY_VALUES] = walk->at;
        if (found[ENTRY_VALUES_END] != end)
            return 0;
    }
    return 1;
}

/* Fill `out` with the table infos, variables and tables that a window begins with, as long as they are written as
 * shard_layout.py writes them: what is not, or what the window cuts off, is left to generations.py. Return how many. */
static PyObject *walk_entries(PyObject *self, PyObject *args)
{
    PyObject *data_o, *out_o;
    long long base, size;
    Buffers b = {.count = 0};
    Py_buffer *data, *out;
    Py_ssize_t n = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OLLO:walk_entries", &data_o, &base, &size, &out_o))
        return NULL;
    if (!(data = acquire(&b, data_o, 0)) || !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    {
        Walk walk = {data->buf, 0, data->len};
        while (n < out->len / (8 * ENTRY_NUMBERS) && walk.at < walk.have) {
            int64_t *found = (int64_t *)out->buf + n * ENTRY_NUMBERS;
            int64_t start = walk.at, end;
            uint8_t tag = walk.data[start];
            int k;
            if (tag != 0x12 && tag != 0x1A && tag != 0x22)
                break;
            memset(found, 0, 8 * ENTRY_NUMBERS);
            end = walk_bytes(&walk, tag, size - base);
            found[ENTRY_SECOND] = tag == 0x12 ? base + walk.at : 0;
            if (end < 0 || !(tag == 0x12 ? walk_info : tag == 0x1A ? walk_dense : walk_table)(&walk, end, found))
                break;
            found[ENTRY_KIND] = tag >> 3;
            found[ENTRY_OFFSET] = start;
            found[ENTRY_END] = end;
            for (k = ENTRY_OFFSET; k < ENTRY_NUMBERS; k++)
                if (k < ENTRY_DTYPE || (tag == 0x1A && k < ENTRY_VALUES && k > ENTRY_DTYPE) ||
                    (k >= ENTRY_VALUES && found[k]))
                    found[k] += base;
            walk.at = end;
            n++;
        }
    }
    Py_END_ALLOW_THREADS
    release(&b);
    return PyLong_FromSsize_t(n);
}

/* Radix sort of int64: 11 bits a pass, the lowest first, and no pass where all ids agree in those bits. */
#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)
#define PASSES 6
/* An id as a number whose order is that of the ids; the same turns it back. */
#define IN_ORDER(ID) ((uint64_t)(ID) ^ ((uint64_t)1 << 63))
#define DIGIT_OF(ID, PASS) (IN_ORDER(ID) >> ((PASS) * DIGIT_BITS) & (DIGITS - 1))

/* Count the digits of every pass: counts [PASSES][DIGITS]. */
static void count_digits(const int64_t *ids, Py_ssize_t n, int64_t *counts)
{
    Py_ssize_t k;
    int pass;
    memset(counts, 0, sizeof(int64_t) * PASSES * DIGITS);
    for (k = 0; k < n; k++)
        for (pass = 0; pass < PASSES; pass++)
            counts[pass * DIGITS + (Py_ssize_t)DIGIT_OF(ids[k], pass)]++;
}

/* Turn the counts of one pass into the place where each digit begins; 0 when the pass moves nothing. */
static int place_digits(int64_t *counts, Py_ssize_t n)
{
    int64_t next = 0, count;
    int digit;
    for (digit = 0; digit < DIGITS; digit++) {
        if (counts[digit] == n)
            return 0;
        count = counts[digit];
        counts[digit] = next;
        next += count;
    }
    return 1;
}

/* Sort ids and, unless it is NULL, the row numbers that belong to them; the result is in `ids` and `order`. */
static void radix_sort(int64_t *ids, int64_t *spare_ids, uint32_t *order, uint32_t *spare_order, Py_ssize_t n,
                       int64_t *counts)
{
    int64_t *from = ids, *to = spare_ids, *other;
    uint32_t *row = order, *to_row = spare_order, *other_row;
    Py_ssize_t k;
    int pass;
    count_digits(ids, n, counts);
    for (pass = 0; pass < PASSES; pass++) {
        int64_t *next = counts + pass * DIGITS;
        if (!place_digits(next, n))
            continue;
        if (order)
            for (k = 0; k < n; k++) {
                int64_t place = next[DIGIT_OF(from[k], pass)]++;
                to[place] = from[k];
                to_row[place] = row[k];
            }
        else
            for (k = 0; k < n; k++) {
                int64_t *place = to + next[DIGIT_OF(from[k], pass)]++;
                *place = from[k];
                PREFETCH_WRITE(place + 1);
            }
        other = from, from = to, to = other;
        other_row = row, row = to_row, to_row = other_row;
    }
    if (from != ids) {
        memcpy(ids, from, (size_t)n * 8);
        if (order)
            memcpy(order, row, (size_t)n * 4);
    }
}

/* Return how many bits a number has. */
static int bits_of(uint64_t number)
{
    int bits = 0;
    for (; number; number >>= 1)
        bits++;
    return bits;
}

/* Sort ids and fill `order`, with both in one word: the id above the lowest one, and below it the row. 0, and nothing
 * is done, when 64 bits are too few for that. `words` has room for 2 * n words, and for the counts. */
static int sort_packed(int64_t *ids, uint32_t *order, Py_ssize_t n, uint64_t *words)
{
    uint64_t *from = words, *to = words + n, *other, low = IN_ORDER(ids[0]), high = low, mask;
    int64_t *counts = (int64_t *)(words + 2 * n);
    int row_bits, id_bits, passes, digit_bits, pass;
    Py_ssize_t k;
    for (k = 1; k < n; k++) {
        uint64_t id = IN_ORDER(ids[k]);
        low = id < low ? id : low;
        high = id > high ? id : high;
    }
    row_bits = bits_of((uint64_t)n - 1);
    id_bits = bits_of(high - low);
    if (row_bits + id_bits > 64)
        return 0;
    mask = row_bits ? ((uint64_t)1 << row_bits) - 1 : 0;
    passes = (id_bits + DIGIT_BITS - 1) / DIGIT_BITS;
    digit_bits = passes ? (id_bits + passes - 1) / passes : 0;
    memset(counts, 0, sizeof(int64_t) * PASSES * DIGITS);
    for (k = 0; k < n; k++) {
        uint64_t id = IN_ORDER(ids[k]) - low;
        words[k] = id << row_bits | (uint64_t)k;
        for (pass = 0; pass < passes; pass++, id >>= digit_bits)
            counts[pass * DIGITS + (Py_ssize_t)(id & (((uint64_t)1 << digit_bits) - 1))]++;
    }
    for (pass = 0; pass < passes; pass++) {
        int64_t *next = counts + pass * DIGITS;
        int shift = row_bits + pass * digit_bits;
        if (!place_digits(next, n))
            continue;
        for (k = 0; k < n; k++) {
            uint64_t word = from[k], *place = to + next[word >> shift & (((uint64_t)1 << digit_bits) - 1)]++;
            *place = word;
            PREFETCH_WRITE(place + 1);
        }
        other = from, from = to, to = other;
    }
    for (k = 0; k < n; k++) {
        ids[k] = (int64_t)IN_ORDER((from[k] >> row_bits) + low);
        order[k] = (uint32_t)(from[k] & mask);
    }
    return 1;
}

static PyObject *sort_ids(PyObject *self, PyObject *args)
{
    PyObject *ids_o, *order_o;
    Buffers b = {.count = 0};
    Py_buffer *ids, *order = NULL;
    Py_ssize_t n, k;
    char *spare;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO:sort_ids", &ids_o, &order_o))
        return NULL;
    if (!(ids = acquire(&b, ids_o, 1)) || (order_o != Py_None && !(order = acquire(&b, order_o, 1)))) {
        release(&b);
        return NULL;
    }
    n = ids->len / 8;
    if (ids->len % 8)
        return refuse(&b, "sort_ids: ids has %zd byte%s, not a multiple of 8", COUNTED(ids->len));
    if (order && order->len != n * 4)
        return refuse_size(&b, "sort_ids", "order", order, n, 4);
    if (order && (uint64_t)n > UINT32_MAX)
        return refuse(&b, "sort_ids: %zd rows are more than 32 bits can number", n);
    spare = PyMem_Malloc(sizeof(int64_t) * PASSES * DIGITS + (size_t)n * (order ? 16 : 8));
    if (!spare) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    if (!order || !n || !sort_packed(ids->buf, order->buf, n, (uint64_t *)spare)) {
        int64_t *counts = (int64_t *)spare, *spare_ids = counts + PASSES * DIGITS;
        uint32_t *rows = order ? order->buf : NULL;
        for (k = 0; rows && k < n; k++)
            rows[k] = (uint32_t)k;
        radix_sort(ids->buf, spare_ids, rows, (uint32_t *)(spare_ids + n), n, counts);
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(spare);
    release(&b);
    Py_RETURN_NONE;
}

/* Ids in buckets of a hash (buckets.py). */
#define MOST_BUCKETS 65536
#define MIXED(ID) (((uint64_t)(ID) ^ ((uint64_t)(ID) >> 32)) * KEY_FIRST)

/* Copy the hashes of ids to their buckets, of which `own` begin with number `first`; 0 when one has no room.
 * Those of other buckets are copied too, to one word that nobody reads: whose they are cannot be guessed, and a branch
 * would be. `next` has room for one more than the buckets. */
static int fill_buckets_with(const int64_t *ids, Py_ssize_t n, int bits, uint64_t first, Py_ssize_t own, uint64_t *words,
                             int64_t room, int64_t *filled, uint64_t **next)
{
    int64_t *counts = (int64_t *)(next + own + 1);
    uint64_t other;
    Py_ssize_t k;
    int fits = 1;
#define BUCKET_OF(WORD) ((WORD) >> (64 - bits)) - first
    memset(counts, 0, (size_t)(own + 1) * 8);
    for (k = 0; k < n; k++) {
        uint64_t bucket = BUCKET_OF(MIXED(ids[k]));
        counts[bucket < (uint64_t)own ? bucket : (uint64_t)own]++;
    }
    for (k = 0; k < own; k++) { /* each thread takes its places first, and then fills them */
        int64_t start;
#if defined(__GNUC__)
        start = __atomic_fetch_add(&filled[k], counts[k], __ATOMIC_RELAXED);
#else
        start = filled[k], filled[k] += counts[k];
#endif
        fits &= start >= 0 && start <= room - counts[k];
        next[k] = words + (fits ? k * room + start : 0);
    }
    next[own] = &other;
    for (k = 0; k < n && fits; k++) {
        uint64_t word = MIXED(ids[k]), bucket = BUCKET_OF(word), is_own = bucket < (uint64_t)own, *place;
        bucket = is_own ? bucket : (uint64_t)own;
        place = next[bucket];
        next[bucket] = place + is_own;
        *place = word;
        PREFETCH_WRITE(place + 2);
    }
#undef BUCKET_OF
    return fits;
}

static PyObject *put_ids(PyObject *self, PyObject *args)
{
    PyObject *ids_o, *words_o, *filled_o;
    Py_ssize_t first, own, room;
    Buffers b = {.count = 0};
    Py_buffer *ids, *words, *filled;
    uint64_t **next;
    int bits, fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "OinOO:put_ids", &ids_o, &bits, &first, &words_o, &filled_o))
        return NULL;
    if (!(ids = acquire(&b, ids_o, 0)) || !(words = acquire(&b, words_o, 1)) || !(filled = acquire(&b, filled_o, 1))) {
        release(&b);
        return NULL;
    }
    own = filled->len / 8;
    if (bits < 1 || bits > 16 || first < 0 || first > MOST_BUCKETS || own < 1 || own > MOST_BUCKETS)
        return refuse(&b, "put_ids: %zd bucket%s from %zd on with %d bits is out of range", COUNTED(own), first, bits);
    room = words->len / 8 / own;
    if (words->len != room * own * 8)
        return refuse(&b, "put_ids: words has %zd byte%s, not as many for each of %zd", COUNTED(words->len), own);
    if (!(next = PyMem_Malloc((size_t)(own + 1) * 16))) { /* places and counts */
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    fits = fill_buckets_with(ids->buf, ids->len / 8, bits, (uint64_t)first, own, words->buf, room, filled->buf, next);
    Py_END_ALLOW_THREADS
    PyMem_Free(next);
    release(&b);
    return PyBool_FromLong(fits);
}

/* Say whether no word occurs twice. A bit is set for each, at another hash than that of buckets; words whose bit is set
 * twice, an eighth of them, are compared in a table. `marks` has 2**bits bits; `table` has room for 8 * n words and 64. */
static int are_unique(const uint64_t *words, Py_ssize_t n, uint64_t *marks, int bits, uint64_t *table)
{
    Py_ssize_t k, some = 0;
    uint64_t *again = table, slots = 32; /* first the words whose bit was set before; then the table takes their place */
    int zeros = 0;
#define PLACE_OF(WORD) ((WORD)*KEY_SECOND >> (64 - bits))
    memset(marks, 0, (size_t)1 << (bits - 3));
    for (k = 0; k < n; k++) {
        uint64_t place = PLACE_OF(words[k]), *mark = marks + (place >> 6), bit = (uint64_t)1 << (place & 63), was = *mark;
        *mark = was | bit;
        again[some] = words[k]; /* no branch: which bits are set cannot be guessed */
        some += (was & bit) != 0;
    }
    if (!some)
        return 1;
    memset(marks, 0, (size_t)1 << (bits - 3));
    for (k = 0; k < some; k++)
        marks[PLACE_OF(again[k]) >> 6] |= (uint64_t)1 << (PLACE_OF(again[k]) & 63);
    while (slots < (uint64_t)some * 2) /* for each of them there is one other word at most that came before it */
        slots *= 2;
    memset(table, 0, (size_t)slots * 16);
    slots *= 2;
    for (k = 0; k < n; k++) {
        uint64_t word = words[k], at;
        if (!(marks[PLACE_OF(word) >> 6] >> (PLACE_OF(word) & 63) & 1))
            continue;
        if (!word) { /* zero is an empty place of the table */
            if (zeros++)
                return 0;
            continue;
        }
        for (at = word * KEY_THIRD >> 32 & (slots - 1); table[at]; at = (at + 1) & (slots - 1))
            if (table[at] == word)
                return 0;
        table[at] = word;
    }
    return 1;
#undef PLACE_OF
}

static PyObject *unique_words(PyObject *self, PyObject *args)
{
    PyObject *words_o, *filled_o;
    Py_ssize_t own, room, k;
    Buffers b = {.count = 0};
    Py_buffer *words, *filled;
    uint64_t *marks;
    int bits = 6, unique = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO:unique_words", &words_o, &filled_o))
        return NULL;
    if (!(words = acquire(&b, words_o, 0)) || !(filled = acquire(&b, filled_o, 0))) {
        release(&b);
        return NULL;
    }
    own = filled->len / 8;
    room = own ? words->len / 8 / own : 0;
    for (k = 0; k < own; k++)
        if (((const int64_t *)filled->buf)[k] < 0 || ((const int64_t *)filled->buf)[k] > room)
            return refuse(&b, "unique_words: bucket %zd has %lld words, there is room for %zd", k,
                          (long long)((const int64_t *)filled->buf)[k], room);
    while (((uint64_t)1 << bits) < (uint64_t)room * 8)
        bits++;
    if (!(marks = PyMem_Malloc(((size_t)1 << (bits - 3)) + ((size_t)room * 8 + 64) * 8))) {
        release(&b);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < own && unique; k++)
        unique = are_unique((const uint64_t *)words->buf + k * room, ((const int64_t *)filled->buf)[k], marks, bits,
                            marks + ((size_t)1 << (bits - 6)));
    Py_END_ALLOW_THREADS
    PyMem_Free(marks);
    release(&b);
    return PyBool_FromLong(unique);
}

/* Cuts by buckets of equal width: the cuts of bucket k are [first[k], first[k + 1]), so few are compared with an id. */
#define BUCKETS 4096
typedef struct {
    uint64_t low;  /* the lowest cut, as a number whose order is that of the ids */
    uint64_t high; /* the highest cut */
    int shift;
    uint16_t first[BUCKETS + 1];
} Buckets;

static void fill_buckets(Buckets *b, const int64_t *cuts, Py_ssize_t count)
{
    Py_ssize_t k, bucket = 0;
    b->low = IN_ORDER(cuts[0]);
    b->high = IN_ORDER(cuts[count - 1]);
    for (b->shift = 0; (b->high - b->low) >> b->shift >= BUCKETS; b->shift++)
        ;
    for (k = 0; k < count; k++)
        for (; bucket <= (Py_ssize_t)((IN_ORDER(cuts[k]) - b->low) >> b->shift); bucket++)
            b->first[bucket] = (uint16_t)k;
    for (; bucket <= BUCKETS; bucket++)
        b->first[bucket] = (uint16_t)count;
}

/* Return how many of the ascending cuts are not above an id. */
static uint16_t range_of(const Buckets *b, int64_t id, const int64_t *cuts, Py_ssize_t count)
{
    uint64_t place = IN_ORDER(id);
    Py_ssize_t bucket, low, high, half;
    if (place < b->low)
        return 0;
    if (place >= b->high)
        return (uint16_t)count;
    bucket = (Py_ssize_t)((place - b->low) >> b->shift);
    low = b->first[bucket];
    high = b->first[bucket + 1];
    while (low < high) {
        half = (low + high) / 2;
        if (cuts[half] <= id)
            low = half + 1;
        else
            high = half;
    }
    return (uint16_t)low;
}

static PyObject *ranges_of(PyObject *self, PyObject *args)
{
    PyObject *ids_o, *cuts_o, *out_o;
    Buffers b = {.count = 0};
    Py_buffer *ids, *cuts, *out;
    Py_ssize_t k, n;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO:ranges_of", &ids_o, &cuts_o, &out_o))
        return NULL;
    if (!(ids = acquire(&b, ids_o, 0)) || !(cuts = acquire(&b, cuts_o, 0)) || !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    n = ids->len / 8;
    if (out->len != n * 2)
        return refuse_size(&b, "ranges_of", "out", out, n, 2);
    if (cuts->len / 8 > UINT16_MAX)
        return refuse(&b, "ranges_of: %zd cuts are more than %d", cuts->len / 8, UINT16_MAX);
    for (k = 1; k < cuts->len / 8; k++)
        if (((const int64_t *)cuts->buf)[k] < ((const int64_t *)cuts->buf)[k - 1])
            return refuse(&b, "ranges_of: cut %zd is below the one before it", k);
    Py_BEGIN_ALLOW_THREADS
    if (cuts->len < 8)
        memset(out->buf, 0, (size_t)out->len);
    else {
        Buckets buckets;
        fill_buckets(&buckets, cuts->buf, cuts->len / 8);
        for (k = 0; k < n; k++)
            ((uint16_t *)out->buf)[k] = range_of(&buckets, ((const int64_t *)ids->buf)[k], cuts->buf, cuts->len / 8);
    }
    Py_END_ALLOW_THREADS
    release(&b);
    Py_RETURN_NONE;
}

/* Rows that are fetched ahead, because the next place cannot be guessed by the processor. */
#define AHEAD 16
#define TAKE_ROWS(SIZE)                                                                                               \
    for (k = 0; k < n; k++) {                                                                                         \
        if (k + AHEAD < n)                                                                                            \
            PREFETCH(in + (Py_ssize_t)order[k + AHEAD] * (SIZE));                                                     \
        memcpy(out + k * (SIZE), in + (Py_ssize_t)order[k] * (SIZE), (SIZE));                                         \
    }

static void copy_taken(const uint8_t *in, Py_ssize_t size, const uint32_t *order, Py_ssize_t n, uint8_t *out)
{
    Py_ssize_t k;
    switch (size) {
    case 4: TAKE_ROWS(4) break;
    case 8: TAKE_ROWS(8) break;
    case 16: TAKE_ROWS(16) break;
    case 32: TAKE_ROWS(32) break;
    case 64: TAKE_ROWS(64) break;
    case 128: TAKE_ROWS(128) break;
    default: TAKE_ROWS(size) break;
    }
}

static PyObject *take_rows(PyObject *self, PyObject *args)
{
    PyObject *values_o, *order_o, *out_o;
    Py_ssize_t row_bytes, n, rows, k, bad = -1;
    Buffers b = {.count = 0};
    Py_buffer *values, *order, *out;
    (void)self;
    if (!PyArg_ParseTuple(args, "OnOO:take_rows", &values_o, &row_bytes, &order_o, &out_o))
        return NULL;
    if (!(values = acquire(&b, values_o, 0)) || !(order = acquire(&b, order_o, 0)) || !(out = acquire(&b, out_o, 1))) {
        release(&b);
        return NULL;
    }
    if (row_bytes < 1)
        return refuse(&b, "take_rows: row_bytes must be at least 1, got %zd", row_bytes);
    rows = values->len / row_bytes;
    n = order->len / 4;
    if (values->len % row_bytes)
        return refuse(&b, "take_rows: values has %zd byte%s, not a multiple of row_bytes %zd", COUNTED(values->len),
                      row_bytes);
    if (out->len != n * row_bytes)
        return refuse_size(&b, "take_rows", "out", out, n, row_bytes);
    Py_BEGIN_ALLOW_THREADS
    {
        const uint32_t *place = order->buf;
        for (k = 0; k < n && bad < 0; k++)
            if (place[k] >= (uint64_t)rows)
                bad = k;
        if (bad < 0)
            copy_taken(values->buf, row_bytes, place, n, out->buf);
    }
    Py_END_ALLOW_THREADS
    if (bad >= 0)
        return refuse(&b, "take_rows: place %zd of row %zd is out of range for %zd row%s",
                      (Py_ssize_t)((const uint32_t *)order->buf)[bad], bad, COUNTED(rows));
    release(&b);
    Py_RETURN_NONE;
}

/* What stands in an entry of a table before its rows, and before its ids. Each table is a row of these numbers. */
enum { HEAD_NAME_END, HEAD_DIM, HEAD_ITEMSIZE, HEAD_DTYPE, HEAD_NUMBERS };

static uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

/* Put a tag of one byte, and the number behind it. */
static uint8_t *put_tagged(uint8_t *at, uint8_t tag, uint64_t value)
{
    *at++ = tag;
    return put_varint(at, value);
}

/* Put one size of a shape. */
static uint8_t *put_size(uint8_t *at, int64_t size)
{
    uint8_t own[16], *end = size ? put_tagged(own, 0x08, (uint64_t)size) : own;
    at = put_tagged(at, 0x12, (uint64_t)(end - own));
    memcpy(at, own, (size_t)(end - own));
    return at + (end - own);
}

/* Put the tensor of a table up to its values; it has 64 bytes at most. */
static uint8_t *put_tensor(uint8_t *at, const int64_t *form, int64_t rows, int64_t bytes)
{
    uint8_t shape[32], *end = put_size(put_size(shape, rows), form[HEAD_DIM]);
    at = put_tagged(at, 0x08, (uint64_t)form[HEAD_DTYPE]);
    at = put_tagged(at, 0x12, (uint64_t)(end - shape));
    memcpy(at, shape, (size_t)(end - shape));
    at += end - shape;
    return bytes ? put_tagged(at, 0x22, (uint64_t)bytes) : at;
}

/* Put both heads of a table in one shard so that they end at two places; return 0 where one would leave `out`. */
static int put_both(const uint8_t *name, int64_t name_bytes, const int64_t *form, int64_t rows, int64_t id_bytes,
                    int64_t values_at, int64_t ids_at, const Py_buffer *out)
{
    uint8_t tensor[64], before[64], vectors[16], slices[16], ids[16];
    int64_t bytes = rows * (form[HEAD_DIM] * form[HEAD_ITEMSIZE]);
    int64_t tensor_bytes = put_tensor(tensor, form, rows, bytes) - tensor;
    int64_t ids_head = id_bytes ? put_tagged(ids, 0x12, (uint64_t)id_bytes) - ids : 0;
    int64_t vectors_head = put_tagged(vectors, 0x0A, (uint64_t)(tensor_bytes + bytes)) - vectors;
    int64_t inner = vectors_head + tensor_bytes + bytes + ids_head + id_bytes;
    int64_t slices_head = put_tagged(slices, 0x12, (uint64_t)inner) - slices;
    int64_t front, size;
    uint8_t *at = before;
    /* The tag and the length of the entry come first, and the length covers the name and all that follows. */
    size = put_varint(before, (uint64_t)name_bytes) - before;
    size = 1 + size + name_bytes + slices_head + inner;
    at = put_tagged(at, 0x22, (uint64_t)size);
    at = put_tagged(at, 0x0A, (uint64_t)name_bytes);
    front = at - before;
    size = front + name_bytes + slices_head + vectors_head + tensor_bytes;
    if (values_at < size || values_at > out->len || ids_at < ids_head || ids_at > out->len)
        return 0;
    at = (uint8_t *)out->buf + values_at - size;
    memcpy(at, before, (size_t)front);
    memcpy(at += front, name, (size_t)name_bytes);
    memcpy(at += name_bytes, slices, (size_t)slices_head);
    memcpy(at += slices_head, vectors, (size_t)vectors_head);
    memcpy(at + vectors_head, tensor, (size_t)tensor_bytes);
    memcpy((uint8_t *)out->buf + ids_at - ids_head, ids, (size_t)ids_head);
    return 1;
}

/* Say whether the numbers of a table are possible, with rows whose bytes fit into a number. */
static int is_form(const int64_t *form, int64_t name_at, const Py_buffer *names)
{
    return form[HEAD_NAME_END] >= name_at && form[HEAD_NAME_END] <= names->len && form[HEAD_DIM] >= 0 &&
           form[HEAD_DIM] <= INT32_MAX && form[HEAD_ITEMSIZE] >= 0 && form[HEAD_ITEMSIZE] <= 16 &&
           form[HEAD_DTYPE] >= 0 && form[HEAD_DTYPE] <= INT32_MAX;
}

static PyObject *put_heads(PyObject *self, PyObject *args)
{
    PyObject *o[7];
    Buffers b = {.count = 0};
    Py_buffer *names, *forms, *rows, *id_bytes, *values_at, *ids_at, *out;
    Py_ssize_t t, k, n, shards, bad = -1;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOO:put_heads", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6]))
        return NULL;
    if (!(names = acquire(&b, o[0], 0)) || !(forms = acquire(&b, o[1], 0)) || !(rows = acquire(&b, o[2], 0)) ||
        !(id_bytes = acquire(&b, o[3], 0)) || !(values_at = acquire(&b, o[4], 0)) ||
        !(ids_at = acquire(&b, o[5], 0)) || !(out = acquire(&b, o[6], 1))) {
        release(&b);
        return NULL;
    }
    n = forms->len / (8 * HEAD_NUMBERS);
    shards = n ? rows->len / 8 / n : 0;
    if (rows->len != n * shards * 8 || id_bytes->len != rows->len || values_at->len != rows->len ||
        ids_at->len != rows->len)
        return refuse(&b, "put_heads: the numbers of %zd table%s in %zd shard%s differ in length", COUNTED(n),
                      COUNTED(shards));
    for (t = 0; t < n; t++) {
        const int64_t *form = (const int64_t *)forms->buf + t * HEAD_NUMBERS;
        if (!is_form(form, t ? form[HEAD_NAME_END - HEAD_NUMBERS] : 0, names))
            return refuse(&b, "put_heads: table %zd has a name, a dim or a dtype that cannot be", t);
    }
    Py_BEGIN_ALLOW_THREADS
    for (t = 0; t < n && bad < 0; t++) {
        const int64_t *form = (const int64_t *)forms->buf + t * HEAD_NUMBERS;
        int64_t start = t ? form[HEAD_NAME_END - HEAD_NUMBERS] : 0;
        int64_t width = form[HEAD_DIM] * form[HEAD_ITEMSIZE];
        for (k = t * shards; k < (t + 1) * shards && bad < 0; k++) {
            int64_t count = ((const int64_t *)rows->buf)[k], size = ((const int64_t *)id_bytes->buf)[k];
            if (count < 0 || size < 0 || size > INT64_MAX / 4 || (width && count > INT64_MAX / 4 / width) ||
                !put_both((const uint8_t *)names->buf + start, form[HEAD_NAME_END] - start, form, count, size,
                          ((const int64_t *)values_at->buf)[k], ((const int64_t *)ids_at->buf)[k], out))
                bad = k;
        }
    }
    Py_END_ALLOW_THREADS
    if (bad >= 0)
        return refuse(&b, "put_heads: table %zd has no room in shard %zd", bad / shards, bad % shards);
    release(&b);
    Py_RETURN_NONE;
}

/* Whether the magnitude of an element, which is all of it but its highest bit, is `least` or more. A block at a time is
 * looked at without a branch, so that the compiler makes vectors of it. Elements of a file may begin anywhere. */
#ifdef __GNUC__
#define ANYWHERE __attribute__((aligned(1), may_alias))
#else
#define ANYWHERE
#endif
typedef int16_t ANYWHERE loose_16;
typedef int32_t ANYWHERE loose_32;
typedef int64_t ANYWHERE loose_64;

#define DEFINE_REACHES(NAME, TYPE, LOOSE, MASK, TARGET)                                                                \
    TARGET static int NAME(const LOOSE *data, Py_ssize_t n, int64_t least)                                             \
    {                                                                                                                  \
        const TYPE most = (TYPE)(least - 1), mask = (TYPE)(MASK);                                                      \
        Py_ssize_t k, first, last;                                                                                     \
        TYPE found = 0;                                                                                                \
        for (first = 0; first < n && !found; first = last) {                                                           \
            last = n - first < 4096 ? n : first + 4096;                                                                \
            for (k = first; k < last; k++)                                                                             \
                found |= (TYPE)((TYPE)(data[k] & mask) > most);                                                        \
        }                                                                                                              \
        return found != 0;                                                                                             \
    }

DEFINE_REACHES(reaches_16, int16_t, loose_16, INT16_MAX, )
DEFINE_REACHES(reaches_32, int32_t, loose_32, INT32_MAX, )
DEFINE_REACHES(reaches_64, int64_t, loose_64, INT64_MAX, )
#ifdef HAVE_X86_TARGETS
DEFINE_REACHES(reaches_16_avx2, int16_t, loose_16, INT16_MAX, __attribute__((target("avx2"))))
DEFINE_REACHES(reaches_32_avx2, int32_t, loose_32, INT32_MAX, __attribute__((target("avx2"))))
DEFINE_REACHES(reaches_64_avx2, int64_t, loose_64, INT64_MAX, __attribute__((target("avx2"))))
#define REACHES(BITS) (wide ? reaches_##BITS##_avx2 : reaches_##BITS)
#else
#define REACHES(BITS) reaches_##BITS
#endif

static PyObject *reaches(PyObject *self, PyObject *args)
{
    PyObject *data_o;
    Py_ssize_t itemsize, n;
    long long least;
    Buffers b = {.count = 0};
    Py_buffer *data;
    int found = 0;
#ifdef HAVE_X86_TARGETS
    const int wide = simd_level > 0 && __builtin_cpu_supports("avx2");
#endif
    (void)self;
    if (!PyArg_ParseTuple(args, "OnL:reaches", &data_o, &itemsize, &least))
        return NULL;
    if (!(data = acquire(&b, data_o, 0))) {
        release(&b);
        return NULL;
    }
    if (itemsize != 2 && itemsize != 4 && itemsize != 8)
        return refuse(&b, "reaches: itemsize is %zd, expected 2, 4 or 8", itemsize);
    if (data->len % itemsize)
        return refuse(&b, "reaches: data has %zd byte%s, expected whole elements of %zd", COUNTED(data->len), itemsize);
    if (least < 1 || least > (INT64_MAX >> (64 - 8 * itemsize)))
        return refuse(&b, "reaches: least is %lld, no magnitude of %zd bytes", least, itemsize);
    n = data->len / itemsize;
    Py_BEGIN_ALLOW_THREADS
    if (itemsize == 2)
        found = REACHES(16)(data->buf, n, least);
    else if (itemsize == 4)
        found = REACHES(32)(data->buf, n, least);
    else
        found = REACHES(64)(data->buf, n, least);
    Py_END_ALLOW_THREADS
    release(&b);
    return PyBool_FromLong(found);
}

static PyObject *set_simd_level(PyObject *self, PyObject *args)
{
    (void)self;
    if (!PyArg_ParseTuple(args, "i:set_simd_level", &simd_level))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_simd_level", set_simd_level, METH_VARARGS, "Choose the instructions: 2 all, 1 up to AVX2 and BMI2, 0 none."},
    {"decode_varints", decode_varints, METH_VARARGS, "Fill values and lengths; return the bad position or -1."},
    {"varint_lengths", varint_lengths, METH_VARARGS, "Fill `out` with the bytes of each value's varint."},
    {"encode_varints", encode_varints, METH_VARARGS, "Fill `out` with the varints of values."},
    {"owners", owners, METH_VARARGS, "Fill `out` with id % ps_num."},
    {"have_owner", have_owner, METH_VARARGS, "Say whether all ids have one owner."},
    {"tally", tally, METH_VARARGS, "Add rows and id bytes per owner."},
    {"group_rows", group_rows, METH_VARARGS, "Copy rows to `out`, ordered by owner."},
    {"group_varints", group_varints, METH_VARARGS, "Copy varints to `out`, ordered by owner."},
    {"sort_ids", sort_ids, METH_VARARGS, "Sort ids in place; fill `order` with where each was, unless it is None."},
    {"put_ids", put_ids, METH_VARARGS, "Put the hashes of ids into their buckets; 0 when one has no room."},
    {"unique_words", unique_words, METH_VARARGS, "Say whether no word occurs twice in a bucket."},
    {"ranges_of", ranges_of, METH_VARARGS, "Fill `out` with how many of the ascending cuts are not above each id."},
    {"take_rows", take_rows, METH_VARARGS, "Fill `out` with the rows at some places."},
    {"sketch", sketch, METH_VARARGS, "Add rows times their keys to a sketch."},
    {"count_varints", count_varints, METH_VARARGS, "Return how many varints end in some bytes."},
    {"move_rows", move_rows, METH_VARARGS, "Add rows to a sketch and copy them to the places of their owners."},
    {"move_file_rows", move_file_rows, METH_VARARGS, "Do so with the rows of a file, and write them to their targets."},
    {"write_groups", write_groups, METH_VARARGS, "Write consecutive stretches to files, one for each target."},
    {"sketch_file_rows", sketch_file_rows, METH_VARARGS, "Read rows of a file and add them to a sketch."},
    {"sketch_parts", sketch_parts, METH_VARARGS, "Add the rows of many small tables to their sketches."},
    {"tally_parts", tally_parts, METH_VARARGS, "Decode the ids of many small tables; add rows and id bytes per owner."},
    {"move_parts", move_parts, METH_VARARGS, "Move the rows and ids of many small tables, and add them to sketches."},
    {"walk_entries", walk_entries, METH_VARARGS, "Find the table infos and tables at the start of a window."},
    {"put_heads", put_heads, METH_VARARGS, "Put what stands before the rows and the ids of tables to their places."},
    {"reaches", reaches, METH_VARARGS, "Say whether the magnitude of an element is so large or larger."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "Compiled inner loops of bulk.py.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    const uint16_t one = 1;
    if (*(const uint8_t *)&one != 1) {
        PyErr_SetString(PyExc_ImportError, "the compiled kernel needs a little-endian machine");
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    int avx2 = 0;
#ifdef HAVE_X86_TARGETS
    avx2 = __builtin_cpu_supports("avx2") != 0;
#endif
    if (made && (PyModule_AddIntConstant(made, "ABI", 1) < 0 || PyModule_AddIntConstant(made, "AVX2", avx2) < 0))
        Py_CLEAR(made);
    return made;
}
