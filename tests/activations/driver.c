/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - every activation of one target and its derivative against float64, in the three
 * spellings, which give the same bits (plain C alone where the CPU lacks the target). Far out, and
 * where float64 rounds to 0, the results are exact; NaN stays NaN. A second argument: also how far
 * off they are. Made for tests/meanings.sh.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"

struct op {
    const char *name;
    int both; /* with the derivative */
};
extern const struct op ops[];
extern const char *const needs[];
extern const int lanes;
extern void (*const bytes_table[])(void), (*const intrinsics_table[])(void),
    (*const scalar_table[])(void);

typedef void (*program)(float *y, float *slope, const float *x, int64_t n);

/* Errors, in roundings (2^-24) of the input; of a derivative, of 1 or itself. */
enum { COUNT = 1 << 17, VALUE_LIMIT = 5, SLOPE_LIMIT = 5 };
static const double far = 110;

static float x[COUNT], y[3][COUNT], slope[3][COUNT];
static int count, wrong;

static void put(double value)
{
    if (count < COUNT)
        x[count++] = (float)value;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Numbers of every size, dense ones where activations bend, and the ends. */
static void fill(void)
{
    static const uint32_t ends[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000,
                                    0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000};
    for (int sign = 1; sign >= -1; sign -= 2) {
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            put(sign * (double)float_of(ends[i]));
        for (uint32_t bits = 0; bits < 0x7f800000; bits += 0x20001)
            put(sign * (double)float_of(bits));
        for (int i = 0; i < 110 * 256; i++)
            put(sign * i / 256.0);
        for (int i = 0; i < 12000; i++)
            put(sign * i / 800.0);
    }
    while (count % 64)
        put(0);
}

static void complain(const struct op *op, const char *what, int i, double got, double want)
{
    if (wrong++ < 20)
        printf("FAIL %s%s: %s at %.9g is %.9g, expected %.9g\n", op->name,
               op->both ? " and derivative" : "", what, (double)x[i], got, want);
}

/* One result; the error in roundings of `size`. */
static double judge(const struct op *op, const char *what, int i, float got, double want,
                    double size)
{
    if (isnan(x[i])) {
        if (!isnan(got))
            complain(op, what, i, (double)got, (double)NAN);
        return 0;
    }
    float exact = (float)want;
    if (exact == 0 || fabs((double)x[i]) >= far) {
        if (isnan(got) || got != exact)
            complain(op, what, i, (double)got, (double)exact);
        return 0;
    }
    double error = fabs((double)got - want) / size * 0x1p24;
    return isnan(got) ? INFINITY : error;
}

static void judge_all(const struct op *op, int s, double worst[2])
{
    const moegen_rt_activation *a = moegen_rt_activation_find(op->name);
    if (!a) {
        printf("FAIL %s: the runtime has no such activation\n", op->name);
        wrong++;
        return;
    }
    for (int i = 0; i < count; i++) {
        double v = (double)x[i], size = fmax(fabs(v), 0x1p-100);
        double want = a->value(v);
        double error = judge(op, "it", i, y[s][i], want, fmax(size, fabs(want)));
        if (error > VALUE_LIMIT)
            complain(op, "it", i, (double)y[s][i], want);
        worst[0] = fmax(worst[0], error);
        if (!op->both)
            continue;
        want = a->slope(v);
        error = judge(op, "its derivative", i, slope[s][i], want, fmax(1, fabs(want)));
        if (error > SLOPE_LIMIT)
            complain(op, "its derivative", i, (double)slope[s][i], want);
        worst[1] = fmax(worst[1], error);
    }
}

static int differs(const float *a, const float *b)
{
    for (int i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "target";
    int able = 1, n = 0;
    for (int i = 0; needs[i]; i++)
        able = able && moegen_rt_cpu_has(needs[i]);
    fill();
    for (; ops[n].name; n++) {
        void (*const run[])(void) = {scalar_table[n], bytes_table[n], intrinsics_table[n]};
        double worst[2] = {0, 0};
        for (int s = 0; s < (able ? 3 : 1); s++) {
            ((program)run[s])(y[s], slope[s], x, count / lanes);
            if (s && (differs(y[0], y[s]) || (ops[n].both && differs(slope[0], slope[s])))) {
                printf("FAIL %s: %s and plain C differ\n", ops[n].name,
                       s == 1 ? "bytes" : "intrinsics");
                wrong++;
            }
        }
        judge_all(&ops[n], 0, worst);
        if (argc > 2)
            printf("%s%s: off by %.2f, derivative %.2f roundings\n", ops[n].name,
                   ops[n].both ? " and derivative" : "", worst[0], worst[1]);
    }
    printf("%s%s: %d programs, %d numbers, %d wrong\n", name, able ? "" : " (plain C only)", n,
           count, wrong);
    return wrong != 0 || n == 0;
}
