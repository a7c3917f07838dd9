/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the 2x2 tile product in three spellings: scalar against a plain sum in double, bytes
 * and intrinsics against scalar where this CPU has AMX. With --time, the speed of the bytes too.
 * Made for tests/amx.sh.
 */
#include <cpuid.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tiles.h"

enum { ROWS = 32, COLUMNS = 32, MOST_K = 2048, WIDEST = 160, FLOPS_PER_DOT = 2 * 16 * 16 * 32 };

/* How A, B and S lie in memory. */
struct layout {
    const char *name;
    int blocked; /* A is in blocks of 32 rows and 32 of K, instead of row-major */
    int a_pad;   /* elements between the rows of A, beyond what they need */
    int panels;  /* B is two panels of 16 columns, instead of one of 32 */
    int s_pad;   /* floats between the rows of S, beyond 32 */
};

static const struct layout layouts[] = {
    {"A in rows, B one panel, S dense", 0, 0, 0, 0},
    {"A in rows apart, B one panel, S apart", 0, 48, 0, 32},
    {"A in blocks, B one panel, S dense", 1, 0, 0, 0},
    {"A in blocks, B two panels, S wide", 1, 0, 1, 128},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static _Alignas(4096) uint16_t A[ROWS * (MOST_K + 64)], B[COLUMNS * MOST_K];
static _Alignas(4096) float S[ROWS * WIDEST], want[ROWS * WIDEST], start[ROWS * WIDEST];
static uint16_t a_plain[ROWS][MOST_K], b_plain[MOST_K][COLUMNS];

static uint64_t seed = 7;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

/* bf16 of either sign about 1, or now and then anything. */
static uint16_t random_bf16(int wild)
{
    if (wild && random_bits() % 64 == 0)
        return (uint16_t)random_bits();
    return (uint16_t)((random_bits() & 0x807fu) | (123u + random_bits() % 8u) << 7);
}

static float widened(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Fill the plain matrices, and A, B as the layout has them. */
static void fill(const struct layout *l, int K, int wild)
{
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < K; k++) {
            a_plain[r][k] = random_bf16(wild);
            A[l->blocked ? k / 32 * ROWS * 32 + r * 32 + k % 32 : r * (K + l->a_pad) + k] =
                a_plain[r][k];
        }
    for (int k = 0; k < K; k++)
        for (int n = 0; n < COLUMNS; n++) {
            b_plain[k][n] = random_bf16(wild);
            B[l->panels ? (n / 16 * K + k / 2 * 2) * 16 + n % 16 * 2 + k % 2
                        : k / 2 * 64 + n * 2 + k % 2] = b_plain[k][n];
        }
    for (int i = 0; i < ROWS * WIDEST; i++)
        start[i] = (float)(random_bits() % 1024u) / 64 - 8;
}

static void call(tile_product *f, const struct layout *l, int K, float *out)
{
    const int64_t a_row = l->blocked ? 32 : K + l->a_pad, b_row = l->panels ? 32 : 64;
    const int64_t s_row = COLUMNS + l->s_pad;
    f(out, A, out + 16 * s_row, A + 16 * a_row, B, l->panels ? B + 16 * K : B + 32, K / 32,
      2 * a_row, l->blocked ? ROWS * 32 : 32, 2 * b_row, 16 * b_row, 4 * s_row);
}

/* Sum and sum of absolute values of the products of one element. */
static double exact(int r, int n, int K, double *size)
{
    double sum = 0;
    *size = 0;
    for (int k = 0; k < K; k++) {
        double x = (double)widened(a_plain[r][k]) * (double)widened(b_plain[k][n]);
        sum += x;
        *size += fabs(x);
    }
    return sum;
}

static int check_scalar(const struct layout *l, int K, int add)
{
    const int s_row = COLUMNS + l->s_pad;
    int wrong = 0;
    for (int i = 0; i < ROWS * WIDEST; i++) {
        int r = i / s_row, n = i % s_row;
        if (r >= ROWS || n >= COLUMNS) {
            wrong += want[i] != start[i];
            continue;
        }
        double size, sum = exact(r, n, K, &size) + (add ? (double)start[i] : 0);
        size += add ? fabs((double)start[i]) : 0;
        wrong += !(fabs((double)want[i] - sum) <= (K / 2 + 4) * size * 0x1p-24);
    }
    return wrong;
}

static int same_bits(float x, float y)
{
    return memcmp(&x, &y, sizeof x) == 0 || (isnan(x) && isnan(y));
}

/* Words of S that differ from the scalar spelling's; *far counts those beyond what order and
 * rounding explain. */
static int compare(const struct layout *l, int K, int *far)
{
    const int s_row = COLUMNS + l->s_pad;
    int differ = 0;
    for (int i = 0; i < ROWS * WIDEST; i++) {
        int r = i / s_row, n = i % s_row;
        if (same_bits(S[i], want[i]))
            continue;
        differ++;
        double size = 0;
        if (r < ROWS && n < COLUMNS)
            exact(r, n, K, &size);
        *far += !(fabs((double)S[i] - (double)want[i]) <=
                  (K + 8) * (size + fabs((double)start[i])) * 0x1p-24);
    }
    return differ;
}

/* All sizes, layouts and both products. spelling NULL: the scalar one against the plain sum.
 * Returns what is wrong. */
static int check(const struct tile_programs *spelling)
{
    static const int sizes[] = {32, 64, 96, 160, 512, MOST_K};
    int wrong = 0, differ = 0, cases = 0;
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]) * LAYOUTS * 4; i++) {
        const struct layout *l = &layouts[i / 4 % LAYOUTS];
        const int add = i & 1, wild = i >> 1 & 1, K = sizes[i / 4 / LAYOUTS];
        fill(l, K, wild);
        memcpy(want, start, sizeof want);
        call(add ? scalar_programs.add : scalar_programs.set, l, K, want);
        int far = 0;
        if (spelling) {
            memcpy(S, start, sizeof S);
            spelling->on(tile_shapes);
            call(add ? spelling->add : spelling->set, l, K, S);
            spelling->off();
            int here = compare(l, K, &far);
            differ += here;
            far = wild ? 0 : far; /* infinities, subnormals: only reported */
            if (here && (wild || differ < 200))
                printf("  %s K %d, %s, %s%s: %d words differ from scalar\n", spelling->name, K,
                       l->name, add ? "add" : "set", wild ? ", wild numbers" : "", here);
        } else if (!wild) {
            far = check_scalar(l, K, add);
        }
        if (far)
            printf("FAIL %s K %d, %s, %s: %d words\n", spelling ? spelling->name : "scalar", K,
                   l->name, add ? "add" : "set", far);
        wrong += far;
        cases++;
    }
    if (spelling)
        printf("%s: %d cases, %s\n", spelling->name, cases,
               differ == 0 ? "bit-equal to scalar"
               : wrong     ? "WRONG"
                           : "equal to scalar up to the order of sums");
    else
        printf("scalar: %d cases, %d words wrong against sums in double\n", cases, wrong);
    return wrong;
}

