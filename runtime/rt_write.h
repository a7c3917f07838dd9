/* SPDX-License-Identifier: Apache-2.0 */
/* rt_write.h - how files are written in a host's process; not for the callers of kernels. */
#ifndef MOEGEN_RT_WRITE_H
#define MOEGEN_RT_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* write(2) until all is written; errno. No signal where the size of files is limited. */
bool rt_write_all(int fd, const void *bytes, size_t len);
/* The same from a place of the file on. */
bool rt_write_at(int fd, const void *bytes, size_t len, int64_t offset);

/* Where a file of this path is, or would be made: behind its last links. Caller frees; NULL: errno.
 */
char *rt_follow(const char *path);

#endif
