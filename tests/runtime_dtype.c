/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: every 8- and 16-bit code, every midpoint, overflow, fast paths, integers. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "moegen_runtime.h"

struct format {
    moegen_rt_dtype dtype;
    int bits, mantissa, bias;
    unsigned last; /* largest finite code */
    double over;   /* what is beyond */
};

static double decode(moegen_rt_dtype dtype, unsigned code)
{
    uint16_t two = (uint16_t)code;
    uint8_t one = (uint8_t)code;
    double x;
    moegen_rt_decode(dtype, moegen_rt_dtype_of(dtype)->bytes == 1 ? (void *)&one : (void *)&two, 1,
                     &x);
    return x;
}

static unsigned encode(moegen_rt_dtype dtype, double x)
{
    uint16_t two = 0;
    uint8_t one = 0;
    int is_byte = moegen_rt_dtype_of(dtype)->bytes == 1;
    moegen_rt_encode(dtype, &x, 1, is_byte ? (void *)&one : (void *)&two);
    return is_byte ? one : two;
}

static double by_definition(const struct format *f, unsigned code)
{
    unsigned e = code >> f->mantissa & ((1u << (f->bits - 1 - f->mantissa)) - 1);
    double m = code & ((1u << f->mantissa) - 1), one = 1u << f->mantissa;
    double x =
        e ? ldexp(one + m, (int)e - f->bias - f->mantissa) : ldexp(m, 1 - f->bias - f->mantissa);
    return code >> (f->bits - 1) ? -x : x;
}

static void codes(const struct format *f)
{
    unsigned sign = 1u << (f->bits - 1);
    const char *name = moegen_rt_dtype_of(f->dtype)->name;
    for (unsigned c = 0; c < 2 * sign; c++) {
        unsigned size = c & (sign - 1);
        double x = decode(f->dtype, c);
        if (size > f->last) {
            int infinite = size == f->last + 1 && isinf(f->over);
            CHECK(infinite ? isinf(x) : isnan(x), "%s %#x is %g", name, c, x);
            CHECK(infinite ? encode(f->dtype, x) == c
                           : isnan(decode(f->dtype, encode(f->dtype, x))),
                  "%s %#x does not come back", name, c);
            continue;
        }
        CHECK(x == by_definition(f, c), "%s %#x is %g", name, c, x);
        CHECK(encode(f->dtype, x) == c, "%s %#x comes back as %#x", name, c, encode(f->dtype, x));
        if (size == f->last)
            continue;
        double next = decode(f->dtype, c + 1), middle = x + (next - x) / 2;
        CHECK(encode(f->dtype, middle) == (c & 1 ? c + 1 : c), "%s tie above %#x", name, c);
        CHECK(encode(f->dtype, nextafter(middle, x)) == c, "%s below the tie above %#x", name, c);
        CHECK(encode(f->dtype, nextafter(middle, next)) == c + 1, "%s above the tie of %#x", name,
              c);
    }
    double top = by_definition(f, f->last), ulp = top - by_definition(f, f->last - 1);
    double beyond[] = {top + ulp / 2, top + ulp, 2 * top, 1e300, INFINITY};
    CHECK(encode(f->dtype, nextafter(top + ulp / 2, 0)) == f->last, "%s below overflow", name);
    for (int i = 0; i < 5; i++) {
        CHECK(decode(f->dtype, encode(f->dtype, beyond[i])) == f->over, "%s %g", name, beyond[i]);
        CHECK(decode(f->dtype, encode(f->dtype, -beyond[i])) == -f->over, "%s %g", name,
              -beyond[i]);
    }
    CHECK(encode(f->dtype, 1e-300) == 0 && encode(f->dtype, -1e-300) == sign, "%s tiny", name);
    CHECK(encode(f->dtype, 5e-324) == 0, "%s tiniest", name);
}

/* The fast loops against one rounding of the exact value. */
static void fast_paths(void)
{
    static const moegen_rt_dtype small[] = {MOEGEN_RT_BF16, MOEGEN_RT_F16};
    uint64_t state = 1;
    for (int i = 0; i < 2000000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t raw = (uint32_t)(state >> 32);
        if (i & 1) /* near what f16 can hold, and near ties */
            raw = (raw & 0x8fffe000u) | 0x30000000u | (raw & 0x10000000u) | (i & 2 ? 0x1000 : 0);
        float x;
        memcpy(&x, &raw, sizeof x);
        for (int d = 0; d < 2; d++) {
            uint16_t code;
            moegen_rt_convert(MOEGEN_RT_F32, &x, small[d], &code, 1);
            if (isnan(x))
                CHECK(isnan(decode(small[d], code)), "NaN %#x gives %#x", raw, code);
            else
                CHECK(code == encode(small[d], (double)x), "%a gives %#x", (double)x, code);
        }
    }
    for (unsigned c = 0; c < 65536; c++) {
        for (int d = 0; d < 2; d++) {
            uint16_t code = (uint16_t)c, other;
            float x;
            double exact = decode(small[d], c);
            moegen_rt_convert(small[d], &code, MOEGEN_RT_F32, &x, 1);
            CHECK((double)x == exact || (isnan(x) && isnan(exact)), "code %#x to f32", c);
            moegen_rt_convert(small[d], &code, small[!d], &other, 1);
            CHECK(other == encode(small[!d], exact) || isnan(exact), "code %#x to the other", c);
        }
    }
}

