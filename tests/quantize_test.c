/* SPDX-License-Identifier: Apache-2.0 */
/* `moegen quantize`: every format, what shares its scales, axis and dtype, on whole files: codes
 * and scales are where they should be and what encoding one by one in double makes; back, the
 * values are those of the codes, rounded once. quantize_test MOEGEN */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "format.h"

static const char *program;
static char folder[] = "quantize_test_XXXXXX";

/* ---- one tensor and how it is stored ---- */

enum parts { WHOLE, SPLIT, INTERLEAVED };
static const char *const orders[] = {"", "--gate-up split", "--gate-up interleaved"};

struct example {
    const struct rt_format *format;
    enum rt_share share;
    enum rt_rule rule;
    enum parts parts;
    int64_t group;
    moegen_rt_dtype dtype;
    int rank;
    int64_t shape[4];
    int axis;
    /* from these: */
    int64_t count, out, in, lead;
    int last; /* the axis is */
    double *value;
};

static const struct {
    int rank;
    int64_t shape[4];
    int axis;
    moegen_rt_dtype dtype;
} tensors[] = {
    {3, {2, 36, 256}, 2, MOEGEN_RT_F32},   {4, {2, 256, 2, 19}, 1, MOEGEN_RT_BF16},
    {2, {128, 1100}, 0, MOEGEN_RT_F16},    {2, {140, 384}, 1, MOEGEN_RT_BF16},
    {4, {2, 1, 2, 128}, 3, MOEGEN_RT_F16}, {3, {3, 384, 130}, 1, MOEGEN_RT_F32},
    {2, {2, 128}, 1, MOEGEN_RT_F32},       {2, {150, 200}, 1, MOEGEN_RT_BF16},
    {3, {2, 201, 150}, 1, MOEGEN_RT_F32}, /* not of whole blocks, either way */
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static void shapes(struct example *x)
{
    x->last = x->axis == x->rank - 1;
    x->lead = x->last ? x->rank - 2 : x->axis;
    x->count = x->out = 1;
    x->in = x->shape[x->axis];
    for (int d = 0; d < x->rank; d++)
        if (d < x->lead)
            x->count *= x->shape[d];
        else if (d != x->axis)
            x->out *= x->shape[d];
}

/* Where the tensor has element (o, i) of matrix m. */
static int64_t at(const struct example *x, int64_t m, int64_t o, int64_t i)
{
    return x->last ? (m * x->out + o) * x->in + i : (m * x->in + i) * x->out + o;
}

static uint64_t state = 1;
static double random_value(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    double x = (double)(int64_t)state / 0x1p63;
    return ldexp(x, -(int)(state >> 20 & 7));
}

/* The tensor, and what it holds as doubles: a zero output channel, one with a NaN, a negative zero,
 * channels of very different sizes. */
static void fill(struct example *x, moegen_rt_tensor *t)
{
    int64_t n = moegen_rt_tensor_count(t);
    x->value = malloc((size_t)n * sizeof *x->value);
    for (int64_t m = 0; m < x->count; m++)
        for (int64_t o = 0; o < x->out; o++)
            for (int64_t i = 0; i < x->in; i++)
                x->value[at(x, m, o, i)] =
                    o % 17 == 3 ? 0 : ldexp(random_value(), (int)(o % 5 * 2 - 6));
    x->value[at(x, 0, 0, 5)] = -0.0;
    if (x->count > 1)
        x->value[at(x, 1, x->out - 1, 7)] =
            x->dtype == MOEGEN_RT_F16 ? (double)INFINITY : (double)NAN;
    moegen_rt_encode(x->dtype, x->value, (size_t)n, t->data);
    moegen_rt_decode(x->dtype, t->data, (size_t)n, x->value);
}

/* ---- what is expected of it ---- */

static int64_t up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static int64_t part(const struct example *x, int64_t o)
{
    return x->parts == SPLIT ? o >= x->out / 2 : x->parts == INTERLEAVED ? o & 1 : 0;
}

static int64_t scales_of_matrix(const struct example *x)
{
    switch (x->share) {
    case RT_ROW:
        return x->out;
    case RT_STATIC:
        return x->parts ? 2 : 1;
    case RT_BLOCK:
        return up(x->out, 128) * up(x->in, 128);
    default:
        return x->out * (x->in / x->group);
    }
}

static int64_t scale_at(const struct example *x, int64_t o, int64_t i)
{
    switch (x->share) {
    case RT_ROW:
        return o;
    case RT_STATIC:
        return part(x, o);
    case RT_BLOCK:
        return o / 128 * up(x->in, 128) + i / 128;
    default:
        return o * (x->in / x->group) + i / x->group;
    }
}

/* Shapes, as a text. */
static const char *expected_shapes(const struct example *x, char text[256])
{
    int n = 0;
    char lead[64] = "";
    for (int d = 0; d < x->lead; d++)
        n += sprintf(lead + n, "%lld,", (long long)x->shape[d]);
    n = 0;
    long long out = x->out, in = x->in, g = x->group;
    if (!rt_format_grouped(x->format))
        for (int d = 0; d < x->rank; d++)
            n += sprintf(text + n, "%lld,", (long long)x->shape[d]);
    else if (x->format->blocked)
        n += sprintf(text, "%s%lld,%lld,%d,", lead, out, in / g, x->format->element->bits * 4);
    else
        n += sprintf(text, "%s%lld,%lld,", lead, out, in / 2);
    if (x->share == RT_ROW)
        n += sprintf(text + n, " %s1,%lld,", lead, out);
    else if (x->share == RT_STATIC)
        n += sprintf(text + n, " %s%s1,", lead, x->parts ? "2," : "");
    else if (x->share == RT_BLOCK)
        n += sprintf(text + n, " %s%lld,%lld,", lead, (long long)up(out, 128),
                     (long long)up(in, 128));
    else
        n += sprintf(text + n, " %s%lld,%lld,", lead, out, in / g);
    if (x->format->second)
        sprintf(text + n, " %s%s", lead, x->parts ? "2," : "");
    return text;
}

static const char *shapes_of(const moegen_rt_tensor *const t[3], char text[256])
{
    int n = 0;
    for (int k = 0; k < 3 && t[k]; k++) {
        n += sprintf(text + n, "%s", k ? " " : "");
        for (int d = 0; d < t[k]->rank; d++)
            n += sprintf(text + n, "%lld,", (long long)t[k]->shape[d]);
    }
    return text;
}

/* Largest magnitudes of a matrix's scales (NaN: see rt_format_amax), and of its parts. */
static void measure(const struct example *x, int64_t m, double *amax, double most[2])
{
    memset(amax, 0, (size_t)scales_of_matrix(x) * sizeof *amax);
    most[0] = most[1] = 0;
    for (int64_t o = 0; o < x->out; o++)
        for (int64_t i = 0; i < x->in; i++) {
            double size = fabs(x->value[at(x, m, o, i)]), *to = &amax[scale_at(x, o, i)];
            *to = isnan(*to) || !isfinite(size) ? (double)NAN : fmax(*to, size);
        }
    for (int64_t o = 0; o < x->out; o++)
        for (int64_t i = 0; i < x->in; i++) {
            double group = amax[scale_at(x, o, i)], *to = &most[part(x, o)];
            *to = isnan(group) ? *to : fmax(*to, group);
        }
}

static unsigned code_at(const struct rt_format *f, const uint8_t *codes, int64_t i)
{
    return f->element->bits == 8 ? codes[i] : codes[i / 2] >> 4 * (i & 1) & 15;
}

/* Compares a matrix with what encoding in double makes; leaves the codes' values in x->value. */
static void check_matrix(struct example *x, int64_t m, const moegen_rt_tensor *const t[3])
{
    const struct rt_format *f = x->format;
    int64_t per = scales_of_matrix(x), bytes = f->scale->bits / 8;
    double *amax = malloc((size_t)per * sizeof *amax), most[2];
    measure(x, m, amax, most);
    for (int64_t k = 0; k < (f->second ? x->parts ? 2 : 1 : 0); k++) {
        float want = rt_format_second(f, most[k]);
        float got = ((float *)t[2]->data)[m * (x->parts ? 2 : 1) + k];
        CHECK(got == want, "%s: second scale %g, expected %g", f->name, (double)got, (double)want);
    }
    for (int64_t o = 0; o < x->out; o++)
        for (int64_t i = 0; i < x->in; i++) {
            int64_t k = scale_at(x, o, i), v = at(x, m, o, i);
            double second = f->second ? (double)rt_format_second(f, most[part(x, o)]) : 1;
            uint32_t want = rt_format_scale_code(f, x->rule, amax[k], second), got = 0;
            memcpy(&got, (char *)t[1]->data + (m * per + k) * bytes, (size_t)bytes);
            CHECK(got == want, "%s: scale %#x of (%lld, %lld, %lld), expected %#x", f->name, got,
                  (long long)m, (long long)o, (long long)i, want);
            uint8_t code = 0;
            double scale = f->scale->value(want), element;
            rt_format_encode(f, &x->value[v], 1, scale, second, &code, 0);
            code &= (uint8_t)((1u << f->element->bits) - 1);
            int64_t place = rt_format_grouped(f) ? (m * x->out + o) * x->in + i : v;
            unsigned made = code_at(f, t[0]->data, place);
            CHECK(made == code, "%s: code %#x of (%lld, %lld, %lld), expected %#x", f->name, made,
                  (long long)m, (long long)o, (long long)i, code);
            element = f->element->value(code);
            x->value[v] = element * (scale * second);
        }
    free(amax);
}

/* ---- running the program ---- */

static int run(const char *in, const char *out, const char *options)
{
    char line[600];
    snprintf(line, sizeof line, "\"$MOEGEN\" quantize %s/%s.st --out %s/%s.st %s -q >%s/log 2>&1",
             folder, in, folder, out, options, folder);
    int result = setenv("MOEGEN", program, 1) ? -1 : system(line); /* a path of any characters */
    CHECK(result == 0, "%s", line);
    return result;
}

static char *path_of(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s.st", folder, name);
    return path;
}

static moegen_rt_problem *read_back(const char *name)
{
    char path[128];
    moegen_rt_error why;
    moegen_rt_problem *p = moegen_rt_problem_create();
    CHECK(!moegen_rt_safetensors_read(path_of(name, path), p, &why), "%s", why.text);
    return p;
}

/* The values of the file, under their first shape, are those of x->value rounded to `dtype`. */
static void check_values(const struct example *x, const char *file, moegen_rt_dtype dtype, int rank,
                         const int64_t *shape, const int64_t *order)
{
    moegen_rt_problem *p = read_back(file);
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, "w_weight");
    const char *name = x->format->name;
    CHECK(t && t->dtype == dtype && t->rank == rank &&
              memcmp(t->shape, shape, (size_t)rank * sizeof *shape) == 0,
          "%s: tensor of values in %s", name, file);
    CHECK(!moegen_rt_problem_tensor(p, "w_scale") && moegen_rt_problem_tensor(p, "other"),
          "%s: scales left in %s", name, file);
    int64_t n = t ? moegen_rt_tensor_count(t) : 0;
    size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    for (int64_t i = 0; i < n; i++) {
        char want[4];
        double value = x->value[order ? order[i] : i], a, b;
        moegen_rt_encode(dtype, &value, 1, want);
        moegen_rt_decode(dtype, want, 1, &a);
        moegen_rt_decode(dtype, (char *)t->data + (size_t)i * bytes, 1, &b);
        CHECK(isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b),
              "%s in %s: element %lld is %a, expected %a", name, file, (long long)i, b, a);
    }
    moegen_rt_problem_destroy(p);
}

