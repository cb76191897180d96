/* The entries of tables in a shard: found at the start of a window, and put before the rows and ids of a new one. */
#include "kernel.h"

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

/* Pass over this tag and its payload, which is a part of the entry that begins at `found[part]`; 0 where it is none. */
static int walk_part(Walk *walk, uint8_t tag, int64_t end, int64_t *found, int part)
{
    found[part + 1] = walk_bytes(walk, tag, end);
    found[part] = walk->at;
    if (found[part + 1] < 0)
        return 0;
    walk->at = found[part + 1];
    return 1;
}

/* Pass over this tag and a dtype; 0 where there is none. */
static int walk_dtype(Walk *walk, uint8_t tag, int64_t *found)
{
    return walk_tag(walk, tag) && (found[ENTRY_DTYPE] = walk_number(walk)) >= 0 && found[ENTRY_DTYPE] <= 127;
}

/* Walk an EmbeddingTableInfo: name, dim, initializer, dtype. FIRST is dim, SECOND where its payload begins, VALUES the
 * initializer. */
static int walk_info(Walk *walk, int64_t end, int64_t *found)
{
    if (!walk_part(walk, 0x0A, end, found, ENTRY_NAME))
        return 0;
    if (!walk_tag(walk, 0x10) || (found[ENTRY_FIRST] = walk_number(walk)) <= 0 || found[ENTRY_FIRST] > INT32_MAX)
        return 0;
    return walk_part(walk, 0x1A, end, found, ENTRY_VALUES) && walk_dtype(walk, 0x20, found) && walk->at == end &&
           end <= walk->have;
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

/* Walk the values that a tensor may end with. */
static int walk_values(Walk *walk, int64_t end, int64_t *found)
{
    return walk->at >= end || (walk_part(walk, 0x22, end, found, ENTRY_VALUES) && walk->at == end);
}

/* Walk a TensorProto of two dimensions: dtype, shape, values. */
static int walk_tensor(Walk *walk, int64_t end, int64_t *found)
{
    int64_t shape;
    if (!walk_dtype(walk, 0x08, found))
        return 0;
    shape = walk_bytes(walk, 0x12, end);
    if (shape < 0 || (found[ENTRY_FIRST] = walk_size(walk, shape)) < 0 ||
        (found[ENTRY_SECOND] = walk_size(walk, shape)) < 0 || walk->at != shape)
        return 0;
    return found[ENTRY_FIRST] <= INT32_MAX && found[ENTRY_SECOND] <= INT32_MAX && walk_values(walk, end, found);
}

/* Walk a map entry of an IndexedSlicesProto: name, tensor, packed ids. */
static int walk_table(Walk *walk, int64_t end, int64_t *found)
{
    int64_t tensor;
    if (!walk_part(walk, 0x0A, end, found, ENTRY_NAME) || walk_bytes(walk, 0x12, end) != end)
        return 0;
    tensor = walk_bytes(walk, 0x0A, end);
    if (tensor < 0 || !walk_tensor(walk, tensor, found))
        return 0;
    return walk->at >= end ||
           (walk_part(walk, 0x12, end, found, ENTRY_IDS) && walk->at == end && found[ENTRY_IDS] < end);
}

/* Walk a map entry of a TensorProto: name, then dtype, shape and values. FIRST and SECOND are where its shape lies. */
static int walk_dense(Walk *walk, int64_t end, int64_t *found)
{
    if (!walk_part(walk, 0x0A, end, found, ENTRY_NAME) || walk_bytes(walk, 0x12, end) != end)
        return 0;
    return walk_dtype(walk, 0x08, found) && walk_part(walk, 0x12, end, found, ENTRY_FIRST) &&
           walk->at <= walk->have && walk_values(walk, end, found);
}

/* Fill `out` with the table infos, variables and tables that a window begins with, as long as they are written as
 * shard_layout.py writes them: what is not, or what the window cuts off, is left to generations.py. Return how many. */
PyObject *walk_entries(PyObject *Py_UNUSED(self), PyObject *args)
{
    long long base, size;
    Buffers b;
    Py_buffer *data = &b.view[0], *out = &b.view[1];
    Py_ssize_t n = 0;
    if (!take(&b, args, "y*LLw*:walk_entries", data, &base, &size, out))
        return NULL;
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
    return give(&b, PyLong_FromSsize_t(n));
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

PyObject *put_heads(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *names = &b.view[0], *forms = &b.view[1], *rows = &b.view[2];
    Py_buffer *id_bytes = &b.view[3], *values_at = &b.view[4], *ids_at = &b.view[5], *out = &b.view[6];
    Py_ssize_t t, k, n, shards, bad = -1;
    if (!take(&b, args, "y*y*y*y*y*y*w*:put_heads", names, forms, rows, id_bytes, values_at, ids_at, out))
        return NULL;
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
    return give(&b, Py_NewRef(Py_None));
}
