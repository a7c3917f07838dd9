/* SPDX-License-Identifier: Apache-2.0 */
/* call.h - a call, as call.c and call_check.c see it. */
#ifndef MOEGEN_CALL_H
#define MOEGEN_CALL_H

#include "unit.h"

struct bound {
    bool there;
    void *data;        /* NULL: without elements */
    const void **list; /* addresses of all matrices, owned, of a listed argument; else NULL */
    int rank;
    int64_t shape[MAX_RANK];
};

struct moegen_call {
    struct unit *unit;
    bool ready;           /* validated since the last change */
    int threads;          /* 0: the kernel's default */
    moegen_runner runner; /* NULL: ranks run on the crew's threads */
    void *host;
    struct bound bound[MAX_ARGS];
    int64_t given[MAX_DIMS]; /* sizes set by hand, or -1 */
    void *own, *lent;        /* workspace */
    size_t own_bytes, lent_bytes;
    union cell { /* the kernel's argument structure */
        const void *pointer;
        int64_t size;
    } cell[MAX_ARGS + MAX_DIMS + 2];
};

/* ---- call.c ---- */

int arg_find(const struct unit *u, const char *name); /* -1: there is none */
moegen_status unknown_arg(const struct unit *u, const char *name, moegen_error **err);

/* Has a tensor of this shape no elements? Then its data may be NULL and it is bound all the same.
 */
bool bind_is_empty(int rank, const int64_t *shape);

/* ---- pack.c ---- */

/* How a packed tensor lies: "K C run parts order", see packed.h, and 1 if it comes from rows that
 * are contracted, 0 from either layout of the experts' matrices; NULL: it is not packed. */
const char *packed_param(const struct unit *u, const char *tensor);

/* ---- experts.c ---- */

/* Replaces what is bound to an argument; takes over b->list. */
void bind_set(moegen_call *call, int arg, struct bound *b);
/* Tensors that an argument consists of: 1, or those of a list; and the bytes of one of a list. */
int64_t list_count(const struct unit *u, int arg);
size_t list_bytes(const struct unit *u, int arg);
/* The list of a listed argument whose matrices are one tensor, at b->data. */
moegen_status list_joined(const struct unit *u, int arg, struct bound *b, moegen_error **err);

/* ---- call_check.c ---- */

/* May a tensor of this dtype and shape be argument `arg`, for some sizes? */
moegen_status call_may_bind(const struct unit *u, int arg, moegen_dtype dtype,
                            const struct bound *b, moegen_error **err);
/* Every run-time size from what is given by hand, else from the first tensor that names it
 * (from[k], -1: no tensor), else from other sizes; a size is -1 where nothing fixes it. */
void call_solve(const moegen_call *c, int64_t *size, int *from);
/* All complaints about what is bound, then the argument structure without the workspace. */
moegen_status call_check(moegen_call *c, moegen_error **err);

#endif
