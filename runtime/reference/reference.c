/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.c - the families that have a float64 reference.
 *
 * A new family: write ref_NAME.c with rt_fill_NAME (adds every input the kernel's argument list
 * names, random, in the spec's dtypes) and rt_compute_NAME (adds every output as f64, from
 * SEMANTICS.md and never from the templates); add RT_FAMILY(NAME) to reference.h and
 * ROW(NAME) below. CMake picks the file up by itself. Helpers: fill.c for any family, moe.c for the
 * moe_ ones, weights.c for experts' matrices in any layout and format.
 */
#include <string.h>

#include "reference.h"

#define ROW(name)                                                                                  \
    {                                                                                              \
#name, rt_fill_##name, rt_compute_##name                                                   \
    }
static const moegen_rt_reference references[] = {
    ROW(moe_forward), ROW(moe_index),   ROW(moe_backward), ROW(grouped_gemm),
    ROW(router),      ROW(mlp_forward), ROW(mlp_backward), ROW(moe_layer),
};
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
