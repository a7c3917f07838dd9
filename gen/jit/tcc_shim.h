/* SPDX-License-Identifier: Apache-2.0 */
/* tcc_shim.h - what jit.c asks of tcc_shim.c. One thread at a time. */
#ifndef MOEGEN_TCC_SHIM_H
#define MOEGEN_TCC_SHIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>

extern size_t tcc_shim_limit;      /* bytes one compile may use; tests lower it */
extern sigjmp_buf tcc_shim_escape; /* where libtcc goes instead of exit() */
extern const char
    *tcc_shim_reason; /* why it went there, or NULL: it has said so in its last message */

bool tcc_shim_setup(void); /* once, before anything else; false: out of memory */
void tcc_shim_reset(void); /* after each compile: libtcc is as new */

#endif
