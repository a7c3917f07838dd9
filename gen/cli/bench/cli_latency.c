/* SPDX-License-Identifier: Apache-2.0 */
/* cli_latency.c - how long from a spec's text to a callable kernel: generated, from disk, from
 * memory. */
#include "bench.h"

enum { ENGINES = 7, HITS = 2000 };

/* One kernel from an engine of its own; *hit, if asked for, is the mean of many repetitions. */
static moegen_status once(const struct job *j, int k, const char *cache_dir, double *first,
                          double *hit, moegen_error **err)
{
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = cache_dir, .threads = 1};
    moegen_engine *engine = NULL;
    moegen_kernel *kernel = NULL;
    moegen_spec spec = job_spec(j, k, 0);
    moegen_status status = moegen_engine_create(&o, &engine, err);
    double start = seconds_now();
    if (!status)
        status = moegen_kernel_get(engine, &spec, &kernel, err);
    *first = seconds_now() - start;
    moegen_kernel_release(kernel);
    start = seconds_now();
    for (int i = 0; hit && i < HITS && !status; i++) {
        status = moegen_kernel_get(engine, &spec, &kernel, err);
        if (!status)
            moegen_kernel_release(kernel);
    }
    if (hit)
        *hit = (seconds_now() - start) / HITS;
    moegen_engine_release(engine);
    return status;
}

moegen_status latency_measure(const struct job *j, int k, struct latency *out, moegen_error **err)
{
    char dir[FOLDER_NAME];
    struct samples cold = {0}, disk = {0}, memory = {0};
    moegen_status status = MOEGEN_OK;
    double first, hit;
    if (!folder_open("latency", dir))
        return error_set(err, MOEGEN_IO, "cannot make a directory in %s", file_temporary());
    for (int i = 0; i < ENGINES && !status; i++)
        if (!(status = once(j, k, "", &first, &hit, err))) {
            samples_add(&cold, first);
            samples_add(&memory, hit);
        }
    for (int i = 0; i <= ENGINES && !status; i++)
        if (!(status = once(j, k, dir, &first, NULL, err)) && i) /* the first one fills the cache */
            samples_add(&disk, first);
    out->cold = samples_at(&cold, 0.5);
    out->disk = samples_at(&disk, 0.5);
    out->memory = samples_at(&memory, 0.5);
    samples_free(&cold);
    samples_free(&disk);
    samples_free(&memory);
    folder_close(dir);
    return status;
}
