/* The sketch of the fingerprint. */
#include "kernel.h"

/* Wider rows are looked at fewer at a time, or columns of 32 bytes of them would push each other out of the caches. */
#define WIDE_BYTES 1024
#define WIDE_ROWS 64

/* Compute the eight 16-bit limbs of the key of a row (docs/fingerprint.md). */
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

#define AVX2_TARGET __attribute__((target("avx2")))

/* Add the paired keys of n rows to the totals of the limbs. */
AVX2_TARGET static void add_keys(uint32_t pairs[][LIMBS], Py_ssize_t n, uint32_t total[LIMBS])
{
    __m256i sum = _mm256_loadu_si256((const __m256i *)total);
    const __m256i ones = _mm256_set1_epi16(1);
    Py_ssize_t p;
    for (p = 0; 2 * p < n; p++)
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)pairs[p]), ones));
    _mm256_storeu_si256((__m256i *)total, sum);
}

/* Multiply four numbers of 64 bits by a constant: there is an instruction for halves of them only. */
AVX2_TARGET static inline __m256i times(__m256i numbers, uint64_t constant)
{
    const __m256i low = _mm256_set1_epi64x((long long)constant), high = _mm256_set1_epi64x((long long)(constant >> 32));
    __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(numbers, 32), low);
    upper = _mm256_add_epi64(upper, _mm256_mul_epu32(numbers, high));
    return _mm256_add_epi64(_mm256_mul_epu32(numbers, low), _mm256_slli_epi64(upper, 32));
}

/* Compute the paired keys of four rows at a time; `row_key` does the remaining ones. */
AVX2_TARGET static void paired_keys_avx2(const int64_t *ids, Py_ssize_t n, uint64_t salt, uint32_t pairs[][LIMBS])
{
    const __m256i add = _mm256_set1_epi64x((long long)(salt + KEY_ADD));
    const __m256i more = _mm256_set1_epi64x((long long)KEY_MORE);
    int16_t keys[4][LIMBS];
    Py_ssize_t r, first;
    for (r = 0; r + 4 <= n; r += 4) {
        __m256i k0 = _mm256_add_epi64(_mm256_loadu_si256((const __m256i *)(ids + r)), add), k1, odd, even, low, high;
        k0 = times(k0, KEY_FIRST);
        k0 = times(_mm256_xor_si256(k0, _mm256_srli_epi64(k0, 32)), KEY_SECOND);
        k0 = _mm256_xor_si256(k0, _mm256_srli_epi64(k0, 29));
        k1 = times(_mm256_add_epi64(k0, more), KEY_THIRD);
        k1 = _mm256_xor_si256(k1, _mm256_srli_epi64(k1, 32));
        even = _mm256_unpacklo_epi64(k0, k1); /* all limbs of the first row and of the third one */
        odd = _mm256_unpackhi_epi64(k0, k1);
        low = _mm256_unpacklo_epi16(even, odd);
        high = _mm256_unpackhi_epi16(even, odd);
        _mm256_storeu_si256((__m256i *)pairs[r / 2], _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)pairs[r / 2 + 1], _mm256_permute2x128_si256(low, high, 0x31));
    }
    for (first = r; r < n; r++)
        row_key((uint64_t)ids[r], salt, keys[r - first]);
    pair_keys((const int16_t (*)[LIMBS])keys, n - first, pairs + first / 2);
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

/* The same of the columns of a whole vector, or of its first `bytes`. */
AVX2_TARGET static inline void add_vectors(uint32_t *sums, Py_ssize_t bytes, __m256i low, __m256i high)
{
    __m256i front = _mm256_permute2x128_si256(low, high, 0x20), back = _mm256_permute2x128_si256(low, high, 0x31);
    if (bytes == 32) {
        __m256i *to = (__m256i *)sums;
        _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), front));
        _mm256_storeu_si256(to + 1, _mm256_add_epi32(_mm256_loadu_si256(to + 1), back));
    } else {
        uint32_t ordered[16];
        Py_ssize_t k;
        _mm256_storeu_si256((__m256i *)ordered, front);
        _mm256_storeu_si256((__m256i *)(ordered + 8), back);
        for (k = 0; k < (bytes + 1) / 2; k++)
            sums[k] += ordered[k];
    }
}

