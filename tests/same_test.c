/* SPDX-License-Identifier: Apache-2.0 */
/* same_test.c - pairs of cases of a family that are the same function (each line
 * "#= ONE TWO KEY=VALUE .." of FAMILY.yaml: two cases, and overrides of the second) give the same
 * values, in every 16-bit and 32-bit float, on this CPU's best target and on the scalar one. Every
 * family has such a list.
 *
 *     same_test DIRECTORY */
#include "cases.h"

enum { TOKENS = 37, FEW = 9, MAX_KEYS = 4 }; /* few: in plain C, a hundred times as slow */
enum { ROUTINGS = 3 };                       /* every third one in plain C, in turn */

static int pairs;

/* Outputs of a kernel; those that it adds to start as the inputs have them. */
static moegen_rt_problem *run(const moegen_kernel *kernel, const moegen_rt_problem *in)
{
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_call_create(kernel, &call, &err);
    if (!status && !(status = bind(call, in, out, &err))) {
        reset(call, in, out);
        status = moegen_call_run(call, &err);
    }
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    moegen_error_release(err);
    moegen_call_release(call);
    return out;
}

static void compare(const moegen_rt_problem *a, const moegen_rt_problem *b)
{
    for (size_t i = 0; moegen_rt_problem_at(a, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(a, i);
        const moegen_rt_tensor *other = moegen_rt_problem_tensor(b, t->name);
        moegen_rt_problem *wide = moegen_rt_problem_create();
        moegen_rt_tensor *want = NULL;
        moegen_rt_comparison r;
        moegen_rt_error why;
        if (!other ||
            moegen_rt_problem_add(wide, t->name, MOEGEN_RT_F64, t->rank, t->shape, &want, &why)) {
            complain(t->name, "is missing");
        } else {
            moegen_rt_decode(t->dtype, t->data, (size_t)moegen_rt_tensor_count(t), want->data);
            if (moegen_rt_compare(other, want, &r, &why))
                complain(t->name, why.text);
            else if (!r.ok || r.skipped)
                complain(t->name, r.skipped ? "NaN" : r.text);
        }
        moegen_rt_problem_destroy(wide);
    }
}

/* One line of a list. */
struct twins {
    const char *path;
    char one[100], two[100], key[MAX_KEYS][64];
    moegen_override set[MAX_KEYS + 3]; /* of the second; three are free */
    size_t sets;
};

/* Are there two cases in this line? */
static bool parse(struct twins *p, const char *line)
{
    int used = 0, more = 0;
    if (strncmp(line, "#= ", 3) != 0 || sscanf(line, "#= %99s %99s%n", p->one, p->two, &used) < 2)
        return false;
    for (p->sets = 0; p->sets < MAX_KEYS; p->sets++, used += more) {
        char *key = p->key[p->sets];
        if (sscanf(line + used, " %63s%n", key, &more) != 1 || !strchr(key, '='))
            break;
        char *value = strchr(key, '=');
        *value = '\0';
        p->set[p->sets] = (moegen_override){key, value + 1};
    }
    return true;
}

/* With every routing, in plain C with some; dtype NULL: a kernel that has none. */
static void run_pair(moegen_engine *engine, struct twins *p, const char *dtype, const char *target)
{
    static int turn;
    size_t n = p->sets;
    bool slow = strcmp(target, "auto") != 0;
    int64_t tokens = slow ? FEW : TOKENS;
    snprintf(where, sizeof where, "%s: %s and %s%s%s (%s, target %s)", strrchr(p->path, '/') + 1,
             p->one, p->two, n ? " with other " : "", n ? p->set[0].key : "", dtype ? dtype : "-",
             target);
    p->set[n++] = (moegen_override){"target", target};
    p->set[n++] = (moegen_override){"spelling", slow ? "scalar" : "auto"};
    p->set[n++] = (moegen_override){"dtype", dtype};
    moegen_kernel *a = get(engine, p->path, p->one, dtype, target);
    moegen_kernel *b = get_set(engine, p->path, p->two, p->set, dtype ? n : n - 1);
    turn += slow;
    for (int r = slow ? turn % ROUTINGS : 0; a && b && moegen_rt_routing(r);
         r += slow ? ROUTINGS : 1) {
        moegen_rt_problem *in = inputs(a, tokens, moegen_rt_routing(r));
        moegen_rt_problem *x = run(a, in), *y = run(b, in);
        compare(x, y);
        pairs++;
        moegen_rt_problem_destroy(in);
        moegen_rt_problem_destroy(x);
        moegen_rt_problem_destroy(y);
    }
    moegen_kernel_release(a);
    moegen_kernel_release(b);
}

/* In every dtype, if the family has dtypes; in plain C in the cases' own. */
static void run_dtypes(moegen_engine *engine, struct twins *p)
{
    snprintf(where, sizeof where, "%s: %s", p->path, p->one);
    moegen_kernel *kernel = get_set(engine, p->path, p->one, NULL, 0);
    bool typed = kernel && moegen_kernel_param(kernel, "dtype");
    for (size_t d = 0; kernel && typed && io_dtype(d); d++)
        run_pair(engine, p, io_dtype(d), "auto");
    if (kernel && !typed)
        run_pair(engine, p, NULL, "auto");
    if (kernel)
        run_pair(engine, p, NULL, "scalar");
    moegen_kernel_release(kernel);
}

/* The list below a family's cases. */
static void run_list(moegen_engine *engine, const char *yaml)
{
    char line[4000];
    struct twins p = {.path = yaml};
    int before = pairs;
    snprintf(where, sizeof where, "%s", yaml);
    FILE *f = fopen(yaml, "r");
    while (f && fgets(line, sizeof line, f))
        if (parse(&p, line))
            run_dtypes(engine, &p);
    if (f)
        fclose(f);
    if (pairs == before)
        complain("no pairs", "every family has cases that are the same function");
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = shared_cache()};
    moegen_engine *engine = NULL;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir || moegen_engine_create(&options, &engine, NULL)) {
        fprintf(stderr, "usage: same_test DIRECTORY\n");
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[600];
        size_t len = strlen(entry->d_name);
        if (len < 5 || strcmp(entry->d_name + len - 5, ".yaml") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        run_list(engine, path);
    }
    closedir(dir);
    moegen_engine_release(engine);
    printf("%d pairs, %d complaints\n", pairs, failures);
    return failures != 0 || pairs == 0;
}
