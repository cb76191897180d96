/* Compiled inner loops of bulk.py, which has each of them in numpy too: the same results and the same errors, faster.
 *
 * `move_file_rows`, `sketch_file_rows`, `read_runs` and `write_groups` use files too; without them, Python reads and
 * writes beside the other calls.
 * Every function takes buffers of exact element types and releases the GIL. It checks the sizes of all buffers first,
 * and no write ever leaves a buffer. A failed check raises a ValueError that names the argument, the expected value
 * and the one that came. Multi-byte values are little-endian: on other machines the module refuses to load, and numpy
 * does the work.
 */
#ifndef EDL_CKPT_KERNEL_H
#define EDL_CKPT_KERNEL_H

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

#ifdef __GNUC__
#pragma GCC visibility push(hidden) /* of the module, only its init function is seen from outside */
#endif

/* The instructions that may be used: 2 all, 1 up to AVX2 and BMI2, 0 none; tests compare each level with numpy. */
extern int simd_level;

#define LIMBS 8
#define BLOCK_ROWS 256
#define CHUNK_BYTES 4096
#define CHUNK_STEP 0x9E3779B97F4A7C15ULL

/* The constants of the keys of rows; `bulk.py` has them too. */
#define KEY_ADD 0x9FB21C651E98DF25ULL
#define KEY_FIRST 0xBF58476D1CE4E5B9ULL
#define KEY_SECOND 0x94D049BB133111EBULL
#define KEY_MORE 0xD6E8FEB86659FD93ULL
#define KEY_THIRD 0xA0761D6478BD642FULL

/* Where the next row of the same target will lie is fetched ahead: no processor follows so many streams by itself. */
#if defined(__GNUC__)
#define PREFETCH(ADDRESS) __builtin_prefetch(ADDRESS)
#define PREFETCH_WRITE(ADDRESS) __builtin_prefetch(ADDRESS, 1)
#else
#define PREFETCH(ADDRESS) (void)0
#define PREFETCH_WRITE(ADDRESS) (void)0
#endif

typedef struct {
    Py_buffer view[7];
    int count;
} Buffers;

void release(Buffers *b);
int take(Buffers *b, PyObject *args, const char *format, ...);
PyObject *give(Buffers *b, PyObject *result);
PyObject *refuse(Buffers *b, const char *format, ...);
PyObject *refuse_size(Buffers *b, const char *function, const char *name, const Py_buffer *view, Py_ssize_t rows,
                      Py_ssize_t itemsize);
PyObject *refuse_owner(Buffers *b, const char *function, const uint16_t *owner, Py_ssize_t row, Py_ssize_t targets);

/* A number and the plural of its noun, for "%zd row%s". */
#define COUNTED(N) (Py_ssize_t)(N), (N) == 1 ? "" : "s"

/* Do a loop over rows, with their size as a constant where it is usual: then a copy is one or two instructions. */
#define FOR_SIZE(SIZE, LOOP)                                                                                          \
    switch (SIZE) {                                                                                                   \
    case 4: LOOP(4) break;                                                                                            \
    case 8: LOOP(8) break;                                                                                            \
    case 16: LOOP(16) break;                                                                                          \
    case 32: LOOP(32) break;                                                                                          \
    case 64: LOOP(64) break;                                                                                          \
    case 128: LOOP(128) break;                                                                                        \
    default: LOOP(SIZE) break;                                                                                        \
    }

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* What one file does for another; each is described where it is defined. */
Py_ssize_t decode(const uint8_t *data, Py_ssize_t size, int64_t *values, uint8_t *lengths, Py_ssize_t n);
void owners_of(const int64_t *ids, Py_ssize_t n, uint64_t ps_num, uint16_t *out);
int all_have(const int64_t *ids, Py_ssize_t n, uint64_t ps_num, uint64_t ps_id);
Py_ssize_t first_bad_owner(const uint16_t *of, Py_ssize_t n, Py_ssize_t ps_num);
void sketch_rows(uint32_t *sums, Py_ssize_t columns, const int64_t *ids, Py_ssize_t n, const uint8_t *rows,
                 Py_ssize_t stride, Py_ssize_t size, uint64_t salt);

/* The functions of the module. */
PyObject *crc32(PyObject *self, PyObject *args);
PyObject *crc32c(PyObject *self, PyObject *args);
PyObject *decode_varints(PyObject *self, PyObject *args);
PyObject *count_varints(PyObject *self, PyObject *args);
PyObject *varint_lengths(PyObject *self, PyObject *args);
PyObject *encode_varints(PyObject *self, PyObject *args);
PyObject *owners(PyObject *self, PyObject *args);
PyObject *have_owner(PyObject *self, PyObject *args);
PyObject *tally(PyObject *self, PyObject *args);
PyObject *group_rows(PyObject *self, PyObject *args);
PyObject *group_varints(PyObject *self, PyObject *args);
PyObject *sketch(PyObject *self, PyObject *args);
PyObject *move_rows(PyObject *self, PyObject *args);
PyObject *write_groups(PyObject *self, PyObject *args);
PyObject *move_file_rows(PyObject *self, PyObject *args);
PyObject *sketch_file_rows(PyObject *self, PyObject *args);
PyObject *read_runs(PyObject *self, PyObject *args);
PyObject *sketch_parts(PyObject *self, PyObject *args);
PyObject *tally_parts(PyObject *self, PyObject *args);
PyObject *move_parts(PyObject *self, PyObject *args);
PyObject *walk_entries(PyObject *self, PyObject *args);
PyObject *put_heads(PyObject *self, PyObject *args);
PyObject *row_ranges(PyObject *self, PyObject *args);
PyObject *quantize_rows(PyObject *self, PyObject *args);
PyObject *sort_ids(PyObject *self, PyObject *args);
PyObject *put_ids(PyObject *self, PyObject *args);
PyObject *unique_words(PyObject *self, PyObject *args);
PyObject *ranges_of(PyObject *self, PyObject *args);
PyObject *take_rows(PyObject *self, PyObject *args);

#endif
