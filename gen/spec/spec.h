/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h - a spec's text as a tree in which everything has its place. */
#ifndef MOEGEN_SPEC_SPEC_H
#define MOEGEN_SPEC_SPEC_H

#include "base/base.h"

struct lua_State;

enum { SPEC_MOST = 256 * 1024 }; /* bytes of a spec */
/* Reads YAML and pushes one node tree on L's stack:
 *     node = {kind="map"|"list"|"scalar", line=, col=, len=}         1-based, code points
 *     scalar: value=text, plain=not quoted; list: items={node,...}; map: entries={{key=scalar,
 * value=node},...} Bounded in every direction, so hostile text costs milliseconds. After an error
 * nothing is pushed and err holds every complaint that could be found, with its place and line.
 * file is the label of the text in messages. */
moegen_status spec_push(struct lua_State *L, const char *file, const char *text, size_t len,
                        moegen_error **err);
/* MOEGEN_OK, or what there is to say of a text that is too long: nobody may read it. */
moegen_status spec_fits(const char *file, size_t len, moegen_error **err);

#endif
