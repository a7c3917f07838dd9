/* SPDX-License-Identifier: Apache-2.0 */
/* pages_test.c - every case of tests/kernels with each tensor, and the workspace, between pages
 * that nobody may touch: against the one after it, against the one before it, and an element away
 * from that one, which is all the alignment that an element needs. The answers are compared with
 * float64; without tokens gradients and outputs are zero. A process of its own for each case.
 *
 *     pages_test DIRECTORY [FAMILY[:CASE] [DTYPE [TARGET]]] */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"

enum { MOST = 64, LINE = 64 };

/* Where a tensor lies: [page nobody may touch][bytes][another one]. */
static struct place {
    const char *name;
    char *at, *from, *to; /* the tensor; the pages in between */
} places[MOST];
static int placed;

enum placing { AT_END, AT_START, ONE_ELEMENT_ON, PLACINGS };
static const char *const placing_names[] = {"at the end", "at the start", "one element on"};

/* ---- memory ---- */

static void on_fault(int signal, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    long page = sysconf(_SC_PAGESIZE);
    const char *what = "none of the tensors";
    (void)context;
    for (int i = 0; i < placed; i++)
        if (at >= places[i].from - page && at < places[i].to + page)
            what = places[i].name;
    printf("FAIL %s: signal %d beside %s\n", where, signal, what);
    fflush(stdout);
    _exit(3);
}

static void *place(const char *name, size_t bytes, size_t element, enum placing how)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (bytes + (how == ONE_ELEMENT_ON ? element : 0) + page - 1) / page * page;
    struct place *p = &places[placed];
    char *base = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (placed == MOST || base == MAP_FAILED ||
        (room && mprotect(base + page, room, PROT_READ | PROT_WRITE))) {
        printf("FAIL %s: no memory for %s\n", where, name);
        exit(2);
    }
    *p = (struct place){name, NULL, base + page, base + page + room};
    p->at = how == AT_END ? p->to - bytes : how == AT_START ? p->from : p->from + element;
    placed++;
    return p->at;
}

static void take_back(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (; placed > 0; placed--)
        munmap(places[placed - 1].from - page,
               (size_t)(places[placed - 1].to - places[placed - 1].from) + 2 * page);
}

/* ---- one call ---- */

static moegen_status bind_inputs(moegen_call *call, const moegen_kernel_facts *facts,
                                 const moegen_rt_problem *in, enum placing how, moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_arg *a = &facts->args[i];
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, a->name);
        if (a->role != MOEGEN_IN || !t)
            continue;
        void *data = place(a->name, t->bytes, moegen_dtype_size(a->dtype), how);
        memcpy(data, t->data, t->bytes);
        status = moegen_call_bind_const(call, a->name, data, (moegen_dtype)t->dtype, t->rank,
                                        t->shape, err);
    }
    return status;
}

static moegen_status bind_outputs(moegen_call *call, const moegen_kernel_facts *facts,
                                  const moegen_rt_problem *in, moegen_rt_problem *out,
                                  enum placing how, moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_arg *a = &facts->args[i];
        const moegen_rt_tensor *start = moegen_rt_problem_tensor(in, a->name);
        int rank;
        int64_t shape[8], count = 1;
        if (a->role == MOEGEN_IN)
            continue;
        if ((status = moegen_call_shape(call, a->name, &rank, shape, err)))
            break;
        for (int d = 0; d < rank; d++)
            count *= shape[d];
        size_t element = moegen_dtype_size(a->dtype);
        void *data = place(a->name, (size_t)count * element, element, how);
        moegen_rt_poison((moegen_rt_dtype)a->dtype, data, (size_t)count);
        if (a->role == MOEGEN_INOUT && start)
            memcpy(data, start->data, start->bytes);
        moegen_rt_problem_lend(out, a->name, (moegen_rt_dtype)a->dtype, rank, shape, data, NULL);
        status = moegen_call_bind(call, a->name, data, a->dtype, rank, shape, err);
    }
    return status;
}

static void compare(const moegen_rt_problem *want, const moegen_rt_problem *out)
{
    for (size_t i = 0; moegen_rt_problem_at(out, i); i++) {
        const moegen_rt_tensor *got = moegen_rt_problem_at(out, i);
        const moegen_rt_tensor *exact = moegen_rt_problem_tensor(want, got->name);
        moegen_rt_comparison r;
        moegen_rt_error why;
        if (!exact)
            complain(got->name, "no reference");
        else if (moegen_rt_compare(got, exact, &r, &why))
            complain(got->name, why.text);
        else if (!r.ok)
            complain(got->name, r.text);
    }
}

