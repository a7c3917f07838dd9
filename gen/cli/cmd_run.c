/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_run.c - `moegen run`: one kernel, once, from a tensor file to a tensor file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* A name that no argument has may be a misspelt optional one: worth a note. */
static void note_other(const char *name)
{
    if (verbose)
        note("note: tensor '%s' is no argument of this kernel", name);
}

static void report(const struct options *o, const struct stand *s, double seconds)
{
    struct text t = {0};
    char took[32];
    text_fmt(&t,
             "{\"kernel\": \"%s\", \"target\": \"%s\", \"spelling\": \"%s\", \"origin\": \"%s\", "
             "\"threads\": %d, \"jit_ms\": %.4g, \"run_ms\": %.4g, \"outputs\": [",
             s->facts.name, s->facts.target, s->facts.spelling, s->facts.origin,
             o->threads ? (int)o->threads : s->facts.threads, 1e3 * s->facts.jit_seconds,
             1e3 * seconds);
    for (size_t i = 0; moegen_rt_problem_at(s->out, i); i++) {
        const moegen_rt_tensor *tensor = moegen_rt_problem_at(s->out, i);
        text_fmt(&t, "%s\n  {\"name\": ", i ? "," : "");
        json_string(&t, tensor->name);
        text_fmt(&t, ", \"dtype\": \"%s\", \"shape\": ", moegen_rt_dtype_of(tensor->dtype)->name);
        shape_text(&t, tensor->rank, tensor->shape);
        text_add(&t, "}", 1);
    }
    if (o->json && t.lost)
        lost();
    else if (o->json)
        printf("%s\n]}\n", t.at);
    else if (!quiet)
        printf("%s (%s, %s, from %s) ran in %s: wrote %s\n", s->facts.name, s->facts.target,
               s->facts.spelling, s->facts.origin, show_seconds(took, seconds), o->out);
    text_free(&t);
}

static int write_outputs(const struct options *o, const struct stand *s)
{
    moegen_rt_tensor list[MAX_ARGS];
    moegen_rt_error why;
    size_t count = 0;
    for (; moegen_rt_problem_at(s->out, count); count++)
        list[count] = *moegen_rt_problem_at(s->out, count);
    return moegen_rt_safetensors_write(o->out, list, count, &why) ? bad("%s", why.text) : EXIT_OK;
}

static int run(const struct options *o, struct job *j, moegen_rt_problem *in)
{
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    struct stand s = {0};
    moegen_spec spec = job_spec(j, 0, 0);
    int result = EXIT_OK;
    moegen_status status = moegen_kernel_get(j->engine, &spec, &kernel, &err);
    if (status) {
        result = fail(status, err);
        goto out;
    }
    if ((status = checkpoint_read(kernel, o->in.at, o->in.count, note_other, in, &err))) {
        result = fail(status, err);
        goto out;
    }
    const char *label = o->in.count > 1 ? "--in" : o->in.at[0];
    if ((status = stand_open(&s, kernel, in, (int)o->threads, label, &err))) {
        result = fail(status, err);
        goto out;
    }
    stand_poison(&s, in);
    double start = seconds_now();
    if ((status = moegen_call_run(s.call, &err))) {
        result = fail(status, err);
        goto out;
    }
    double seconds = seconds_now() - start;
    if (stand_damage(&s)) {
        error_set(&err, MOEGEN_INTERNAL, "the kernel wrote outside of %s", stand_damage(&s));
        result = fail(MOEGEN_INTERNAL, err);
        goto out;
    }
    if (!(result = write_outputs(o, &s)))
        report(o, &s, seconds);
out:
    stand_close(&s);
    moegen_kernel_release(kernel);
    return result;
}

int cmd_run(struct options *o)
{
    struct job j;
    moegen_rt_problem *in = NULL;
    int result = o->in.count && o->out ? job_open(&j, o)
                                       : bad("run takes --in FILE and --out FILE (safetensors)");
    if (!o->in.count || !o->out)
        return result;
    if (!result && j.kernels != 1) {
        struct text names = {0};
        for (int k = 0; k < j.kernels; k++)
            text_fmt(&names, "%s%s:%s", k ? ", " : "", j.path, j.kernel[k]);
        result = bad("run takes one kernel; this file has %s", names.at ? names.at : "others");
        text_free(&names);
    }
    if (!result && !(in = moegen_rt_problem_create()))
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (!result)
        result = run(o, &j, in);
    moegen_rt_problem_destroy(in);
    job_close(&j);
    return result;
}
