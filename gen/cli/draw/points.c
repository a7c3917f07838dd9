/* SPDX-License-Identifier: Apache-2.0 */
/* points.c - what roofline.c and lines.c draw. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

void points_add(struct points *p, const char *kernel, const char *variant, struct point values)
{
    struct point *more = realloc(p->point, (size_t)(p->count + 1) * sizeof *more);
    p->lost = p->lost || !more;
    if (!more)
        return;
    p->point = more;
    struct point *x = &p->point[p->count++];
    *x = values;
    x->kernel = strdup(kernel);
    x->variant = strdup(variant);
    if (x->kernel && x->variant)
        return;
    free(x->kernel);
    free(x->variant);
    p->count--;
    p->lost = true;
}

void ceilings_add(struct points *p, const struct ceiling *c)
{
    for (int i = 0; i < p->ceilings; i++)
        if (strcmp(p->ceiling[i].name, c->name) == 0 && !(p->ceiling[i].threads > c->threads) &&
            !(p->ceiling[i].threads < c->threads))
            return;
    if (!(c->gflops > 0) || !(c->gbps > 0) || !isfinite(c->gflops * c->gbps))
        return;
    struct ceiling *more = realloc(p->ceiling, (size_t)(p->ceilings + 1) * sizeof *more);
    p->lost = p->lost || !more;
    if (!more)
        return;
    p->ceiling = more;
    p->ceiling[p->ceilings++] = *c;
}

void points_free(struct points *p)
{
    for (int i = 0; i < p->count; i++) {
        free(p->point[i].kernel);
        free(p->point[i].variant);
    }
    free(p->point);
    free(p->ceiling);
    *p = (struct points){0};
}