#define COPY_TAIL(SIZE)                                                                                               \
    for (r = 0; r < n; r++)                                                                                           \
        memcpy(tails + r * vector, rows + r * stride, (size_t)(SIZE));

/* Copy the last bytes of rows, fewer than a vector, into vectors of zeros; three more vectors of zeros follow. */
static void copy_tails(const uint8_t *rows, Py_ssize_t stride, Py_ssize_t n, Py_ssize_t bytes, Py_ssize_t vector,
                       uint8_t *tails)
{
    Py_ssize_t r;
    memset(tails, 0, (size_t)((n + 3) * vector));
    FOR_SIZE(bytes, COPY_TAIL)
}

#define EACH_OF_FOUR(DO) DO(0) DO(1) DO(2) DO(3)
#define DECLARE_HALF(M) __m256i low##M = _mm256_setzero_si256(), high##M = _mm256_setzero_si256();
#define ADD_HALF(M)                                                                                                   \
    key = KEY_OF(M);                                                                                                  \
    low##M = _mm256_add_epi32(low##M, _mm256_madd_epi16(first, key));                                                 \
    high##M = _mm256_add_epi32(high##M, _mm256_madd_epi16(second, key));
#define STORE_HALF(M) add_vectors(sums + (half + (M)) * columns, bytes, low##M, high##M);

/* Two rows at a time: pmaddwd multiplies a column of both by their two keys and adds the products. */
AVX2_TARGET static void sketch_vectors(uint32_t *sums, Py_ssize_t columns, uint32_t pairs[][LIMBS], const uint8_t *rows,
                                       Py_ssize_t stride, Py_ssize_t bytes, Py_ssize_t n)
{
#define KEY_OF(M) _mm256_set1_epi32((int)pairs[p][half + (M)])
    Py_ssize_t p, half;
    for (half = 0; half < LIMBS; half += 4) {
        EACH_OF_FOUR(DECLARE_HALF)
        for (p = 0; 2 * p < n; p++) {
            Py_ssize_t other = 2 * p + 1 < n ? 2 * p + 1 : 2 * p;
            __m256i a = _mm256_loadu_si256((const __m256i *)(rows + 2 * p * stride)), key;
            __m256i b = _mm256_loadu_si256((const __m256i *)(rows + other * stride));
            __m256i first = _mm256_unpacklo_epi16(a, b), second = _mm256_unpackhi_epi16(a, b);
            EACH_OF_FOUR(ADD_HALF)
        }
        EACH_OF_FOUR(STORE_HALF)
    }
#undef KEY_OF
}

#undef STORE_HALF
/* Both lanes have sums of the same columns; `bytes` says that only the first lane is added. */
#define STORE_HALF(M)                                                                                                 \
    low##M = _mm256_add_epi32(low##M, _mm256_permute2x128_si256(low##M, low##M, 1));                                  \
    high##M = _mm256_add_epi32(high##M, _mm256_permute2x128_si256(high##M, high##M, 1));                              \
    add_vectors(sums + (half + (M)) * columns, bytes, low##M, high##M);

/* The same for at most 16 bytes of each row, which come as vectors of 16: two pairs of rows share the registers. The
 * keys of rows that follow the last one do not matter, since all of their bytes are zeros. */
AVX2_TARGET static void sketch_halves(uint32_t *sums, Py_ssize_t columns, uint32_t pairs[][LIMBS], const uint8_t *rows,
                                      Py_ssize_t bytes, Py_ssize_t n)
{
#define KEY_OF(M) _mm256_shuffle_epi32(keys, (M) * 0x55)
    Py_ssize_t p, half;
    for (half = 0; half < LIMBS; half += 4) {
        EACH_OF_FOUR(DECLARE_HALF)
        for (p = 0; 2 * p < n; p += 2) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(rows + 32 * p));
            __m256i b = _mm256_loadu_si256((const __m256i *)(rows + 32 * p + 32));
            __m128i one = _mm_loadu_si128((const __m128i *)(pairs[p] + half));
            __m128i two = _mm_loadu_si128((const __m128i *)(pairs[p + 1] + half));
            __m256i keys = _mm256_inserti128_si256(_mm256_castsi128_si256(one), two, 1), key;
            __m256i even = _mm256_permute2x128_si256(a, b, 0x20), odd = _mm256_permute2x128_si256(a, b, 0x31);
            __m256i first = _mm256_unpacklo_epi16(even, odd), second = _mm256_unpackhi_epi16(even, odd);
            EACH_OF_FOUR(ADD_HALF)
        }
        EACH_OF_FOUR(STORE_HALF)
    }
