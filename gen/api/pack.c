/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - moegen_pack: the experts' matrices into the order in which a kernel reads them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"
#include "call.h"
#include "packed.h"

static int64_t number(const moegen_kernel *kernel, const char *key)
{
    const char *value = moegen_kernel_param(kernel, key);
    return value ? strtoll(value, NULL, 10) : 0;
}

static bool is(const moegen_kernel *kernel, const char *key, const char *value)
{
    const char *text = moegen_kernel_param(kernel, key);
    return text && strcmp(text, value) == 0;
}

struct source {
    struct rt_packed to;
    struct rt_unpacked from;
    int64_t E, K, C;
    bool known; /* a layout that can be packed */
    int bytes;
    void *packed;
};

/* The matrix that tensor `name` holds of each expert, and how it lies where it comes from. */
static void lay(const moegen_kernel *kernel, const char *name, const char *layout, struct source *s)
{
    bool down = strcmp(name, "down_proj_weight") == 0, gated = is(kernel, "gated", "true");
    int64_t H = number(kernel, "H"), I = number(kernel, "I_TP");
    int64_t parts = gated && strcmp(name, "gate_up_proj_weight") == 0 ? 2 : 1;
    const char *dtype = moegen_kernel_param(kernel, "weights.dtype");
    s->E = number(kernel, "E");
    s->K = down ? I : H;
    s->C = down ? H : parts * I;
    rt_packed_lay(&s->to, dtype ? dtype : "", s->K, s->C, number(kernel, "weights.run"), parts,
                  parts > 1 && is(kernel, "weights.gate_up_order", "interleaved"));
    bool plain = strcmp(layout, "plain") == 0;
    s->known = plain || strcmp(layout, "transposed") == 0;
    s->from.each = s->K * s->C;
    s->from.row = plain ? s->C : 1;
    s->from.column = plain ? 1 : s->K;
}

/* [E, K, C], the last one in one or two extents; or [E, C, K]. */
static bool fits(const struct source *s, int rank, const int64_t *shape)
{
    bool plain = s->from.row > 1 || s->C == 1;
    bool last = rank == 3 && shape[1] == s->C && shape[2] == s->K;
    bool first = (rank == 3 || rank == 4) && shape[1] == s->K && shape[2] > 0 &&
                 s->C % shape[2] == 0 && s->C / shape[2] == (rank == 4 ? shape[3] : 1);
    return rank >= 3 && shape[0] == s->E && (plain ? first : last);
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
    lay(kernel, from->name, layout, &s);
    if (s.to.run < 1 || !is(kernel, "weights.layout", "packed") || u->arg[arg].rank != 2 ||
        !strstr(from->name, "_proj_weight"))
        return error_set(err, MOEGEN_BAD_ARGUMENT, "kernel %s takes no packed tensor '%s'",
                         u->facts.name, from->name);
    if (!s.known)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "layout '%s' is not one of plain, transposed",
                         layout);
    s.bytes = (int)moegen_dtype_size(u->arg[arg].dtype);
    size_t need = (size_t)(s.E * s.to.each) * (size_t)s.bytes;
    if (from->dtype != u->arg[arg].dtype || from->rank < 0 || from->rank > 8 || !from->data ||
        !fits(&s, from->rank, from->shape)) {
        struct text t = {0};
        text_fmt(&t, "tensor '%s' is %s ", from->name, moegen_dtype_name(from->dtype));
        shape_text(&t, from->rank < 0 || from->rank > 8 ? 0 : from->rank, from->shape);
        text_fmt(&t, ", expected %s [%" PRId64 ", %" PRId64 ", %" PRId64 "], %s",
                 moegen_dtype_name(u->arg[arg].dtype), s.E, s.from.row == 1 ? s.C : s.K,
                 s.from.row == 1 ? s.K : s.C, layout);
        return error_take(err, MOEGEN_BAD_ARGUMENT, &t);
    }
    if (bytes != need)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' packed has %zu bytes, not %zu",
                         from->name, need, bytes);
    s.from.data = from->data;
    return run(&s, threads > 0 ? threads : 1, err);
}
