/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c - damaged tensor files: read or refused with a sentence, and what is read is
 * sound: named, inside the data without overlap, and the same after writing and reading again.
 *
 *     fuzz_safetensors RUNS */
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "runtime_private.h"

enum { HEADS = 8 }; /* bytes of the length before the header */

/* Tensors that were accepted: how they lie in `data_bytes`. */
static void check_entries(const struct rt_entry *e, size_t count, uint64_t data_bytes)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        require(e[i].name && *e[i].name, "a tensor has a name");
        for (const char *c = e[i].name; *c; c += rt_utf8(c))
            require(rt_utf8(c) > 0, "a name is UTF-8");
        require(e[i].rank >= 0 && e[i].rank <= 8, "a tensor has at most 8 dimensions");
        require(e[i].begin <= e[i].end && e[i].end <= data_bytes, "a tensor is inside the data");
        if (e[i].dtype == MOEGEN_RT_DTYPES)
            bytes = e[i].end - e[i].begin; /* nobody knows better */
        else
            require(rt_tensor_bytes(e[i].dtype, e[i].rank, e[i].shape, &bytes),
                    "a shape has a size");
        require(bytes == e[i].end - e[i].begin, "a tensor has the bytes of its shape");
        covered += bytes;
        for (size_t k = 0; k < i; k++) {
            require(strcmp(e[i].name, e[k].name) != 0, "names differ");
            require(e[i].begin >= e[k].end || e[k].begin >= e[i].end || bytes == 0 ||
                        e[k].begin == e[k].end,
                    "tensors do not overlap");
        }
    }
    require(covered == data_bytes, "tensors cover the data");
}

/* A header in memory of exactly its size, with a data section of each size that a seed has. */
static void try_header(const char *text, size_t len)
{
    static const uint64_t sizes[] = {0, 8, 19, 40};
    char *copy = malloc(len + 1);
    require(copy != NULL, "no memory");
    memcpy(copy, text, len);
    copy[len] = '\0';
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct rt_entry *entries = NULL;
        size_t count = 0;
        moegen_rt_error err = {""};
        moegen_rt_problem *texts = i % 2 ? moegen_rt_problem_create() : NULL;
        moegen_rt_status status =
            rt_header_parse("fuzz", copy, len, sizes[i], &entries, &count, texts, &err);
        if (status == MOEGEN_RT_OK)
            check_entries(entries, count, sizes[i]);
        else
            require(strncmp(err.text, "fuzz: ", 6) == 0 && err.text[6], "a refusal says why");
        rt_entries_free(entries, count);
        moegen_rt_problem_destroy(texts);
    }
    free(copy);
}

static bool same(const moegen_rt_tensor *a, const moegen_rt_tensor *b)
{
    return b && a->dtype == b->dtype && a->rank == b->rank && a->bytes == b->bytes &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0 &&
           (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

/* What was read is written, read again, and the same. A name that cannot be written is refused. */
static void write_again(const moegen_rt_problem *p)
{
    static moegen_rt_tensor list[64];
    char path[] = "/tmp/moegen-fuzz-XXXXXX";
    size_t count = 0;
    moegen_rt_error err = {""};
    while (count < 64 && moegen_rt_problem_at(p, count)) {
        list[count] = *moegen_rt_problem_at(p, count);
        count++;
    }
    int fd = mkstemp(path);
    require(fd >= 0, "no temporary file");
    close(fd);
    moegen_rt_status status = moegen_rt_safetensors_write(path, list, count, &err);
    moegen_rt_problem *again = moegen_rt_problem_create();
    if (status == MOEGEN_RT_OK) {
        require(moegen_rt_safetensors_read(path, again, &err) == MOEGEN_RT_OK, err.text);
        for (size_t i = 0; i < count; i++)
            require(same(&list[i], moegen_rt_problem_tensor(again, list[i].name)),
                    "what was read differs after writing and reading again");
    } else {
        require(status == MOEGEN_RT_BAD_ARGUMENT && *err.text, "cannot write what was read");
    }
    moegen_rt_problem_destroy(again);
    unlink(path);
}

static long accepted; /* files */

/* A whole file: an 8-byte length, the header, the data. */
static void try_file(const char *text, size_t len)
{
    char path[64];
    moegen_rt_error err = {""};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, text, len) == (ssize_t)len, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    moegen_rt_problem *p = moegen_rt_problem_create();
    moegen_rt_status status = moegen_rt_safetensors_read(path, p, &err);
    if (status == MOEGEN_RT_OK)
        write_again(p);
    accepted += status == MOEGEN_RT_OK;
    if (status != MOEGEN_RT_OK)
        require(strncmp(err.text, path, strlen(path)) == 0 && !moegen_rt_problem_at(p, 0),
                "a refusal names the file and leaves nothing behind");
    moegen_rt_problem_destroy(p);
    close(fd);
}

/* The file with a length that leads to the end of the header, where it has one. */
static void try_fitted(const char *text, size_t len)
{
    uint64_t header = len;
    while (header > HEADS && text[header - 1] != '}')
        header--;
    char *copy = malloc(len);
    require(copy != NULL, "no memory");
    memcpy(copy, text, len);
    header -= HEADS;
    memcpy(copy, &header, sizeof header);
    try_file(copy, len);
    free(copy);
}

static void try(const char *text, size_t len)
{
    try_file(text, len);
    if (len > HEADS)
        try_fitted(text, len);
    if (len > HEADS)
        try_header(text + HEADS, len - HEADS);
}

#ifndef MOEGEN_LIBFUZZER

static const struct {
    const char *header;
    size_t data;
} seeds[] = {
    {"{}", 0},
    {"{\"__metadata__\":{\"k\":\"v\"}}", 0},
    {"{\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8},
    {"{\"aa\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\"b\\u00e9\":"
     "{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[16,19]}}",
     19},
    {" {\"x\" : {\"shape\":[ 2 , 5 ], \"data_offsets\":[0, 20],\n\"dtype\":\"BF16\"},"
     "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[20,20]},"
     "\"\\ud83d\\ude00\\/\":{\"dtype\":\"I32\",\"shape\":[5,1],\"data_offsets\":[20,40]}}  ",
     40},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1,1e3,1.5],\"data_offsets\":[8,4]}} x", 8},
};

int main(int argc, char **argv)
{
    static const char signs[] = "{}[]:,\"\\/ubfnrt0123456789 eE.-+\n\0\x1f\xC3\xFF";
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        struct text file = {0};
        uint64_t len = strlen(seeds[i].header);
        text_add(&file, (const char *)&len, sizeof len);
        text_add(&file, seeds[i].header, (size_t)len);
        for (size_t k = 0; k < seeds[i].data; k++)
            text_add(&file, &"\x11\x22\x33\x44"[k % 4], 1);
        seed_add(file.at, file.len);
        text_free(&file);
    }
    fuzz(argc > 1 ? atol(argv[1]) : 10000, signs, sizeof signs - 1);
    printf("%ld files could be read\n", accepted);
    require(accepted > (long)(sizeof seeds / sizeof *seeds), "no damaged file could be read");
    return 0;
}

#endif
