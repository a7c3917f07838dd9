/* SPDX-License-Identifier: Apache-2.0 */
/* cli_child.h - work in a process of its own, so that a crash of it is news and not the end. */
#ifndef MOEGEN_CLI_CHILD_H
#define MOEGEN_CLI_CHILD_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed memory that a child's writes reach the parent through; NULL: there is none. */
void *child_share(size_t bytes);
void child_unshare(void *memory, size_t bytes);
/* Runs work(ctx) in a child and waits. True when it came back; else how_it_ended says why not, in
 * words that follow "it crashed: ". Where no process can be made, work runs in this one. The caller
 * must be the only thread. */
bool child_run(void (*work)(void *ctx), void *ctx, char how_it_ended[128]);

#endif
