/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - kernels of a spec whose settings are one text; included once by each test. */
#include <string.h>

#include "check.h"
#include "moegen.h"

enum { SETTINGS = 24 };

/* The kernel of the spec `head`, with the overrides "key value key value ...", which is cut. */
static moegen_kernel *kernel_with(moegen_engine *engine, const char *head, char *settings)
{
    moegen_override set[SETTINGS];
    moegen_spec spec = {
        .struct_size = sizeof spec, .text = head, .len = strlen(head), .overrides = set};
    char *save = NULL, *key = strtok_r(settings, " ", &save);
    for (; key && spec.override_count < SETTINGS; key = strtok_r(NULL, " ", &save))
        set[spec.override_count++] = (moegen_override){key, strtok_r(NULL, " ", &save)};
    CHECK(!key, "more than %d settings", SETTINGS);
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_kernel_get(engine, &spec, &kernel, &err);
    CHECK(!status, "%s", moegen_error_text(err));
    moegen_error_release(err);
    return kernel;
}
