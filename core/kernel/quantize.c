/* Rows of floats in 8 or 4 bits an element: the range of each row, and then the codes. `quantizing.py` says the rules. */
#include "kernel.h"

#define LANES 16
/* Added and taken away, it leaves a float of less than 2**22 rounded to the nearest whole number, half-way to even. */
#define ROUNDER 12582912.0f

static inline float positive(float v)
{
    return v < 0 ? -v : v;
}

/* Many lanes at a time, so that the compiler uses wide instructions although the least of two zeros is not one of them. */
#define DEFINE_RANGES(NAME, TARGET)                                                                                   \
    TARGET static void NAME(const float *v, Py_ssize_t rows, Py_ssize_t dim, float *low, float *high)                 \
    {                                                                                                                 \
        for (Py_ssize_t row = 0; row < rows; row++, v += dim) {                                                       \
            float lows[LANES], highs[LANES], odd[LANES], nothing = 0;                                                 \
            for (int k = 0; k < LANES; k++)                                                                           \
                lows[k] = highs[k] = dim ? v[0] : 0, odd[k] = 0;                                                      \
            Py_ssize_t j = 0;                                                                                         \
            for (; j + LANES <= dim; j += LANES)                                                                      \
                for (int k = 0; k < LANES; k++) {                                                                     \
                    lows[k] = v[j + k] < lows[k] ? v[j + k] : lows[k];                                                \
                    highs[k] = v[j + k] > highs[k] ? v[j + k] : highs[k];                                             \
                    odd[k] += v[j + k] - v[j + k];                                                                    \
                }                                                                                                     \
            for (; j < dim; j++) {                                                                                    \
                lows[0] = v[j] < lows[0] ? v[j] : lows[0];                                                            \
                highs[0] = v[j] > highs[0] ? v[j] : highs[0];                                                         \
                odd[0] += v[j] - v[j];                                                                                \
            }                                                                                                         \
            for (int k = 1; k < LANES; k++) {                                                                         \
                lows[0] = lows[k] < lows[0] ? lows[k] : lows[0];                                                      \
                highs[0] = highs[k] > highs[0] ? highs[k] : highs[0];                                                 \
            }                                                                                                         \
            for (int k = 0; k < LANES; k++)                                                                           \
                nothing += odd[k]; /* 0, or no number where a value is not finite */                                  \
            if (lows[0] == 0)                                                                                         \
                for (j = 0; j < dim; j++)                                                                             \
                    if (v[j] == 0) {                                                                                  \
                        lows[0] = v[j];                                                                               \
                        break;                                                                                        \
                    }                                                                                                 \
            low[row] = nothing == 0 ? lows[0] : nothing;                                                              \
            high[row] = highs[0];                                                                                     \
        }                                                                                                             \
    }

/* The codes of n elements; with as many as there are lanes, which the compiler then knows, in wide instructions. */
static inline __attribute__((always_inline)) void put_codes(const float *v, const int n, const float one,
                                                            const float base, const float by, const float most,
                                                            const int per_byte, uint8_t *out, float *far, float *sums)
{
    float codes[LANES];
    for (int k = 0; k < n; k++) {
        float code = ((v[k] - base) * by + ROUNDER) - ROUNDER;
        code = code > most ? most : code;
        codes[k] = code < 0 ? 0 : code;
        const float error = positive(codes[k] * one + base - v[k]);
        far[k] = error > far[k] ? error : far[k];
        sums[k] += error;
    }
    if (per_byte == 1)
        for (int k = 0; k < n; k++)
            out[k] = (uint8_t)(int32_t)codes[k];
    else
        for (int k = 0; k < n; k += 2)
            out[k / 2] = (uint8_t)((int32_t)codes[k] | (k + 1 < n ? (int32_t)codes[k + 1] << 4 : 0));
}

#define DEFINE_CODES(NAME, TARGET)                                                                                    \
    TARGET static void NAME(const float *v, Py_ssize_t rows, Py_ssize_t dim, const float *scale, const float *offset, \
                            const float *inverse, float most, int per_byte, uint8_t *out, Py_ssize_t width,           \
                            double *errors)                                                                           \
    {                                                                                                                 \
        float far[LANES] = {0};                                                                                       \
        for (Py_ssize_t row = 0; row < rows; row++, v += dim, out += width) {                                         \
            const float one = scale[row], base = offset[row], by = inverse[row];                                      \
            float sums[LANES] = {0};                                                                                  \
            Py_ssize_t j = 0;                                                                                         \
            for (; j + LANES <= dim; j += LANES)                                                                      \
                put_codes(v + j, LANES, one, base, by, most, per_byte, out + j / per_byte, far, sums);                \
            if (j < dim)                                                                                              \
                put_codes(v + j, (int)(dim - j), one, base, by, most, per_byte, out + j / per_byte, far, sums);       \
            for (int half = LANES / 2; half; half /= 2)                                                               \
                for (int k = 0; k < half; k++)                                                                        \
                    sums[k] += sums[k + half];                                                                        \
            errors[1] += sums[0];                                                                                     \
        }                                                                                                             \
        for (int k = 0; k < LANES; k++)                                                                               \
            errors[0] = far[k] > errors[0] ? far[k] : errors[0];                                                      \
    }