/* Without metadata the format is said; values then have the order of the codes. */
static void check_from(const struct example *x, moegen_rt_problem *coded, const char *options)
{
    moegen_rt_tensor list[4];
    size_t count = 0;
    char path[128], all[256];
    moegen_rt_error why;
    int64_t shape[8], *order = malloc((size_t)(x->count * x->out * x->in) * sizeof *order), n = 0;
    bool grouped = rt_format_grouped(x->format);
    for (; moegen_rt_problem_at(coded, count); count++)
        list[count] = *moegen_rt_problem_at(coded, count);
    CHECK(!moegen_rt_safetensors_write(path_of("bare", path), list, count, &why), "%s", why.text);
    snprintf(all, sizeof all, "--to bf16 --from %s %s %s", x->format->name, options,
             x->parts == INTERLEAVED ? orders[INTERLEAVED] : ""); /* twice the scales: split */
    run("bare", "again", all);
    for (int64_t m = 0; m < x->count; m++)
        for (int64_t o = 0; o < x->out; o++)
            for (int64_t i = 0; i < x->in; i++)
                order[n++] = at(x, m, o, i);
    memcpy(shape, x->shape, sizeof x->shape);
    shape[x->lead] = x->out;
    shape[x->lead + 1] = x->in;
    if (grouped)
        check_values(x, "again", MOEGEN_RT_BF16, (int)x->lead + 2, shape, order);
    else
        check_values(x, "again", MOEGEN_RT_BF16, x->rank, x->shape, NULL);
    free(order);
}

