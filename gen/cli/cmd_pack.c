/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_pack.c - `moegen pack`: the matrices of weights of a file in the order in which a kernel
 * reads them, the other tensors as they are. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct pack {
    const struct options *o;
    const moegen_kernel *kernel;
    moegen_rt_problem *in, *made, *rounded;
    const char *layout; /* of the tensors in the file; NULL: as their shapes say */
    int packed;
};

/* How a kernel has it packed; NULL: it has not. */
static const char *packed_arg(const struct pack *p, const char *name)
{
    char key[96];
    snprintf(key, sizeof key, "packed.%s", name);
    return moegen_kernel_param(p->kernel, key);
}

/* The layout that a tensor's shape [E, K, ..] or [E, C, K] says; NULL: either. */
static const char *layout_of(const struct pack *p, const moegen_rt_tensor *t)
{
    int64_t H = param_int(p->kernel, "H", 0), I = param_int(p->kernel, "I_TP", 0);
    int64_t K = strcmp(t->name, "down_proj_weight") == 0 ? I : H;
    const char *sole = strrchr(packed_arg(p, t->name), ' ');
    if (t->rank != 3 || (sole && sole[1] == '1'))
        return "plain";
    return t->shape[1] == t->shape[2] ? NULL : t->shape[1] == K ? "plain" : "transposed";
}

/* One layout for all tensors; sets p->layout. */
static int find_layout(struct pack *p)
{
    const moegen_kernel_facts *f = kernel_facts(p->kernel);
    for (int i = 0; i < f->arg_count && !p->layout; i++) {
        const moegen_rt_tensor *t = packed_arg(p, f->args[i].name)
                                        ? moegen_rt_problem_tensor(p->in, f->args[i].name)
                                        : NULL;
        p->layout = t ? layout_of(p, t) : NULL;
    }
    return p->layout ? EXIT_OK
                     : bad("%s: the shapes of these matrices are those of plain and of transposed "
                           "ones: say --from plain or --from transposed",
                           p->o->in.at[0]);
}

static moegen_status pack_one(struct pack *p, const moegen_arg *a, moegen_error **err)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p->in, a->name);
    moegen_rt_tensor *to;
    moegen_rt_error why;
    int64_t shape[2], count = 1;
    if (!t)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "%s: tensor '%s' is missing", p->o->in.at[0],
                         a->name);
    for (int d = 0; d < a->rank; d++)
        count *= shape[d] = strtoll(a->extent[d], NULL, 10);
    size_t bytes = (size_t)count * moegen_dtype_size(a->dtype);
    if (moegen_rt_problem_add(p->made, a->name, (moegen_rt_dtype)a->dtype, a->rank, shape, &to,
                              &why))
        return error_set(err, MOEGEN_NO_MEMORY, "%s", why.text);
    if (t->dtype == MOEGEN_RT_F32 && a->dtype != MOEGEN_F32) {
        int64_t n = moegen_rt_tensor_count(t);
        moegen_rt_tensor *rounded;
        if (moegen_rt_problem_add(p->rounded, a->name, (moegen_rt_dtype)a->dtype, t->rank, t->shape,
                                  &rounded, &why))
            return error_set(err, MOEGEN_NO_MEMORY, "%s", why.text);
        moegen_rt_convert(t->dtype, t->data, rounded->dtype, rounded->data, (size_t)n);
        t = rounded;
    }
    moegen_tensor from = {
        .name = a->name, .data = t->data, .dtype = (moegen_dtype)t->dtype, .rank = t->rank};
    memcpy(from.shape, t->shape, sizeof from.shape);
    p->packed++;
    return moegen_pack(p->kernel, p->layout, &from, to->data, bytes,
                       p->o->threads ? (int)p->o->threads : kernel_facts(p->kernel)->threads, err);
}

/* Tensors in the file's order, those that are packed in their place. */
static int write_all(const struct pack *p)
{
    moegen_rt_error why;
    size_t count = 0;
    while (moegen_rt_problem_at(p->in, count))
        count++;
    moegen_rt_tensor *list = calloc(count + 1, sizeof *list);
    if (!list)
        return fail(MOEGEN_NO_MEMORY, NULL);
    for (size_t i = 0; i < count; i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(p->in, i),
                               *made = moegen_rt_problem_tensor(p->made, t->name);
        list[i] = made ? *made : *t;
    }
    int result =
        moegen_rt_safetensors_write(p->o->out, list, count, &why) ? bad("%s", why.text) : EXIT_OK;
    free(list);
    if (!result && !quiet)
        printf("packed %d of %zu tensors for target %s: wrote %s\n", p->packed, count,
               kernel_facts(p->kernel)->target, p->o->out);
    return result;
}

static int pack(struct pack *p)
{
    const moegen_kernel_facts *f = kernel_facts(p->kernel);
    moegen_error *err = NULL;
    moegen_rt_error why;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < p->o->in.count; i++)
        if (moegen_rt_safetensors_read(p->o->in.at[i], p->in, &why))
            return bad("%s", why.text);
    int result = p->layout ? EXIT_OK : find_layout(p);
    for (int i = 0; i < f->arg_count && !result && !status; i++)
        if (packed_arg(p, f->args[i].name))
            status = pack_one(p, &f->args[i], &err);
    if (status)
        return fail(status, err);
    return result ? result : write_all(p);
}

/* The kernel of the spec, or what it is with packed weights; its layout then says how they lie. */
static moegen_status get_kernel(struct pack *p, struct job *j, moegen_kernel **kernel,
                                moegen_error **err)
{
    moegen_spec spec = job_spec(j, 0, 0);
    moegen_status status = moegen_kernel_get(j->engine, &spec, kernel, err);
    const char *layout = status ? NULL : moegen_kernel_param(*kernel, "weights.layout");
    if (status || (layout && strcmp(layout, "packed") == 0))
        return status;
    bool plain = layout && strcmp(layout, "plain") == 0;
    p->layout = p->layout                                     ? p->layout
                : plain                                       ? "plain"
                : layout && strcmp(layout, "transposed") == 0 ? "transposed"
                                                              : NULL;
    moegen_kernel_release(*kernel);
    *kernel = NULL;
    j->set[j->sets] = (moegen_override){"weights.layout", "packed"};
    spec = job_spec(j, 0, 1);
    return moegen_kernel_get(j->engine, &spec, kernel, err);
}

int cmd_pack(struct options *o)
{
    struct job j;
    struct pack p = {.o = o, .layout = o->from};
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    if (!o->in.count || !o->out)
        return bad("pack takes --in FILE and --out FILE (safetensors)");
    int result = job_open(&j, o);
    if (!result && j.kernels != 1)
        result = bad("pack takes one kernel; this file has %d: say %s:NAME", j.kernels, j.path);
    moegen_status status = result ? MOEGEN_OK : get_kernel(&p, &j, &kernel, &err);
    if (status)
        result = fail(status, err);
    p.kernel = kernel;
    p.in = moegen_rt_problem_create();
    p.made = moegen_rt_problem_create();
    p.rounded = moegen_rt_problem_create();
    if (!result && (!p.in || !p.made || !p.rounded))
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (!result)
        result = pack(&p);
    moegen_rt_problem_destroy(p.in);
    moegen_rt_problem_destroy(p.made);
    moegen_rt_problem_destroy(p.rounded);
    moegen_kernel_release(kernel);
    job_close(&j);
    return result;
}
