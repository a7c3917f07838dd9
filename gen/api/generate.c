/* SPDX-License-Identifier: Apache-2.0 */
/* generate.c - from a public moegen_spec to the generator's request, and C text as a product. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"
#include "engine.h"
#include "spec/spec.h"

struct moegen_source {
    struct generated text;
    char *cflags;
};

static const char *label_of(const moegen_spec *spec)
{
    return spec->label ? spec->label : "<spec>";
}

moegen_status spec_take(moegen_spec *own, const moegen_spec *given, moegen_error **err)
{
    static const size_t sizes[] = SIZES_OF(moegen_spec, command);
    if (!given)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "spec must not be NULL");
    if (!sized_take(own, given, sizes, sizeof sizes / sizeof *sizes))
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "spec: struct_size is %zu, not sizeof(moegen_spec) = %zu",
                         given->struct_size, sizeof *given);
    if (!own->text && own->len)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "spec: text is NULL, and len is %zu", own->len);
    for (size_t i = 0; i < own->override_count; i++)
        if (!own->overrides || !own->overrides[i].key || !own->overrides[i].value)
            return error_set(err, MOEGEN_BAD_ARGUMENT, "override %zu has no key or value", i);
    own->text = own->text ? own->text : "";
    return spec_fits(label_of(own), own->len, err);
}

/* path: of the only file, or NULL */
static moegen_status take_tuned(struct ask *a, const moegen_engine *engine, const char *path,
                                bool tunes, moegen_error **err)
{
    struct host_request *r = &a->request;
    const struct tuned *t = engine_tuned(engine, &r->threads, &r->cpus);
    int why = path ? tuned_add(&a->tuned, path) : 0;
    if (why)
        return error_set(err, why == ENOMEM ? MOEGEN_NO_MEMORY : MOEGEN_BAD_SPEC,
                         "plan.tuned: cannot read %s: %s", path, file_why(why));
    t = path ? &a->tuned : t;
    r->tuned = t->host;
    r->tuned_count = (size_t)t->files;
    r->tuned_given = path != NULL;
    r->tunes = tunes;
    r->cpu = moegen_rt_cpu_kind();
    return MOEGEN_OK;
}

moegen_status ask_open(struct ask *a, const moegen_engine *engine, const moegen_spec *given,
                       const char *purpose, moegen_error **err)
{
    moegen_spec own;
    const moegen_spec *spec = &own;
    *a = (struct ask){0};
    moegen_status status = spec_take(&own, given, err);
    if (status)
        return status;
    a->set = calloc(spec->override_count + 1, sizeof *a->set);
    if (!a->set)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < spec->override_count; i++) {
        a->set[i].key = spec->overrides[i].key;
        a->set[i].value = spec->overrides[i].value;
    }
    a->request = (struct host_request){
        .file = label_of(spec),
        .text = spec->text,
        .len = spec->len,
        .kernel = spec->kernel,
        .set = a->set,
        .set_count = spec->override_count,
        .purpose = purpose,
        .known = property_known,
        .known_of = engine,
    };
    engine_features(engine, &a->request.feature, &a->request.feature_count);
    return take_tuned(a, engine, tuned_named(spec), strcmp(purpose, "jit") == 0, err);
}

void ask_close(struct ask *a)
{
    for (int i = 0; i < MAX_PROPS; i++)
        text_free(&a->wanted[i]);
    tuned_close(&a->tuned);
    a->tuned = (struct tuned){0};
    free(a->set);
    a->set = NULL;
}

/* Where the next property's name goes. */
static void expect(struct ask *a)
{
    size_t n = a->request.prop_count;
    a->request.prop = a->prop;
    a->request.measure = n < MAX_PROPS ? &a->wanted[n] : NULL;
}

/* Was a property wanted? Then it is there now, and the request is made again. */
static bool provide(struct ask *a, moegen_engine *engine, moegen_status *status, moegen_error **err)
{
    struct text *name = a->request.measure;
    if (*status || !name || !name->len)
        return false;
    double value = property_of(engine, name->at);
    if (value < 0)
        *status = error_set(err, MOEGEN_NO_MEMORY, "out of memory while measuring this CPU");
    else
        a->prop[a->request.prop_count++] = (struct host_prop){name->at, value};
    return value >= 0;
}

moegen_status ask_build(struct ask *a, moegen_engine *engine, struct generated *out,
                        moegen_error **err)
{
    moegen_status status;
    do {
        expect(a);
        status = host_build(&a->request, out, err);
    } while (provide(a, engine, &status, err));
    return status;
}

moegen_status ask_explain(struct ask *a, moegen_engine *engine, struct text *out,
                          moegen_error **err)
{
    moegen_status status;
    do {
        expect(a);
        status = host_explain(&a->request, out, err);
    } while (provide(a, engine, &status, err));
    return status;
}

moegen_status ask_space(struct ask *a, moegen_engine *engine, struct listing *out,
                        moegen_error **err)
{
    moegen_status status;
    do {
        expect(a);
        status = host_space(&a->request, out, err);
    } while (provide(a, engine, &status, err));
    return status;
}

moegen_status ask_entries(struct ask *a, const struct host_tuned *file, struct listing *out,
                          moegen_error **err)
{
    a->request.tuned = file;
    a->request.tuned_count = 1;
    a->request.tuned_given = true;
    return host_entries(&a->request, out, err);
}

/* The value of the metadata's line `cflags`; "" without one. */
static char *find_cflags(const struct text *meta)
{
    static const char key[] = "\ncflags ";
    const char *at = meta->at ? strstr(meta->at, key) : NULL;
    return at ? strndup(at + strlen(key), strcspn(at + strlen(key), "\n")) : strdup("");
}

moegen_status moegen_generate(moegen_engine *engine, const moegen_spec *spec,
                              moegen_source **source, moegen_error **err)
{
    if (!engine || !source)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "engine and source must not be NULL");
    struct ask a;
    moegen_source *made = NULL;
    moegen_status status = ask_open(&a, engine, spec, "file", err);
    if (status)
        goto out;
    a.request.command = spec->command;
    made = calloc(1, sizeof *made);
    if (!made) {
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
        goto out;
    }
    if ((status = ask_build(&a, engine, &made->text, err)))
        goto out;
    made->cflags = find_cflags(&made->text.meta);
    if (!made->cflags) {
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
        goto out;
    }
    *source = made;
    made = NULL;
out:
    moegen_source_release(made);
    ask_close(&a);
    return status;
}

const char *moegen_source_name(const moegen_source *source)
{
    return source ? source->text.name.at : "";
}

const char *moegen_source_c(const moegen_source *source)
{
    return source ? source->text.c.at : "";
}

const char *moegen_source_h(const moegen_source *source)
{
    return source ? source->text.h.at : "";
}

const char *moegen_source_cflags(const moegen_source *source)
{
    return source ? source->cflags : "";
}

void moegen_source_release(moegen_source *source)
{
    if (!source)
        return;
    generated_free(&source->text);
    free(source->cflags);
    free(source);
}
