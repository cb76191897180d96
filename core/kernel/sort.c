/* Ids in order, in buckets and in ranges; rows taken by their places. */
#include "kernel.h"

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

PyObject *sort_ids(PyObject *Py_UNUSED(self), PyObject *args)
{
    const int alone = PyTuple_Size(args) == 2 && PyTuple_GetItem(args, 1) == Py_None;
    Buffers b;
    Py_buffer *ids = &b.view[0], *order = alone ? NULL : &b.view[1];
    Py_ssize_t n, k;
    PyObject *none;
    char *spare;
    if (!(alone ? take(&b, args, "w*O:sort_ids", ids, &none) : take(&b, args, "w*w*:sort_ids", ids, order)))
        return NULL;
    n = ids->len / 8;
    if (ids->len % 8)
        return refuse(&b, "sort_ids: ids has %zd byte%s, not a multiple of 8", COUNTED(ids->len));
    if (order && order->len != n * 4)
        return refuse_size(&b, "sort_ids", "order", order, n, 4);
    if (order && (uint64_t)n > UINT32_MAX)
        return refuse(&b, "sort_ids: %zd rows are more than 32 bits can number", n);
    spare = PyMem_Malloc(sizeof(int64_t) * PASSES * DIGITS + (size_t)n * (order ? 16 : 8));
    if (!spare)
        return give(&b, PyErr_NoMemory());
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
    return give(&b, Py_NewRef(Py_None));
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

PyObject *put_ids(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t first, own, room;
    Buffers b;
    Py_buffer *ids = &b.view[0], *words = &b.view[1], *filled = &b.view[2];
    uint64_t **next;
    int bits, fits;
    if (!take(&b, args, "y*inw*w*:put_ids", ids, &bits, &first, words, filled))
        return NULL;
    own = filled->len / 8;
    if (bits < 1 || bits > 16 || first < 0 || first > MOST_BUCKETS || own < 1 || own > MOST_BUCKETS)
        return refuse(&b, "put_ids: %zd bucket%s from %zd on with %d bits is out of range", COUNTED(own), first, bits);
    room = words->len / 8 / own;
    if (words->len != room * own * 8)
        return refuse(&b, "put_ids: words has %zd byte%s, not as many for each of %zd", COUNTED(words->len), own);
    if (!(next = PyMem_Malloc((size_t)(own + 1) * 16))) /* places and counts */
        return give(&b, PyErr_NoMemory());
    Py_BEGIN_ALLOW_THREADS
    fits = fill_buckets_with(ids->buf, ids->len / 8, bits, (uint64_t)first, own, words->buf, room, filled->buf, next);
    Py_END_ALLOW_THREADS
    PyMem_Free(next);
    return give(&b, PyBool_FromLong(fits));
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

PyObject *unique_words(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t own, room, k;
    Buffers b;
    Py_buffer *words = &b.view[0], *filled = &b.view[1];
    uint64_t *marks;
    int bits = 6, unique = 1;
    if (!take(&b, args, "y*y*:unique_words", words, filled))
        return NULL;
    own = filled->len / 8;
    room = own ? words->len / 8 / own : 0;
    for (k = 0; k < own; k++)
        if (((const int64_t *)filled->buf)[k] < 0 || ((const int64_t *)filled->buf)[k] > room)
            return refuse(&b, "unique_words: bucket %zd has %lld words, there is room for %zd", k,
                          (long long)((const int64_t *)filled->buf)[k], room);
    while (((uint64_t)1 << bits) < (uint64_t)room * 8)
        bits++;
    if (!(marks = PyMem_Malloc(((size_t)1 << (bits - 3)) + ((size_t)room * 8 + 64) * 8)))
        return give(&b, PyErr_NoMemory());
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < own && unique; k++)
        unique = are_unique((const uint64_t *)words->buf + k * room, ((const int64_t *)filled->buf)[k], marks, bits,
                            marks + ((size_t)1 << (bits - 6)));
    Py_END_ALLOW_THREADS
    PyMem_Free(marks);
    return give(&b, PyBool_FromLong(unique));
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

PyObject *ranges_of(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *ids = &b.view[0], *cuts = &b.view[1], *out = &b.view[2];
    Py_ssize_t k, n;
    if (!take(&b, args, "y*y*w*:ranges_of", ids, cuts, out))
        return NULL;
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
    return give(&b, Py_NewRef(Py_None));
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
    FOR_SIZE(size, TAKE_ROWS)
}

PyObject *take_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t row_bytes, n, rows, k, bad = -1;
    Buffers b;
    Py_buffer *values = &b.view[0], *order = &b.view[1], *out = &b.view[2];
    if (!take(&b, args, "y*ny*w*:take_rows", values, &row_bytes, order, out))
        return NULL;
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
    return give(&b, Py_NewRef(Py_None));
}
