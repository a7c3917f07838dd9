/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.c - the families that have a float64 reference.
 *
 * A new family: write ref_NAME.c with rt_fill_NAME (adds every input the kernel's argument list
 * names, random, in the spec's dtypes) and rt_compute_NAME (adds every output as f64, from
 * SEMANTICS.md and never from the templates); add ROW(NAME) to RT_FAMILIES in reference.h. CMake
 * picks the file up by itself. Helpers: fill.c for any family, moe.c for the moe_ ones, weights.c
 * for experts' matrices in any layout and format.
 */
#include <string.h>

#include "reference.h"

#define COMPUTE(name)                                                                              \
    static moegen_rt_status compute_##name(const moegen_rt_problem *p, const moegen_rt_want *want, \
                                           moegen_rt_problem *out, moegen_rt_error *err)           \
    {                                                                                              \
        return rt_conditioned(rt_compute_##name, p, want, out, err);                               \
    }
RT_FAMILIES(COMPUTE)

#define REFERENCE(name) {#name, rt_fill_##name, compute_##name},
static const moegen_rt_reference references[] = {RT_FAMILIES(REFERENCE)};
enum { REFERENCES = sizeof references / sizeof *references };

const moegen_rt_reference *moegen_rt_reference_at(int i)
{
    return i >= 0 && i < REFERENCES ? &references[i] : NULL;
}

const moegen_rt_reference *moegen_rt_reference_find(const char *family)
{
    for (int i = 0; i < REFERENCES; i++)
        if (strcmp(references[i].family, family) == 0)
            return &references[i];
    return NULL;
}