static void try(struct example *x, int number)
{
    static const char *const backs[] = {"f32", "bf16", "f16"};
    static const moegen_rt_dtype dtypes[] = {MOEGEN_RT_F32, MOEGEN_RT_BF16, MOEGEN_RT_F16};
    char path[128], how[200], options[256], got[256], want[256] = "";
    moegen_rt_problem *p = moegen_rt_problem_create();
    moegen_rt_tensor *t, *other, list[2];
    moegen_rt_error why;
    int64_t five[1] = {5};
    shapes(x);
    CHECK(!moegen_rt_problem_add(p, "w_weight", x->dtype, x->rank, x->shape, &t, &why) &&
              !moegen_rt_problem_add(p, "other", MOEGEN_RT_F32, 1, five, &other, &why),
          "%s", why.text);
    memset(other->data, 1, other->bytes);
    fill(x, t);
    list[0] = *t;
    list[1] = *other;
    CHECK(!moegen_rt_safetensors_write(path_of("in", path), list, 2, &why), "%s", why.text);
    snprintf(how, sizeof how, "--scale %s --axis %d --threads %d", rt_sharings[x->share].name,
             x->axis, 1 + number % 3);
    if (x->group)
        snprintf(how + strlen(how), sizeof how - strlen(how), " --group %d", (int)x->group);
    snprintf(options, sizeof options, "--to %s %s %s %s", x->format->name, how, orders[x->parts],
             x->rule == RT_WIDE ? "--scale-rule wide" : "");
    run("in", "coded", options);
    moegen_rt_problem *coded = read_back("coded");
    const moegen_rt_tensor *made[3] = {moegen_rt_problem_tensor(coded, "w_weight"),
                                       moegen_rt_problem_tensor(coded, "w_scale"),
                                       moegen_rt_problem_tensor(coded, "w_scale_2")};
    CHECK(made[0] && made[1] && made[0]->dtype == x->format->codes &&
              made[1]->dtype == x->format->scale->dtype,
          "%s: tensors", options);
    CHECK(strcmp(shapes_of(made, got), expected_shapes(x, want)) == 0, "%s: shapes %s, expected %s",
          options, got, want);
    int before = failures;
    for (int64_t m = 0; m < x->count && made[0] && made[1]; m++)
        check_matrix(x, m, made);
    snprintf(options, sizeof options, "--to %s", backs[number % 3]);
    run("coded", "back", options);
    check_values(x, "back", dtypes[number % 3], x->rank, x->shape, NULL);
    check_from(x, coded, how);
    if (failures > before)
        printf("... with %s\n", how);
    free(x->value);
    moegen_rt_problem_destroy(coded);
    moegen_rt_problem_destroy(p);
}

int main(int argc, char **argv)
{
    int number = 0;
    if (argc != 2 || !mkdtemp(folder))
        return 2;
    program = argv[1];
    const struct rt_format *f;
    for (int k = 0; (f = rt_format_at(k)); k++)
        for (const enum rt_share *share = f->shares; *share != RT_SHARES; share++)
            for (int i = 0; i < TENSORS; i++, number++) {
                if (rt_format_grouped(f) && tensors[i].shape[tensors[i].axis] % 128)
                    continue; /* whole groups only */
                struct example x = {.format = f, .share = *share, .axis = tensors[i].axis};
                x.rank = tensors[i].rank;
                x.dtype = tensors[i].dtype;
                memcpy(x.shape, tensors[i].shape, sizeof x.shape);
                x.parts = (enum parts)((number + k) % 3);
                x.rule = rt_format_has_rule(f) && number % 2 ? RT_WIDE : RT_OCP;
                x.group = f->groups[0] && f->groups[1] ? f->groups[number % 2] : f->groups[0];
                try(&x, number);
            }
    printf("%d files quantised and back\n", number);
    char line[64];
    snprintf(line, sizeof line, "rm -r %s", folder);
    return failures != 0 || system(line) != 0;
}