DEFINE_RANGES(ranges_plain, )
DEFINE_CODES(codes_plain, )
#ifdef HAVE_X86_TARGETS
DEFINE_RANGES(ranges_avx2, __attribute__((target("avx2"))))
DEFINE_CODES(codes_avx2, __attribute__((target("avx2"))))
#endif

static int is_wide(void)
{
#ifdef HAVE_X86_TARGETS
    return simd_level > 0 && __builtin_cpu_supports("avx2");
#else
    return 0;
#endif
}

#ifdef HAVE_X86_TARGETS
#define CHOSEN(NAME) (wide ? NAME##_avx2 : NAME##_plain)
#else
#define CHOSEN(NAME) NAME##_plain
#endif

PyObject *row_ranges(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *values = &b.view[0], *low = &b.view[1], *high = &b.view[2];
    Py_ssize_t dim, n;
    const int wide = is_wide();
    if (!take(&b, args, "y*nw*w*:row_ranges", values, &dim, low, high))
        return NULL;
    n = low->len / 4;
    if (dim < 0 || dim > PY_SSIZE_T_MAX / 8)
        return refuse(&b, "row_ranges: dim is %zd, expected 0 or more", dim);
    if (low->len % 4 || high->len != low->len)
        return refuse_size(&b, "row_ranges", "high", high, n, 4);
    if (n && dim > PY_SSIZE_T_MAX / 4 / n)
        return refuse(&b, "row_ranges: %zd elements in each of %zd row%s", dim, COUNTED(n));
    if (values->len != n * dim * 4)
        return refuse_size(&b, "row_ranges", "values", values, n, dim * 4);
    Py_BEGIN_ALLOW_THREADS
    CHOSEN(ranges)(values->buf, n, dim, low->buf, high->buf);
    Py_END_ALLOW_THREADS
    (void)wide;
    return give(&b, Py_NewRef(Py_None));
}

PyObject *quantize_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    Buffers b;
    Py_buffer *values = &b.view[0], *scale = &b.view[1], *offset = &b.view[2], *inverse = &b.view[3];
    Py_buffer *out = &b.view[4], *errors = &b.view[5];
    Py_ssize_t dim, bits, width, n;
    const int wide = is_wide();
    if (!take(&b, args, "y*nny*y*y*w*nw*:quantize_rows", values, &dim, &bits, scale, offset, inverse, out, &width, errors))
        return NULL;
    n = scale->len / 4;
    if (bits != 8 && bits != 4)
        return refuse(&b, "quantize_rows: bits is %zd, expected 8 or 4", bits);
    if (dim < 0 || dim > PY_SSIZE_T_MAX / 8 || width < (dim * bits + 7) / 8)
        return refuse(&b, "quantize_rows: width is %zd, too narrow for %zd element%s", width, COUNTED(dim));
    if (n && (dim > PY_SSIZE_T_MAX / 4 / n || width > PY_SSIZE_T_MAX / n))
        return refuse(&b, "quantize_rows: %zd elements in each of %zd row%s", dim, COUNTED(n));
    if (values->len != n * dim * 4)
        return refuse_size(&b, "quantize_rows", "values", values, n, dim * 4);
    if (offset->len != scale->len || inverse->len != scale->len || scale->len % 4)
        return refuse_size(&b, "quantize_rows", "offset", offset, n, 4);
    if (out->len != n * width)
        return refuse_size(&b, "quantize_rows", "out", out, n, width);
    if (errors->len != 16)
        return refuse_size(&b, "quantize_rows", "errors", errors, 2, 8);
    Py_BEGIN_ALLOW_THREADS
    CHOSEN(codes)(values->buf, n, dim, scale->buf, offset->buf, inverse->buf, (float)((1 << bits) - 1), 8 / (int)bits,
                  out->buf, width, errors->buf);
    Py_END_ALLOW_THREADS
    (void)wide;
    return give(&b, Py_NewRef(Py_None));
}
