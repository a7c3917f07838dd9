/* SPDX-License-Identifier: Apache-2.0 */
/* references.h - what the tests of the float64 references share; included once by each. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "moegen_runtime.h"

/* ---- problems ---- */

/* Sets "key value key value ...". */
static void set(moegen_rt_problem *p, const char *params)
{
    char text[512], *save = NULL;
    snprintf(text, sizeof text, "%s", params);
    for (char *key = strtok_r(text, " ", &save); key; key = strtok_r(NULL, " ", &save))
        moegen_rt_problem_set(p, key, strtok_r(NULL, " ", &save));
}

static void fill(moegen_rt_problem *p, const char *family, int64_t T, const char *routing)
{
    moegen_rt_error err = {""};
    moegen_rt_fill how = {.T = T, .seed = 11, .routing = routing};
    CHECK(!moegen_rt_reference_find(family)->fill(p, &how, &err), "%s: %s", family, err.text);
}

/* The outputs of a family; the caller destroys them. */
static moegen_rt_problem *outputs(const moegen_rt_problem *p, const char *family)
{
    moegen_rt_error err = {""};
    moegen_rt_problem *out = moegen_rt_problem_create();
    CHECK(!moegen_rt_reference_find(family)->compute(p, NULL, out, &err), "%s: %s", family,
          err.text);
    return out;
}

static inline double *data(const moegen_rt_problem *p, const char *name, int64_t *count)
{
    static double nothing;
    moegen_rt_tensor *t = moegen_rt_problem_tensor(p, name);
    CHECK(t && t->dtype == MOEGEN_RT_F64, "no f64 tensor %s", name);
    *count = t ? moegen_rt_tensor_count(t) : 0;
    return t ? t->data : &nothing;
}
