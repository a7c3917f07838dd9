/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_check.c - what `moegen check` prints: a row for every output of every variant.
 */
#include <math.h>
#include <string.h>

#include "cli_check.h"

/* As JSON has it. */
static const char *result_of(const struct verdict *r)
{
    return !r ? "not run" : r->bad ? "fail" : r->compared ? "ok" : "not compared";
}

static void report_row(struct check *c, const struct variant *v, const char *output,
                       const struct verdict *r)
{
    const moegen_kernel_facts *f = v->kernel ? kernel_facts(v->kernel) : NULL;
    const char *name = *c->job->kernel[c->k] ? c->job->kernel[c->k] : c->name;
    const char *target = f ? f->target : *v->target ? v->target : "auto";
    const char *spelling = f ? f->spelling : *v->spelling ? v->spelling : "auto";
    const char *compiler = *v->cc                                        ? v->cc
                           : f && strcmp(f->spelling, "intrinsics") == 0 ? "cc"
                                                                         : "tcc";
    const char *result = result_of(r), *state = r && r->bad ? "FAIL" : result;
    bool compared = r && r->compared;
    const char *const cells[] = {name, target, spelling, compiler, output};
    for (int i = 0; i < 5; i++)
        table_add(c->table, "%s", cells[i]);
    for (int i = 0; i < 4 && !r; i++)
        table_add(c->table, "%s", "");
    if (r) {
        table_add(c->table, "%d", r->good + r->bad);
        table_add(c->table, compared ? "%.1e" : "-", r->l2);
        table_add(c->table, compared ? "%.0e" : "-", r->limit);
        table_add(c->table, compared ? "%.1f" : "-", r->roundings);
    }
    table_add(c->table, "%s%s%s%s", state,
              v->emulated && strcmp(result, "ok") == 0 ? " (emulated)" : "", v->why.len ? ": " : "",
              v->why.len ? v->why.at : "");
    struct text *t = c->json;
    static const char *const keys[] = {"kernel", "target", "spelling", "compiler", "output"};
    text_add(t, t->len ? ",\n  {" : "\n  {", t->len ? 5 : 4);
    for (int i = 0; i < 5; i++) {
        text_fmt(t, "\"%s\": ", keys[i]);
        json_string(t, cells[i]);
        text_add(t, ", ", 2);
    }
    text_fmt(t, "\"cases\": %d, \"compared\": %lld, \"rel_error\": ", r ? r->good + r->bad : 0,
             r ? (long long)r->compared : 0);
    json_number(t, compared ? r->l2 : NAN);
    text_add(t, ", \"limit\": ", 11);
    json_number(t, compared ? r->limit : NAN);
    text_add(t, ", \"roundings\": ", 15);
    json_number(t, compared ? r->roundings : NAN);
    text_fmt(t, ", \"emulated\": %s, \"result\": \"%s\", \"why\": ", v->emulated ? "true" : "false",
             result);
    json_string(t, v->why.len ? v->why.at : "");
    text_add(t, "}", 1);
}

void check_report(struct check *c)
{
    c->name = c->job->label;
    for (int i = 0; i < c->variants; i++)
        if (c->variant[i].kernel)
            c->name = kernel_facts(c->variant[i].kernel)->name;
    for (int i = 0; i < c->variants; i++) {
        struct variant *v = &c->variant[i];
        const moegen_kernel_facts *f = v->kernel ? kernel_facts(v->kernel) : NULL;
        bool ok = true, compared = false;
        for (int a = 0; f && a < f->arg_count; a++)
            if (f->args[a].role != MOEGEN_IN) {
                report_row(c, v, f->args[a].name, &v->verdict[a]);
                ok = ok && !v->verdict[a].bad;
                compared = compared || v->verdict[a].compared;
            }
        if (f && ok && !compared && !c->at->result) /* else it has been said why */
            fprintf(stderr, "FAIL %s --target %s: the reference has nothing to compare with\n",
                    f->name, f->target);
        ok = ok && compared;
        if (!f)
            report_row(c, v, "", NULL);
        c->idle += !f;
        c->ran += f && ok;
        c->failed += f && !ok;
    }
    for (int i = 0; i < c->variants; i++) {
        moegen_kernel_release(c->variant[i].kernel);
        text_free(&c->variant[i].why);
    }
    c->variants = 0;
}
