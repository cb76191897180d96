/* The module: its arguments, its table of functions, and odd values. */
#include "kernel.h"

int simd_level = 2;

void release(Buffers *b)
{
    while (b->count > 0)
        PyBuffer_Release(&b->view[--b->count]);
}

/* Fill `b` with the arguments of a function, as PyArg_ParseTuple does: y* is an array that is read, w* one that is
 * written; in `format` they come with the places for them, &b->view[0], &b->view[1] and so on. Return 0 with an exception
 * set, and nothing to release. What is written shares no byte with another array: what a check has seen would change before
 * it is used. */
int take(Buffers *b, PyObject *args, const char *format, ...)
{
    int written[7], k, other, parsed;
    va_list places;
    const char *c;
    b->count = 0;
    va_start(places, format);
    parsed = PyArg_VaParse(args, format, places);
    va_end(places);
    if (!parsed)
        return 0;
    for (c = format; *c != ':'; c++)
        if (*c == '*')
            written[b->count++] = c[-1] == 'w';
    for (k = 0; k < b->count; k++)
        for (other = 0; other < k; other++) {
            const Py_buffer *first = &b->view[other], *second = &b->view[k];
            if ((written[k] || written[other]) && (char *)first->buf < (char *)second->buf + second->len &&
                (char *)second->buf < (char *)first->buf + first->len) {
                release(b);
                PyErr_Format(PyExc_ValueError, "arrays %d and %d overlap, and one of them is written", other + 1, k + 1);
                return 0;
            }
        }
    return 1;
}

/* Release the buffers, and return a result of the function. */
PyObject *give(Buffers *b, PyObject *result)
{
    release(b);
    return result;
}

/* Release the buffers and raise a ValueError with this message. */
PyObject *refuse(Buffers *b, const char *format, ...)
{
    va_list values;
    release(b);
    va_start(values, format);
    PyErr_FormatV(PyExc_ValueError, format, values);
    va_end(values);
    return NULL;
}

/* Refuse a buffer of another size than this many rows need. */
PyObject *refuse_size(Buffers *b, const char *function, const char *name, const Py_buffer *view,
                             Py_ssize_t rows, Py_ssize_t itemsize)
{
    return refuse(b, "%s: %s has %zd byte%s, the %zd row%s %s %zd", function, name, COUNTED(view->len), COUNTED(rows),
                  rows == 1 ? "needs" : "need", (Py_ssize_t)((size_t)rows * (size_t)itemsize));
}

PyObject *refuse_owner(Buffers *b, const char *function, const uint16_t *owner, Py_ssize_t row,
                              Py_ssize_t targets)
{
    return refuse(b, "%s: owner %d of row %zd is out of range for %zd target%s", function, (int)owner[row], row,
                  COUNTED(targets));
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

static PyObject *reaches(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_ssize_t itemsize, n;
    long long least;
    Buffers b;
    Py_buffer *data = &b.view[0];
    int found = 0;
#ifdef HAVE_X86_TARGETS
    const int wide = simd_level > 0 && __builtin_cpu_supports("avx2");
#endif
    if (!take(&b, args, "y*nL:reaches", data, &itemsize, &least))
        return NULL;
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
    return give(&b, PyBool_FromLong(found));
}

static PyObject *set_simd_level(PyObject *Py_UNUSED(self), PyObject *args)
{
    if (!PyArg_ParseTuple(args, "i:set_simd_level", &simd_level))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_simd_level", set_simd_level, METH_VARARGS, "Choose the instructions: 2 all, 1 up to AVX2 and BMI2, 0 none."},
    {"crc32", crc32, METH_VARARGS, "Return the CRC-32 of some bytes, after those that a value is of."},
    {"crc32c", crc32c, METH_VARARGS, "Return the CRC-32C of some bytes, after those that a value is of."},
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
    {"row_ranges", row_ranges, METH_VARARGS, "Fill `low` and `high` with the least and the greatest value of each row."},
    {"quantize_rows", quantize_rows, METH_VARARGS, "Fill `out` with the codes of rows, and add up their errors."},
    {"sketch", sketch, METH_VARARGS, "Add rows times their keys to a sketch."},
    {"count_varints", count_varints, METH_VARARGS, "Return how many varints end in some bytes."},
    {"move_rows", move_rows, METH_VARARGS, "Add rows to a sketch and copy them to the places of their owners."},
    {"move_file_rows", move_file_rows, METH_VARARGS, "Do so with the rows of a file, and write them to their targets."},
    {"write_groups", write_groups, METH_VARARGS, "Write consecutive stretches to files, one for each target."},
    {"sketch_file_rows", sketch_file_rows, METH_VARARGS, "Read rows of a file and add them to a sketch."},
    {"read_runs", read_runs, METH_VARARGS, "Fill `out` with runs of bytes of a file."},
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
    if (made && (PyModule_AddIntConstant(made, "ABI", 2) < 0 || PyModule_AddIntConstant(made, "AVX2", avx2) < 0))
        Py_CLEAR(made);
    return made;
}
