/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - moegen_pack: matrices of weights into the order in which a kernel reads them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"
#include "call.h"
#include "packed.h"

const char *packed_param(const struct unit *u, const char *tensor)
{
    char key[96];
    int n = snprintf(key, sizeof key, "packed.%s", tensor);
    return n > 0 && (size_t)n < sizeof key ? moegen_kernel_param(&u->made, key) : NULL;
}

struct source {
    struct rt_packed to;
    struct rt_unpacked from;
    int64_t E, K, C;
    bool single; /* no experts: one matrix */
    bool sole;   /* `plain` is the only layout, of rows that are contracted */
    bool known;  /* a layout that can be packed */
    bool plain;  /* [E, in, out] */
    bool rows;   /* what is contracted is contiguous */
    int bytes;
    void *packed;
};

/* The matrix that argument `arg` holds of each expert, and how it lies where it comes from: what
 * forward reads as columns backward reads as rows. A sole one has
 * rows that are contracted. False: it is not packed. */
static bool lay(const moegen_kernel *kernel, int arg, const char *layout, struct source *s)
{
    const moegen_arg *a = &kernel->unit->arg[arg];
    const char *experts = moegen_kernel_param(kernel, "E"),
               *how = packed_param(kernel->unit, a->name);
    long long K, C, run, parts, order, sole;
    if (!how ||
        sscanf(how, "%lld %lld %lld %lld %lld %lld", &K, &C, &run, &parts, &order, &sole) != 6)
        return false;
    s->single = experts == NULL;
    s->sole = sole != 0;
    s->E = experts ? strtoll(experts, NULL, 10) : 1;
    s->K = K;
    s->C = C;
    rt_packed_lay(&s->to, moegen_dtype_name(a->dtype), K, C, run, parts, order);
    s->plain = strcmp(layout, "plain") == 0;
    s->known = s->plain || (!s->sole && strcmp(layout, "transposed") == 0);
    s->rows = s->sole || s->plain == ((order & RT_PACKED_BACK) != 0);
    s->from.each = s->K * s->C;
    s->from.row = s->rows ? 1 : s->C;
    s->from.column = s->rows ? s->K : 1;
    s->bytes = (int)moegen_dtype_size(a->dtype);
    return true;
}

/* [outer, inner] alone, or of each expert; in `plain` the last one in one or two extents. */
static bool fits(const struct source *s, int rank, const int64_t *shape)
{
    const int64_t outer = s->rows ? s->C : s->K, inner = s->rows ? s->K : s->C;
    if (s->single)
        return rank == 2 && shape[0] == outer && shape[1] == inner;
    if (rank < 3 || rank > 3 + (s->plain && !s->sole) || shape[0] != s->E || shape[1] != outer)
        return false;
    return shape[2] > 0 && inner % shape[2] == 0 && inner / shape[2] == (rank == 4 ? shape[3] : 1);
}

static void expected_text(const struct source *s, moegen_dtype dtype, const char *layout,
                          struct text *t)
{
    text_fmt(t, ", expected %s [", moegen_dtype_name(dtype));
    if (!s->single)
        text_fmt(t, "%" PRId64 ", ", s->E);
    text_fmt(t, "%" PRId64 ", %" PRId64 "], %s", s->rows ? s->C : s->K, s->rows ? s->K : s->C,
             layout);
}

static void pack_part(void *ctx, const moegen_worker *worker)
{
    const struct source *s = ctx;
    rt_pack(&s->to, &s->from, s->E, s->bytes, s->packed, worker ? worker->rank : 0,
            worker ? worker->size : 1);
}

static moegen_status run(struct source *s, int threads, moegen_error **err)
{
    moegen_rt_team *team = NULL;
    moegen_rt_error why;
    if (moegen_rt_team_create(threads, &team, &why))
        return error_set(err, MOEGEN_NO_MEMORY, "%s", why.text);
    moegen_rt_status status = moegen_rt_team_run(team, pack_part, s);
    moegen_rt_team_destroy(team);
    return status ? error_set(err, MOEGEN_NO_MEMORY, "no threads to pack with") : MOEGEN_OK;
}

moegen_status moegen_pack(const moegen_kernel *kernel, const char *layout,
                          const moegen_tensor *from, void *packed, size_t bytes, int threads,
                          moegen_error **err)
{
    struct source s = {.packed = packed};
    if (!kernel || !layout || !from || !from->name || !packed)
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "moegen_pack: kernel, layout, tensor or memory is NULL");
    const struct unit *u = kernel->unit;
    int arg = arg_find(u, from->name);
    if (arg < 0)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "kernel %s has no tensor '%s'", u->facts.name,
                         from->name);
    if (!lay(kernel, arg, layout, &s))
        return error_set(err, MOEGEN_BAD_ARGUMENT, "kernel %s takes no packed tensor '%s'",
                         u->facts.name, from->name);
    if (!s.known)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "layout '%s' is not %s", layout,
                         s.sole ? "plain" : "one of plain, transposed");
    size_t need = (size_t)(s.E * s.to.each) * (size_t)s.bytes;
    if (from->dtype != u->arg[arg].dtype || from->rank < 0 || from->rank > 8 || !from->data ||
        !fits(&s, from->rank, from->shape)) {
        struct text t = {0};
        text_fmt(&t, "tensor '%s' is %s ", from->name, moegen_dtype_name(from->dtype));
        shape_text(&t, from->rank < 0 || from->rank > 8 ? 0 : from->rank, from->shape);
        expected_text(&s, u->arg[arg].dtype, layout, &t);
        return error_take(err, MOEGEN_BAD_ARGUMENT, &t);
    }
    if (bytes != need)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' packed has %zu bytes, not %zu",
                         from->name, need, bytes);
    s.from.data = from->data;
    return run(&s, threads > 0 ? threads : 1, err);
}
