/* SPDX-License-Identifier: Apache-2.0 */
/* pages.h - a call with each tensor, and the workspace, between pages that nobody may touch; for
 * programs that try cases.h: included once by each. */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases.h"

enum { MOST = 512, LINE = 64, IDLE_BYTES = 64 << 20 };

/* Where a tensor lies: [page nobody may touch][bytes][another one]. */
static struct place {
    const char *name;
    char *at, *from, *to; /* the tensor; the pages in between */
} places[MOST];
static int placed;
/* Pages of earlier tensors, which nobody may touch until a tensor of that size comes. */
static struct idle {
    char *from;
    size_t room;
} idle[MOST];
static int idles;
static size_t idle_bytes;
static size_t workspace_bytes, workspace_limit = SIZE_MAX; /* of the last call; what is too much */

enum placing { AT_END, AT_START, ONE_ELEMENT_ON, PLACINGS };
static const char *const placing_names[] = {"at the end", "at the start", "one element on"};

/* ---- memory ---- */

static inline void on_fault(int signal, siginfo_t *info, void *context)
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

/* From now on. */
static inline void name_faults(void)
{
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGBUS, &fault, NULL);
}

/* Unmaps those that are idle. */
static inline void forget_idle(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    while (idles > 0) {
        idles--;
        munmap(idle[idles].from - page, idle[idles].room + 2 * page);
    }
    idle_bytes = 0;
}

/* So many bytes of whole pages between two that nobody may touch, or NULL. */
static inline char *take_pages(size_t room, size_t page)
{
    for (int i = 0; i < idles; i++)
        if (idle[i].room == room) {
            char *from = idle[i].from;
            idle[i] = idle[--idles];
            idle_bytes -= room;
            return room && mprotect(from, room, PROT_READ | PROT_WRITE) ? NULL : from;
        }
    char *base = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || (room && mprotect(base + page, room, PROT_READ | PROT_WRITE)))
        return NULL;
    return base + page;
}

static void *place(const char *name, size_t bytes, size_t element, enum placing how)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (bytes + (how == ONE_ELEMENT_ON ? element : 0) + page - 1) / page * page;
    struct place *p = &places[placed];
    char *from = placed < MOST ? take_pages(room, page) : NULL;
    if (!from) {
        printf("FAIL %s: no memory for %s\n", where, name);
        exit(2);
    }
    *p = (struct place){name, NULL, from, from + room};
    p->at = how == AT_END ? p->to - bytes : how == AT_START ? p->from : p->from + element;
    placed++;
    return p->at;
}

static void take_back(void)
{
    for (; placed > 0; placed--) {
        struct idle now = {places[placed - 1].from,
                           (size_t)(places[placed - 1].to - places[placed - 1].from)};
        if (idles == MOST || idle_bytes + now.room > IDLE_BYTES)
            forget_idle();
        if (now.room)
            mprotect(now.from, now.room, PROT_NONE);
        idle[idles++] = now;
        idle_bytes += now.room;
    }
}

/* ---- one call ---- */

/* A tensor whose matrices have addresses of their own, each between such pages. */
static moegen_status bind_list(moegen_call *call, const moegen_arg *a, const moegen_rt_tensor *t,
                               enum placing how, moegen_error **err)
{
    const void *list[MOST];
    size_t each = t->bytes / (size_t)t->shape[0];
    for (int64_t i = 0; i < t->shape[0] && i < MOST; i++) {
        int64_t e = i % 2 ? i : t->shape[0] - 1 - i - (t->shape[0] + 1) % 2; /* in no order */
        void *data = place(a->name, each, moegen_dtype_size(a->dtype), how);
        memcpy(data, (const char *)t->data + (size_t)e * each, each);
        list[e] = data;
    }
    return moegen_call_bind_experts(call, a->name, list, t->shape[0], a->dtype, t->rank - 1,
                                    t->shape + 1, err);
}

static moegen_status bind_inputs(moegen_call *call, const moegen_kernel *kernel,
                                 const moegen_rt_problem *in, enum placing how, moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < kernel->unit->facts.arg_count && !status; i++) {
        const moegen_arg *a = &kernel->unit->arg[i];
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, a->name);
        if (a->role != MOEGEN_IN || !t)
            continue;
        if (kernel->unit->listed[i]) {
            status = bind_list(call, a, t, how, err);
            continue;
        }
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

static inline void compare(const moegen_rt_problem *want, const moegen_rt_problem *out)
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

static inline void run(const moegen_kernel *kernel, const moegen_rt_problem *in,
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
        !(status = bind_inputs(call, kernel, in, how, &err)) &&
        !(status = bind_outputs(call, &facts, in, out, how, &err)) &&
        !(status = moegen_call_workspace_bytes(call, &bytes, &err))) {
        workspace_bytes = bytes = (bytes + LINE - 1) / LINE * LINE;
        if (bytes > workspace_limit) {
            status = MOEGEN_NO_MEMORY;
            error_set(&err, status, "its workspace is %zu bytes, of %zu", bytes, workspace_limit);
            goto done;
        }
        void *workspace = place("the workspace", bytes, LINE, how == AT_END ? AT_END : AT_START);
        moegen_rt_poison(MOEGEN_RT_F32, workspace, bytes / 4);
        if (!(status = moegen_call_set_workspace(call, workspace, bytes, &err)))
            status = moegen_call_run(call, &err);
    }
done:
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    else
        compare(want, out);
    moegen_error_release(err);
    moegen_call_release(call);
    moegen_rt_problem_destroy(out);
    take_back();
}
