/* SPDX-License-Identifier: Apache-2.0 */
/* rt_file.h - tensor files that are mapped, and such as are written part by part: for files that
 * may be larger than memory. */
#ifndef MOEGEN_RT_FILE_H
#define MOEGEN_RT_FILE_H

#include "moegen_runtime.h"

/* As moegen_rt_safetensors_read_with, but tensors lie in the mapped file, which the problem keeps:
 * they must not be written to, nor may the file become shorter. Where a file cannot be mapped, it
 * is read. */
moegen_rt_status rt_file_map(const char *path, moegen_rt_problem *problem,
                             moegen_rt_problem *metadata, moegen_rt_error *err);

/* A file that is being written: whole, or not at all. */
struct rt_file;

/* Begins one of tensors whose data come later: names, dtypes, shapes and bytes count. */
moegen_rt_status rt_file_open(const char *path, const moegen_rt_tensor *tensors, size_t count,
                              const moegen_rt_problem *metadata, struct rt_file **out,
                              moegen_rt_error *err);
/* Bytes at .. at+len-1 of a tensor, by its index. Any thread, in any order, each byte once. What
 * fails is told at the end. */
void rt_file_put(struct rt_file *f, size_t tensor, size_t at, const void *bytes, size_t len);
/* Gives the file its name, or removes it; frees f in any case. */
moegen_rt_status rt_file_close(struct rt_file *f, moegen_rt_error *err);
/* Removes it; NULL is fine. */
void rt_file_drop(struct rt_file *f);

#endif
