/* SPDX-License-Identifier: Apache-2.0 */
/* syntax.h - libyaml's complaints: spec_text.c for spec.c. */
#ifndef MOEGEN_SPEC_SYNTAX_H
#define MOEGEN_SPEC_SYNTAX_H

#include "base/base.h"

/* Reports why yaml_parser_parse failed on text, the parser's whole input. */
struct yaml_parser_s;
moegen_status spec_syntax(const struct yaml_parser_s *parser, const char *file, const char *text,
                          size_t len, moegen_error **err);

#endif
