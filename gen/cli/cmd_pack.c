/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_pack.c - `moegen pack`: the matrices of weights of a file in the order in which a kernel
 * reads them, the other tensors as they are. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "rt_file.h"

struct pack {
    const struct options *o;
    const moegen_kernel *kernel;
    moegen_rt_problem *in;
    const char *layout;    /* of the tensors in the file; NULL: as their shapes say */
    moegen_rt_tensor *out; /* in the file's order; those that are packed have no data */
    size_t count;
    int packed;
    struct rt_file *file;
    size_t at; /* of the tensor at work in `out` */
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

/* What the file will have in the place of each tensor that is packed. */
static moegen_status make_list(struct pack *p, moegen_error **err)
{
    const moegen_kernel_facts *f = kernel_facts(p->kernel);
    while (moegen_rt_problem_at(p->in, p->count))
        p->count++;
    p->out = calloc(p->count + 1, sizeof *p->out);
    if (!p->out)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < p->count; i++)
        p->out[i] = *moegen_rt_problem_at(p->in, i);
    for (int i = 0; i < f->arg_count; i++) {
        const moegen_arg *a = &f->args[i];
        size_t k = 0;
        if (!packed_arg(p, a->name))
            continue;
        while (k < p->count && strcmp(p->out[k].name, a->name) != 0)
            k++;
        if (k == p->count)
            return error_set(err, MOEGEN_BAD_ARGUMENT, "%s: tensor '%s' is missing", p->o->in.at[0],
                             a->name);
        moegen_rt_tensor *t = &p->out[k];
        t->data = NULL;
        t->dtype = (moegen_rt_dtype)a->dtype;
        t->rank = a->rank;
        t->bytes = moegen_dtype_size(a->dtype);
        for (int d = 0; d < a->rank; d++)
            t->bytes *= (size_t)(t->shape[d] = strtoll(a->extent[d], NULL, 10));
    }
    return MOEGEN_OK;
}

static void put(void *ctx, size_t at, const void *bytes, size_t len)
{
    const struct pack *p = ctx;
    rt_file_put(p->file, p->at, at, bytes, len);
}

/* Packs what tensor p->at is in the files that are read. */
static moegen_status pack_one(struct pack *p, moegen_error **err)
{
    const moegen_rt_tensor *to = &p->out[p->at], *t = moegen_rt_problem_tensor(p->in, to->name);
    moegen_rt_problem *held = NULL;
    moegen_rt_error why;
    if (t->dtype == MOEGEN_RT_F32 && to->dtype != t->dtype) {
        moegen_rt_tensor *rounded;
        held = moegen_rt_problem_create();
        if (!held)
            return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
        if (moegen_rt_problem_add(held, t->name, to->dtype, t->rank, t->shape, &rounded, &why)) {
            moegen_rt_problem_destroy(held);
            return error_set(err, MOEGEN_NO_MEMORY, "%s", why.text);
        }
        moegen_rt_convert(t->dtype, t->data, rounded->dtype, rounded->data,
                          (size_t)moegen_rt_tensor_count(t));
        t = rounded;
    }
    moegen_tensor from = {
        .name = t->name, .data = t->data, .dtype = (moegen_dtype)t->dtype, .rank = t->rank};
    memcpy(from.shape, t->shape, sizeof from.shape);
    int threads = p->o->threads ? (int)p->o->threads : kernel_facts(p->kernel)->threads;
    p->packed++;
    moegen_status status =
        pack_in_parts(p->kernel, p->layout, &from, &(struct pack_sink){.put = put, .ctx = p},
                      to->bytes, threads, err);
    moegen_rt_problem_destroy(held);
    return status;
}

/* Tensors in the file's order, those that are packed in their place. */
static int write_all(struct pack *p)
{
    moegen_error *err = NULL;
    moegen_rt_error why;
    moegen_status status = make_list(p, &err);
    if (status)
        return fail(status, err);
    if (rt_file_open(p->o->out, p->out, p->count, NULL, &p->file, &why))
        return bad("%s", why.text);
    for (p->at = 0; p->at < p->count && !status; p->at++)
        if (p->out[p->at].data || p->out[p->at].bytes == 0)
            put(p, 0, p->out[p->at].data, p->out[p->at].bytes);
        else
            status = pack_one(p, &err);
    if (status) {
        rt_file_drop(p->file);
        return fail(status, err);
    }
    if (rt_file_close(p->file, &why))
        return bad("%s", why.text);
    const char *target = kernel_facts(p->kernel)->target;
    if (p->o->json)
        printf("{\"packed\": %d, \"tensors\": %zu, \"target\": \"%s\"}\n", p->packed, p->count,
               target);
    else if (!quiet)
        printf("packed %d of %zu tensors for target %s: wrote %s\n", p->packed, p->count, target,
               p->o->out);
    return EXIT_OK;
}

static int pack(struct pack *p)
{
    moegen_rt_error why;
    moegen_error *err = NULL;
    const moegen_kernel_facts *f = kernel_facts(p->kernel);
    int matrices = 0;
    for (int i = 0; i < f->arg_count; i++)
        matrices += packed_arg(p, f->args[i].name) != NULL;
    if (!matrices)
        return bad("%s has no weights to pack", f->name);
    moegen_status status = files_distinct(p->o->in.at, p->o->in.count, NULL, NULL, &err);
    if (status)
        return fail(status, err);
    for (int i = 0; i < p->o->in.count; i++)
        if (rt_file_map(p->o->in.at[i], p->in, NULL, &why))
            return bad("%s", why.text);
    int result = p->layout ? EXIT_OK : find_layout(p);
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
    if (!result && !p.in)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (!result)
        result = pack(&p);
    moegen_rt_problem_destroy(p.in);
    free(p.out);
    moegen_kernel_release(kernel);
    job_close(&j);
    return result;
}