static void integers(void)
{
    double in[] = {-1e30, -1, -0.5, 0.5, 1.5, 2.5, 254.6, 1e30, NAN, INFINITY};
    uint8_t u8[10], want8[] = {0, 0, 0, 0, 2, 2, 255, 255, 0, 255};
    int32_t i32[10], want32[] = {INT32_MIN, -1, 0, 0, 2, 2, 255, INT32_MAX, 0, INT32_MAX};
    int64_t i64[10];
    uint32_t u32[10];
    uint16_t u16[10];
    moegen_rt_encode(MOEGEN_RT_U8, in, 10, u8);
    moegen_rt_encode(MOEGEN_RT_I32, in, 10, i32);
    moegen_rt_encode(MOEGEN_RT_I64, in, 10, i64);
    moegen_rt_encode(MOEGEN_RT_U32, in, 10, u32);
    moegen_rt_encode(MOEGEN_RT_U16, in, 10, u16);
    CHECK(memcmp(u8, want8, sizeof u8) == 0, "u8");
    CHECK(memcmp(i32, want32, sizeof i32) == 0, "i32");
    CHECK(i64[0] == INT64_MIN && i64[7] == INT64_MAX && i64[1] == -1, "i64");
    CHECK(u32[7] == UINT32_MAX && u32[0] == 0 && u32[6] == 255, "u32");
    CHECK(u16[7] == UINT16_MAX && u16[0] == 0 && u16[6] == 255, "u16");
}

static void poison_and_normal(void)
{
    for (int d = 0; d < MOEGEN_RT_DTYPES; d++) {
        unsigned char data[8 * 37 + 8];
        double x[37];
        size_t bytes = moegen_rt_dtype_of((moegen_rt_dtype)d)->bytes;
        memset(data, 0x55, sizeof data);
        moegen_rt_poison((moegen_rt_dtype)d, data, 37);
        CHECK(data[37 * bytes] == 0x55, "poison overran");
        moegen_rt_decode((moegen_rt_dtype)d, data, 37, x);
        for (int i = 0; i < 37; i++)
            CHECK(moegen_rt_dtype_of((moegen_rt_dtype)d)->digits ? isnan(x[i]) : x[i] >= 0x7e,
                  "poison");
    }
    enum { N = 200001 };
    static double x[N];
    static float y[N];
    moegen_rt_normal(MOEGEN_RT_F64, x, N, 7, 2);
    moegen_rt_normal(MOEGEN_RT_F32, y, N - 100, 7, 2);
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < N; i++) {
        sum += x[i];
        squares += x[i] * x[i];
        fourth += x[i] * x[i] * x[i] * x[i];
        CHECK(i >= N - 100 || (double)y[i] == x[i], "element %d depends on the length", i);
    }
    CHECK(fabs(sum / N) < 0.02, "mean %g", sum / N);
    CHECK(fabs(squares / N - 4) < 0.06, "variance %g", squares / N);
    CHECK(fabs(fourth / N - 48) < 3, "fourth moment %g", fourth / N);
}

int main(void)
{
    static const struct format formats[] = {
        {MOEGEN_RT_BF16, 16, 7, 127, 0x7f7f, INFINITY},
        {MOEGEN_RT_F16, 16, 10, 15, 0x7bff, INFINITY},
        {MOEGEN_RT_FP8_E4M3, 8, 3, 7, 0x7e, 448},
        {MOEGEN_RT_FP8_E5M2, 8, 2, 15, 0x7b, INFINITY},
    };
    for (int i = 0; i < 4; i++)
        codes(&formats[i]);
    fast_paths();
    integers();
    poison_and_normal();
    for (int d = 0; d < MOEGEN_RT_DTYPES; d++) {
        moegen_rt_dtype found;
        CHECK(moegen_rt_dtype_find(moegen_rt_dtype_of((moegen_rt_dtype)d)->name, &found) &&
                  found == (moegen_rt_dtype)d,
              "dtype %d by name", d);
    }
    return failures != 0;
}