#undef KEY_OF
}

AVX2_TARGET static void sketch_avx2(uint32_t *sums, Py_ssize_t columns, uint32_t pairs[][LIMBS], const uint8_t *rows,
                                    Py_ssize_t stride, Py_ssize_t size, Py_ssize_t n)
{
    uint8_t tails[(BLOCK_ROWS + 3) * 32];
    Py_ssize_t c = 0, r;
    for (; size > WIDE_BYTES && c + 64 <= size; c += 64) {
        for (r = 0; r < n; r++) /* each column is read four times: rows that lie far apart share few places of L1 */
            memcpy(tails + 64 * r, rows + c + r * stride, 64);
        sketch_vectors(sums + c / 2, columns, pairs, tails, 64, 32, n);
        sketch_vectors(sums + c / 2 + 16, columns, pairs, tails + 32, 64, 32, n);
    }
    for (; c + 32 <= size; c += 32)
        sketch_vectors(sums + c / 2, columns, pairs, rows + c, stride, 32, n);
    if (size - c > 16) {
        copy_tails(rows + c, stride, n, size - c, 32, tails);
        sketch_vectors(sums + c / 2, columns, pairs, tails, 32, size - c, n);
    } else if (size > c) {
        copy_tails(rows + c, stride, n, size - c, 16, tails);
        sketch_halves(sums + c / 2, columns, pairs, tails, size - c, n);
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

void sketch_rows(uint32_t *sums, Py_ssize_t columns, const int64_t *ids, Py_ssize_t n, const uint8_t *rows,
                        Py_ssize_t stride, Py_ssize_t size, uint64_t salt)
{
    int16_t keys[BLOCK_ROWS][LIMBS];
    uint32_t total[LIMBS] = {0};
    Py_ssize_t done, r, m, most = BLOCK_ROWS;
#ifdef HAVE_X86_TARGETS
    uint32_t pairs[BLOCK_ROWS / 2 + 2][LIMBS];
    int avx2 = __builtin_cpu_supports("avx2");
    int vnni = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && simd_level >= 2;
    avx2 = avx2 && simd_level >= 1;
    if (avx2 && !vnni && size > WIDE_BYTES)
        most = WIDE_ROWS;
#endif
    for (done = 0; done < n; done += most) {
        Py_ssize_t some = n - done < most ? n - done : most;
        const uint8_t *from = rows + done * stride;
#ifdef HAVE_X86_TARGETS
        if (avx2) {
            if (vnni) {
                row_keys_vnni(ids + done, some, salt, keys);
                pair_keys((const int16_t (*)[LIMBS])keys, some, pairs);
            } else
                paired_keys_avx2(ids + done, some, salt, pairs);
            memset(pairs[(some + 1) / 2], 0, sizeof(pairs[0]) * 2); /* two pairs are read at a time */
            add_keys(pairs, some, total);
            (vnni ? sketch_vnni : sketch_avx2)(sums, columns, pairs, from, stride, size, some);
            continue;
        }
#endif
        for (r = 0; r < some; r++) {
            row_key((uint64_t)ids[done + r], salt, keys[r]);
            for (m = 0; m < LIMBS; m++)
                total[m] += (uint32_t)(int32_t)keys[r][m];
        }
        sketch_plain(sums, columns, (const int16_t (*)[LIMBS])keys, from, stride, size, some);
    }
    for (m = 0; m < LIMBS; m++)
        sums[m * columns + columns - 1] += total[m];
}

PyObject *sketch(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t row_bytes, start, size, n, columns, needed;
    unsigned long long salt;
    Buffers b;
    Py_buffer *sums = &b.view[0], *ids = &b.view[1], *values = &b.view[2];
    if (!take(&b, args, "w*y*y*nnnK:sketch", sums, ids, values, &row_bytes, &start, &size, &salt))
        return NULL;
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
    return give(&b, Py_NewRef(Py_None));
}
