/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what the files of `moegen report` share. */
#ifndef MOEGEN_REPORT_H
#define MOEGEN_REPORT_H

#include "cli/compare/compare.h"

/* ---- html.c ---- */

void html_text(struct text *t, const char *s); /* with & < > " as entities */
/* A table; frees it. Numbers are to the right. */
void html_table(struct text *t, struct table *table);
/* The page around the sections. */
void html_page(struct text *out, const char *title, const struct text *sections);

/* ---- of_bench.c, of_compare.c ---- */

/* Each adds to *out the table and the picture of a file of `bench --json`, or of `compare --json`.
 */
moegen_status report_bench(const struct json *j, struct text *out, moegen_error **err);
moegen_status report_compare(const struct json *j, struct text *out, moegen_error **err);

#endif
