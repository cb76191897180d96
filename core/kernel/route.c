/* Owners of ids, and rows and varints ordered by owner. */
#include "kernel.h"

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
void owners_of(const int64_t *ids, Py_ssize_t n, uint64_t ps_num, uint16_t *out)
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

PyObject *owners(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t ps_num, n;
    Buffers b;
    Py_buffer *ids = &b.view[0], *out = &b.view[1];
    if (!take(&b, args, "y*nw*:owners", ids, &ps_num, out))
        return NULL;
    n = out->len / 2;
    if (ps_num < 1 || ps_num > 65536)
        return refuse(&b, "owners: ps_num must be 1 to 65536, got %zd", ps_num);
    if (ids->len != n * 8)
        return refuse_size(&b, "owners", "ids", ids, n, 8);
    Py_BEGIN_ALLOW_THREADS
    owners_of(ids->buf, n, (uint64_t)ps_num, out->buf);
    Py_END_ALLOW_THREADS
    return give(&b, Py_NewRef(Py_None));
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

int all_have(const int64_t *ids, Py_ssize_t n, uint64_t ps_num, uint64_t ps_id)
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

PyObject *have_owner(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t ps_num, ps_id;
    Buffers b;
    Py_buffer *ids = &b.view[0];
    int all;
    if (!take(&b, args, "y*nn:have_owner", ids, &ps_num, &ps_id))
        return NULL;
    if (ps_id < 0 || ps_id >= ps_num)
        return refuse(&b, "have_owner: ps_id must be below ps_num, got %zd of %zd", ps_id, ps_num);
    Py_BEGIN_ALLOW_THREADS
    all = all_have(ids->buf, ids->len / 8, (uint64_t)ps_num, (uint64_t)ps_id);
    Py_END_ALLOW_THREADS
    return give(&b, PyBool_FromLong(all));
}

/* Ids that are tallied at a time: so many lengths of a byte add up in 32 bits. */
#define TALLIED_AT_ONCE ((Py_ssize_t)1 << 24)

/* Return the first owner that is no target, or -1. */
Py_ssize_t first_bad_owner(const uint16_t *of, Py_ssize_t n, Py_ssize_t ps_num)
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

PyObject *tally(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *owner = &b.view[0], *lengths = &b.view[1], *rows = &b.view[2], *id_bytes = &b.view[3];
    Py_ssize_t n, ps_num, bad;
    uint64_t *sums;
    if (!take(&b, args, "y*y*w*w*:tally", owner, lengths, rows, id_bytes))
        return NULL;
    n = lengths->len;
    ps_num = rows->len / 8;
    if (owner->len != n * 2)
        return refuse_size(&b, "tally", "owner", owner, n, 2);
    if (id_bytes->len != rows->len)
        return refuse(&b, "tally: id_bytes has %zd byte%s, rows has %zd", COUNTED(id_bytes->len), rows->len);
    if (!(sums = PyMem_Malloc((size_t)ps_num * 16 + 1)))
        return give(&b, PyErr_NoMemory());
    Py_BEGIN_ALLOW_THREADS
    bad = first_bad_owner(owner->buf, n, ps_num);
    if (bad < 0)
        add_tally(owner->buf, lengths->buf, n, ps_num, rows->buf, id_bytes->buf, sums);
    Py_END_ALLOW_THREADS
    PyMem_Free(sums);
    if (bad >= 0)
        return refuse_owner(&b, "tally", owner->buf, bad, ps_num);
    return give(&b, Py_NewRef(Py_None));
}

#define COPY_ROWS(SIZE)                                                                                               \
    for (k = 0; k < n; k++) {                                                                                         \
        uint8_t *to = out + next[of[k]]++ * (SIZE);                                                                   \
        memcpy(to, in + k * (SIZE), (SIZE));                                                                          \
        PREFETCH_WRITE(to + 2 * (SIZE) - 1);                                                                          \
    }

static void copy_rows(const uint8_t *in, Py_ssize_t size, const uint16_t *of, Py_ssize_t n, int64_t *next, uint8_t *out)
{
    Py_ssize_t k;
    FOR_SIZE(size, COPY_ROWS)
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

PyObject *group_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t row_bytes, n, ps_num;
    Buffers b;
    Py_buffer *values = &b.view[0], *owner = &b.view[1], *starts = &b.view[2], *out = &b.view[3];
    int64_t *next;
    Mismatch found;
    if (!take(&b, args, "y*ny*y*w*:group_rows", values, &row_bytes, owner, starts, out))
        return NULL;
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
    if (!next)
        return give(&b, PyErr_NoMemory());
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
    return give(&b, Py_NewRef(Py_None));
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

PyObject *group_varints(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *data = &b.view[0], *lengths = &b.view[1];
    Py_buffer *owner = &b.view[2], *starts = &b.view[3], *out = &b.view[4];
    Py_ssize_t k, n, ps_num, total = 0;
    int64_t *next;
    int good = 1;
    Mismatch found = {-1, -1, 0};
    if (!take(&b, args, "y*y*y*y*w*:group_varints", data, lengths, owner, starts, out))
        return NULL;
    n = lengths->len;
    ps_num = starts->len / 8;
    if (owner->len != n * 2)
        return refuse_size(&b, "group_varints", "owner", owner, n, 2);
    if (out->len != data->len)
        return refuse(&b, "group_varints: out has %zd byte%s, data has %zd", COUNTED(out->len), data->len);
    next = PyMem_Malloc((size_t)(ps_num ? ps_num : 1) * 8);
    if (!next)
        return give(&b, PyErr_NoMemory());
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
    return give(&b, Py_NewRef(Py_None));
}
