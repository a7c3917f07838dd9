/* SPDX-License-Identifier: Apache-2.0 */
/* pages_test.c - every case of tests/kernels with each tensor, and the workspace, between pages
 * that nobody may touch: against the one after it, against the one before it, and an element away
 * from that one, which is all the alignment that an element needs; some tokens in each of these
 * ways, one and many in one of them, in turn. The answers are compared with float64; without tokens
 * gradients and outputs are zero. In a process of its own: a new one after each case that ends it.
 *
 *     pages_test DIRECTORY [FAMILY[:CASE] [DTYPE [TARGET]]] */
#include <sys/wait.h>

#include "pages.h"

/* ---- no tokens ---- */

/* Tensors of the shapes that no tokens give: numbers that are as many are those of `some` tokens,
 * other inputs and what is added to hold zeros. */
static moegen_status bind_empty(moegen_call *call, const moegen_kernel_facts *facts,
                                const moegen_rt_problem *some, moegen_rt_problem *all,
                                moegen_error **err)
{
    moegen_status status = moegen_call_set_size(call, facts->dims[0], 0, err);
    int rank;
    int64_t shape[8];
    for (int i = 0; i < facts->arg_count && !status; i++)
        if (moegen_call_shape(call, facts->args[i].name, &rank, shape, NULL)) /* not from T alone */
            status = moegen_call_set_size(call, facts->dims[1], 0, err);
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_arg *a = &facts->args[i];
        int64_t count = 1;
        if ((status = moegen_call_shape(call, a->name, &rank, shape, err)))
            break;
        for (int d = 0; d < rank; d++)
            count *= shape[d];
        size_t element = moegen_dtype_size(a->dtype);
        void *data = place(a->name, (size_t)count * element, element, AT_END);
        memset(data, 0, (size_t)count * element);
        const moegen_rt_tensor *from = moegen_rt_problem_tensor(some, a->name);
        if (a->role == MOEGEN_IN && moegen_rt_dtype_of((moegen_rt_dtype)a->dtype)->digits && from &&
            from->bytes == (size_t)count * element)
            memcpy(data, from->data, from->bytes);
        if (a->role == MOEGEN_OUT)
            moegen_rt_poison((moegen_rt_dtype)a->dtype, data, (size_t)count);
        if (a->role != MOEGEN_IN)
            moegen_rt_problem_lend(all, a->name, (moegen_rt_dtype)a->dtype, rank, shape, data,
                                   NULL);
        status = moegen_call_bind(call, a->name, data, a->dtype, rank, shape, err);
    }
    return status;
}

static void expect_zeros(const moegen_rt_problem *all)
{
    const moegen_rt_tensor *t;
    for (size_t i = 0; (t = moegen_rt_problem_at(all, i)); i++)
        for (int64_t j = 0; j < moegen_rt_tensor_count(t); j++) {
            double value;
            size_t element = t->bytes / (size_t)moegen_rt_tensor_count(t);
            moegen_rt_decode(t->dtype, (const char *)t->data + (size_t)j * element, 1, &value);
            if (moegen_rt_dtype_of(t->dtype)->digits && value != 0) {
                complain(t->name, "is not zero");
                break;
            }
        }
}

/* A kernel of fixed size, or one that wants a token, says so. */
static void try_empty(const moegen_kernel *kernel, const moegen_rt_problem *some)
{
    static const char *const sizes[] = {"T", "S", "M"};
    const char *dropping = moegen_kernel_param(kernel, "dropping");
    bool may_refuse = dropping && strcmp(dropping, "true") == 0;
    moegen_kernel_facts facts = {.struct_size = sizeof facts};
    moegen_rt_problem *all = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_kernel_info(kernel, &facts);
    for (int i = 0; i < 3; i++)
        may_refuse = may_refuse || moegen_kernel_param(kernel, sizes[i]);
    may_refuse = may_refuse || strcmp(facts.dims[0], "S") == 0;
    if (!status && !(status = moegen_call_create(kernel, &call, &err)) &&
        !(status = bind_empty(call, &facts, some, all, &err)))
        status = moegen_call_run(call, &err);
    bool refuses =
        status == MOEGEN_BAD_ARGUMENT || status == MOEGEN_BAD_DATA; /* before it runs, or it */
    if (status && !(may_refuse && refuses))
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    else if (!status)
        expect_zeros(all);
    moegen_error_release(err);
    moegen_call_release(call);
    moegen_rt_problem_destroy(all);
    take_back();
}

/* ---- one case ---- */

static int turn; /* of the case: which placing its first and its last trial have */

/* once: of elements as wide as others that were tried, the middle trial in one placing is enough.
 */