/* The system lets this process use tiles, and the CPU has bf16 ones? */
static int has_amx(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 22 & 1))
        return 0;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Clock in GHz: a chain of additions, one a cycle. */
static double clock_ghz(void)
{
    double best = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t x = 1, n = 2000000;
        double t = seconds();
        __asm__ volatile("1: add %0,%0\nadd %0,%0\nadd %0,%0\nadd %0,%0\nadd %0,%0\nadd %0,%0\nadd "
                         "%0,%0\nadd %0,%0\n"
                         "dec %1\njnz 1b\n"
                         : "+r"(x), "+r"(n));
        t = 8e-9 * 2000000 / (seconds() - t);
        best = t > best ? t : best;
    }
    return best;
}

static void report(const char *what, double flops, double peak)
{
    printf("  %-58s %8.1f GFLOP/s %8.1f flop/cycle  %5.1f %% of registers only\n", what,
           flops * 1e-9, flops * 1e-9 / clock_ghz(), 100 * flops / peak);
}

/* Flops a second, best of 7 runs of about 20 ms; `again` > 1: the same 32 of K that many times,
 * from 4 KiB. */
static double time_product(const struct layout *l, int K, int again)
{
    double best = 1e9;
    const int64_t steps = (int64_t)(K / 32) * again;
    const double work = 4.0 * FLOPS_PER_DOT * (double)steps;
    const int calls = (int)(2e10 / work) + 1;
    for (int run = 0; run < 7; run++) {
        double t = seconds();
        for (int i = 0; i < calls; i++) {
            if (again > 1)
                bytes_programs.set(S, A, S + 16 * COLUMNS, A + 512, B, B + 32, steps, 64, 0, 128, 0,
                                   4 * COLUMNS);
            else
                call(bytes_programs.add, l, K, S);
        }
        t = (seconds() - t) / calls;
        best = t < best ? t : best;
    }
    return work / best;
}

static void measure(void)
{
    const struct layout *packed = &layouts[2];
    double peak = 0, flops;
    char text[96];
    fill(packed, MOST_K, 0);
    memcpy(S, start, sizeof S);
    bytes_programs.on(tile_shapes);
    for (int run = 0; run < 7; run++) {
        const int64_t n = 40000;
        double t = seconds();
        bytes_programs.peak(S, 4 * COLUMNS, n);
        flops = (double)n * PEAK_DOTS * FLOPS_PER_DOT / (seconds() - t);
        peak = flops > peak ? flops : peak;
    }
    report("registers only, 6 accumulators", peak, peak);
    memcpy(S, start, sizeof S);
    report("2x2, 4 KiB of A and B again and again (L1)", time_product(packed, 32, 4096), peak);
    for (int K = 128; K <= MOST_K; K *= 2) {
        snprintf(text, sizeof text, "2x2 with S loaded and stored, K %d: A, B %d KiB", K,
                 K * 128 / 1024);
        report(text, time_product(packed, K, 1), peak);
    }
    bytes_programs.off();
}

int main(int argc, char **argv)
{
    int wrong = check(NULL);
    if (!has_amx()) {
        puts("bytes, intrinsics: skipped, this CPU or system has no AMX");
        return wrong != 0;
    }
    wrong += check(&bytes_programs) + check(&intrinsics_programs);
    if (argc > 1 && strcmp(argv[1], "--time") == 0)
        measure();
    return wrong != 0;
}
