/* SPDX-License-Identifier: Apache-2.0 */
/* x86.h - the JIT's x86-64: module "encode" of gen/lua/arch/x86/code.lua, which makes the machine
 * and the coders that tape.c takes. */
#ifndef MOEGEN_ARCH_X86_X86_H
#define MOEGEN_ARCH_X86_X86_H

struct lua_State;

int encode_open(struct lua_State *L); /* pushes module "encode" */

#endif