static void try_kernel(const moegen_kernel *kernel, bool once)
{
    static const struct {
        int64_t tokens;
        const char *routing;
        int threads;
    } trials[] = {{1, "uniform", 1}, {19, "skewed", 3}, {38, "empty_last", 2}};
    const moegen_rt_reference *family = moegen_rt_reference_find(kernel->unit->facts.family);
    size_t len = strlen(where);
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        if (once && i != 1)
            continue;
        moegen_rt_problem *in = inputs(kernel, trials[i].tokens, trials[i].routing);
        moegen_rt_problem *want = moegen_rt_problem_create();
        moegen_rt_want what = {.padding_is_zero = 1};
        moegen_rt_error why = {{0}};
        if (family->compute(in, &what, want, &why))
            complain("no reference", why.text);
        for (int placing = 0; placing < PLACINGS; placing++) {
            if ((once || i != 1) && placing != (turn + (int)i) % PLACINGS)
                continue;
            snprintf(where + len, sizeof where - len, ", T=%d %s, tensors %s",
                     (int)trials[i].tokens, trials[i].routing, placing_names[placing]);
            run(kernel, in, want, trials[i].threads, (enum placing)placing);
        }
        if (i == 0) {
            snprintf(where + len, sizeof where - len, ", no tokens");
            try_empty(kernel, in);
        }
        where[len] = '\0';
        moegen_rt_problem_destroy(in);
        moegen_rt_problem_destroy(want);
    }
}

static size_t width_of(const char *dtype)
{
    for (int i = 0; i < 32; i++) {
        const char *name = moegen_dtype_name((moegen_dtype)i);
        if (name && strcmp(name, dtype) == 0)
            return moegen_dtype_size((moegen_dtype)i);
    }
    return 0;
}

struct choice {
    const char *dtype, *target; /* dtype NULL: each */
};

static void try_case(moegen_engine *engine, const char *path, const char *name,
                     const struct choice *c)
{
    bool typed = is_typed(path);
    size_t widths = 0; /* a bit for each that was tried */
    for (size_t d = 0; d == 0 || (typed && io_dtype(d)); d++) {
        const char *dtype = typed ? io_dtype(d) : NULL;
        if (dtype && c->dtype && strcmp(c->dtype, dtype) != 0)
            continue;
        snprintf(where, sizeof where, "%s:%s dtype %s target %s", path, name, dtype ? dtype : "-",
                 c->target);
        moegen_kernel *kernel = get(engine, path, name, dtype, c->target);
        size_t width = typed ? width_of(dtype) : 0;
        if (kernel)
            try_kernel(kernel, widths >> width & 1);
        widths |= (size_t)1 << width;
        moegen_kernel_release(kernel);
    }
}

/* ---- all of them ---- */

static struct list {
    struct {
        char path[600], name[100];
    } * at;
    int count, room;
} list;

/* Shared with the process that tries: how far it is. */
static struct progress {
    int next, bad; /* the next case; how many have complaints */
} * progress;

static void add_case(const char *path, const char *name, void *ctx)
{
    (void)ctx;
    if (list.count == list.room) {
        list.room = 2 * list.room + 256;
        list.at = realloc(list.at, (size_t)list.room * sizeof *list.at);
        if (!list.at)
            exit(2);
    }
    snprintf(list.at[list.count].path, sizeof list.at->path, "%s", path);
    snprintf(list.at[list.count++].name, sizeof list.at->name, "%s", name);
}

/* From where the last process ended. */
static void try_cases(const struct choice *c)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = shared_cache()};
    moegen_engine *engine = NULL;
    name_faults();
    if (moegen_engine_create(&options, &engine, NULL))
        return;
    while (progress->next < list.count) {
        int at = progress->next++;
        failures = 0;
        turn = at + 1;
        try_case(engine, list.at[at].path, list.at[at].name, c);
        progress->bad += failures != 0;
        fflush(stdout);
    }
    moegen_engine_release(engine);
}

static void in_new_process(const struct choice *c)
{
    int status = 0, begin = progress->next;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        try_cases(c);
        _exit(0);
    }
    bool whole = child > 0 && waitpid(child, &status, 0) == child && status == 0;
    if (whole && progress->next == list.count)
        return;
    progress->next += progress->next == begin; /* not even begun */
    progress->bad++;
    if (WIFSIGNALED(status))
        printf("FAIL %s: %s\n", list.at[progress->next - 1].name, strsignal(WTERMSIG(status)));
}

int main(int argc, char **argv)
{
    struct choice c = {argc > 3 && *argv[3] ? argv[3] : NULL, argc > 4 ? argv[4] : "auto"};
    if (argc < 2 || each_case(argv[1], argc > 2 ? argv[2] : "", add_case, NULL) < 0) {
        fprintf(stderr, "usage: pages_test DIRECTORY [FAMILY[:CASE] [DTYPE [TARGET]]]\n");
        return 2;
    }
    progress =
        mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED)
        return 2;
    while (progress->next < list.count)
        in_new_process(&c);
    printf("%d cases, %d bad\n", list.count, progress->bad);
    free(list.at);
    return progress->bad != 0 || list.count == 0;
}