static void run(const moegen_kernel *kernel, const moegen_rt_problem *in,
                const moegen_rt_problem *want, int threads, enum placing how)
{
    moegen_kernel_facts facts = {.struct_size = sizeof facts};
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    size_t bytes = 0;
    moegen_status status = moegen_kernel_info(kernel, &facts);
    if (!status && !(status = moegen_call_create(kernel, &call, &err)) &&
        !(status = moegen_call_set_threads(call, threads, &err)) &&
        !(status = bind_inputs(call, &facts, in, how, &err)) &&
        !(status = bind_outputs(call, &facts, in, out, how, &err)) &&
        !(status = moegen_call_workspace_bytes(call, &bytes, &err))) {
        bytes = (bytes + LINE - 1) / LINE * LINE;
        void *workspace = place("the workspace", bytes, LINE, how == AT_END ? AT_END : AT_START);
        moegen_rt_poison(MOEGEN_RT_F32, workspace, bytes / 4);
        if (!(status = moegen_call_set_workspace(call, workspace, bytes, &err)))
            status = moegen_call_run(call, &err);
    }
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    else
        compare(want, out);
    moegen_error_release(err);
    moegen_call_release(call);
    moegen_rt_problem_destroy(out);
    take_back();
}

/* ---- no tokens ---- */

/* Tensors of the shapes that no tokens give; inputs and what is added to hold zeros. */
static moegen_status bind_empty(moegen_call *call, const moegen_kernel_facts *facts,
                                moegen_rt_problem *all, moegen_error **err)
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
static void try_empty(const moegen_kernel *kernel)
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
        !(status = bind_empty(call, &facts, all, &err)))
        status = moegen_call_run(call, &err);
    if (status && !(may_refuse && status == MOEGEN_BAD_DATA))
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    else if (!status)
        expect_zeros(all);
    moegen_error_release(err);
    moegen_call_release(call);
    moegen_rt_problem_destroy(all);
    take_back();
}

/* ---- one case ---- */

static void try_kernel(const moegen_kernel *kernel)
{
    static const struct {
        int64_t tokens;
        const char *routing;
        int threads;
    } trials[] = {{1, "uniform", 1}, {19, "skewed", 3}, {38, "empty_last", 2}};
    const moegen_rt_reference *family = moegen_rt_reference_find(kernel->unit->facts.family);
    size_t len = strlen(where);
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        moegen_rt_problem *in = inputs(kernel, trials[i].tokens, trials[i].routing);
        moegen_rt_problem *want = moegen_rt_problem_create();
        moegen_rt_want what = {.padding_is_zero = 1};
        moegen_rt_error why = {{0}};
        if (family->compute(in, &what, want, &why))
            complain("no reference", why.text);
        for (int placing = 0; placing < PLACINGS; placing++) {
            snprintf(where + len, sizeof where - len, ", T=%d %s, tensors %s",
                     (int)trials[i].tokens, trials[i].routing, placing_names[placing]);
            run(kernel, in, want, trials[i].threads, (enum placing)placing);
        }
        where[len] = '\0';
        moegen_rt_problem_destroy(in);
        moegen_rt_problem_destroy(want);
    }
    snprintf(where + len, sizeof where - len, ", no tokens");
    try_empty(kernel);
}

/* In a process of its own: exit status 1 for complaints. */
static int try_case(const char *path, const char *name, const char *only_dtype, const char *target)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGBUS, &fault, NULL);
    snprintf(where, sizeof where, "%s:%s", path, name);
    if (moegen_engine_create(&options, &engine, NULL))
        return 2;
    moegen_kernel *kernel = get(engine, path, name, NULL, target);
    bool has_dtype = kernel && moegen_kernel_param(kernel, "dtype");
    if (kernel && !has_dtype)
        try_kernel(kernel);
    moegen_kernel_release(kernel);
    for (int d = 0; has_dtype && d < 3; d++) {
        if (only_dtype && strcmp(only_dtype, dtypes[d]) != 0)
            continue;
        snprintf(where, sizeof where, "%s:%s dtype %s target %s", path, name, dtypes[d], target);
        kernel = get(engine, path, name, dtypes[d], target);
        if (kernel)
            try_kernel(kernel);
        moegen_kernel_release(kernel);
    }
    moegen_engine_release(engine);
    return failures != 0;
}

struct choice {
    const char *dtype, *target;
    int bad;
};

static void in_new_process(const char *path, const char *name, void *ctx)
{
    struct choice *c = ctx;
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        status = try_case(path, name, c->dtype, c->target);
        fflush(stdout);
        _exit(status);
    }
    c->bad += !(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
                WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    struct choice c = {argc > 3 && *argv[3] ? argv[3] : NULL, argc > 4 ? argv[4] : "auto", 0};
    int cases = argc < 2 ? -1 : each_case(argv[1], argc > 2 ? argv[2] : "", in_new_process, &c);
    if (cases < 0) {
        fprintf(stderr, "usage: pages_test DIRECTORY [FAMILY[:CASE] [DTYPE [TARGET]]]\n");
        return 2;
    }
    printf("%d cases, %d bad\n", cases, c.bad);
    return c.bad != 0 || cases == 0;
}
