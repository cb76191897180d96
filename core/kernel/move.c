/* Rows that move to the places of their owners: in memory, between files, and those of many small tables at once. */
#include "kernel.h"

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

PyObject *move_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t row_bytes, n, k, done, ps_num, bad = -1, needed;
    Buffers b;
    Py_buffer *sums = &b.view[0], *ids = &b.view[1], *owner = &b.view[2];
    Py_buffer *values = &b.view[3], *places = &b.view[4], *out = &b.view[5];
    int fits = 1;
    if (!take(&b, args, "w*y*y*y*nw*w*:move_rows", sums, ids, owner, values, &row_bytes, places, out))
        return NULL;
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
    return give(&b, Py_NewRef(Py_None));
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
PyObject *write_groups(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t k, ps_num, failed = -1;
    Buffers b;
    Py_buffer *targets = &b.view[0], *data = &b.view[1], *sizes = &b.view[2], *offsets = &b.view[3];
    const int64_t *size;
    int64_t left, start = 0;
    int error = 0;
    if (!take(&b, args, "y*y*y*y*:write_groups", targets, data, sizes, offsets))
        return NULL;
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

PyObject *move_file_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t row_bytes, step, n, k, done, some, ps_num, look_rows, bad = -1, needed, failed = -1;
    Buffers b;
    Py_buffer *sums = &b.view[0], *ids = &b.view[1], *owner = &b.view[2];
    Py_buffer *targets = &b.view[3], *values_at = &b.view[4], *look = &b.view[5], *gathered = &b.view[6];
    int64_t *starts, *places;
    long long offset;
    int source, error = 0;
    if (!take(&b, args, "w*y*y*iLnny*w*w*w*:move_file_rows",
              sums, ids, owner, &source, &offset, &row_bytes, &step, targets, values_at, look, gathered))
        return NULL;
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
    if (!starts)
        return give(&b, PyErr_NoMemory());
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

PyObject *sketch_file_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t row_bytes, look_rows, n, from, now, needed;
    Buffers b;
    Py_buffer *sums = &b.view[0], *ids = &b.view[1], *data = &b.view[2];
    long long offset;
    int file, error = 0;
    if (!take(&b, args, "w*y*iLnnw*:sketch_file_rows", sums, ids, &file, &offset, &row_bytes, &look_rows, data))
        return NULL;
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
    return give(&b, PyLong_FromLong(error));
}

/* Fill `out` with runs of a file, one behind the other; None, or (run, number of the error as `read_whole`). */
PyObject *read_runs(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t run_bytes, n, k = 0;
    Buffers b;
    Py_buffer *starts = &b.view[0], *out = &b.view[1];
    int file, error = 0;
    if (!take(&b, args, "iy*nw*:read_runs", &file, starts, &run_bytes, out))
        return NULL;
    n = starts->len / 8;
    if (run_bytes < 1)
        return refuse(&b, "read_runs: run_bytes must be at least 1, got %zd", run_bytes);
    if (out->len / run_bytes != n || out->len % run_bytes)
        return refuse_size(&b, "read_runs", "out", out, n, run_bytes);
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n && !error; k++)
        error = read_whole(file, (uint8_t *)out->buf + k * run_bytes, run_bytes, ((const int64_t *)starts->buf)[k]);
    Py_END_ALLOW_THREADS
    release(&b);
    if (!error)
        Py_RETURN_NONE;
    return Py_BuildValue("ni", k - 1, error);
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

PyObject *sketch_parts(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *sums = &b.view[0], *data = &b.view[1], *parts = &b.view[2];
    Py_ssize_t k, most, bad = -1, ps_num = 1, ps_id = 0; /* every id has the one owner of one */
    int64_t *ids;
    if (!take(&b, args, "w*y*y*|nn:sketch_parts", sums, data, parts, &ps_num, &ps_id))
        return NULL;
    if (ps_id < 0 || ps_id >= ps_num)
        return refuse(&b, "sketch_parts: ps_id must be below ps_num, got %zd of %zd", ps_id, ps_num);
    most = most_rows(parts, data, data, sums, INT32_MAX, &bad);
    if (most < 0)
        return refuse(&b, "sketch_parts: part %zd is not inside of the data or the sketch", bad);
    ids = PyMem_Malloc((size_t)most * 9 + 1);
    if (!ids)
        return give(&b, PyErr_NoMemory());
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
    return give(&b, PyLong_FromSsize_t(bad));
}

PyObject *tally_parts(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *data = &b.view[0], *parts = &b.view[1], *rows = &b.view[2], *id_bytes = &b.view[3], *ids = &b.view[4];
    Py_ssize_t ps_num, tables, k, j, most, total = 0, bad = -1;
    char *spare;
    if (!take(&b, args, "y*y*nw*w*w*:tally_parts", data, parts, &ps_num, rows, id_bytes, ids))
        return NULL;
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
    if (!spare)
        return give(&b, PyErr_NoMemory());
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
    return give(&b, PyLong_FromSsize_t(bad));
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

PyObject *move_parts(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *sums = &b.view[0], *data = &b.view[1], *values = &b.view[2];
    Py_buffer *parts = &b.view[3], *values_at = &b.view[4], *ids_at = &b.view[5], *out = &b.view[6];
    Py_ssize_t ps_num, tables, k, most, bad = -1;
    char *spare;
    if (!take(&b, args, "w*y*y*y*nw*w*w*:move_parts", sums, data, values, parts, &ps_num, values_at, ids_at, out))
        return NULL;
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
    if (!spare)
        return give(&b, PyErr_NoMemory());
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
    return give(&b, PyLong_FromSsize_t(bad));
}
