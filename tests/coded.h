/* SPDX-License-Identifier: Apache-2.0 */
/* coded.h - what the bits of codes and scales mean. Included once by each test. */
#include "references.h"

/* ---- elements and scales, from their definitions ---- */

static double small_float(int code, int mantissa, int bias, int exponents)
{
    int exponent = code >> mantissa & (exponents - 1), m = code & ((1 << mantissa) - 1);
    double size = exponent ? ldexp((1 << mantissa) + m, exponent - bias - mantissa)
                           : ldexp(m, 1 - bias - mantissa);
    return code >> mantissa & exponents ? -size : size;
}

static double e4m3(int code)
{
    return (code & 127) == 127 ? (double)NAN : small_float(code, 3, 7, 16);
}

static double e5m2(int code)
{
    return (code & 127) > 124    ? (double)NAN
           : (code & 127) == 124 ? (code < 128 ? (double)INFINITY : -(double)INFINITY)
                                 : small_float(code, 2, 15, 32);
}

static double e2m1(int code)
{
    return small_float(code, 1, 1, 4);
}

static double e8m0(int code)
{
    return code == 255 ? (double)NAN : ldexp(1, code - 127);
}

static double i8(int code)
{
    return code < 128 ? code : code - 256;
}

static double i4(int code)
{
    return code - 8;
}

enum share { ROW, STATIC, BLOCK, GROUP };
static const char *const shares[] = {"row", "static", "block", "group"};

struct format {
    const char *name;
    int bits;
    double (*value)(int code);
    double (*scale)(int code); /* of a byte; NULL: the scales' dtype is that of a float */
    int group;                 /* 0: by row, static or block */
    bool fp8, second;
};
static const struct format formats[] = {
    {"fp8_e4m3", 8, e4m3, NULL, 0, true, false},
    {"fp8_e5m2", 8, e5m2, NULL, 0, true, false},
    {"int8", 8, i8, NULL, 0, false, false},
    {"mxfp8_e4m3", 8, e4m3, e8m0, 32, false, false},
    {"mxfp8_e5m2", 8, e5m2, e8m0, 32, false, false},
    {"mxfp4", 4, e2m1, e8m0, 32, false, false},
    {"nvfp4", 4, e2m1, e4m3, 16, false, true},
    {"int4", 4, i4, NULL, 32, false, false},
    {"int4", 4, i4, NULL, 128, false, false},
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* ---- tensors ---- */

static inline double number(const moegen_rt_tensor *t, int64_t i)
{
    double x = (double)NAN;
    CHECK(i >= 0 && i < moegen_rt_tensor_count(t), "%s[%lld]", t->name, (long long)i);
    moegen_rt_decode(t->dtype, (char *)t->data + (size_t)i * moegen_rt_dtype_of(t->dtype)->bytes, 1,
                     &x);
    return x;
}

static inline int code_at(const moegen_rt_tensor *t, int bits, int64_t n)
{
    const uint8_t *bytes = t->data;
    return bits == 4 ? bytes[n / 2] >> 4 * (n & 1) & 15 : bytes[n];
}
