/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor files: round trip, every rule of the header, nothing half-written, random damage. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "moegen_runtime.h"

static char folder[] = "runtime_safetensors_XXXXXX";
static char path[128];
static char nowhere[128]; /* in a folder that is not there */

static void write_file(const char *header, size_t len, size_t data)
{
    FILE *f = fopen(path, "wb");
    uint64_t n = len;
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, len, f);
    for (size_t i = 0; i < data; i++)
        fputc((int)(i & 255), f);
    fclose(f);
}

static const struct refused {
    const char *header;
    size_t data;
    const char *says;
} refused[] = {
    {"", 0, "expected '{'"},
    {"[]", 0, "expected '{'"},
    {"{", 0, "expected a string"},
    {"{} x", 0, "text after the end"},
    {"{}", 4, "cover 0 of 4 bytes"},
    {"{\"a\":1}", 0, "'a': expected '{'"},
    {"{\"a\":{}}", 0, "'a': expected a string"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "are all needed"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
     "unknown key 'x'"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4, "'dtype' twice"},
    {"{\"a\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "dtype 'BOOL'"},
    {"{\"a\":{\"dtype\":\"\\u001b[31m\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
     "dtype '?[31m'"},
    {"{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "'F8_E8M0' is not"},
    {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2,
     "I8 of shape [4] needs 4"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "needs 4 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "not inside the data"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", 8, "not inside the data"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "not negative"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "leading zeros"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "expected ']'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]}}", 4, "expected ']'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, "needs two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "more than 2"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
     "more than 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
     "too large"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0,
     "too large"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0,
     "too large"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
     6, "'b' overlaps"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[5,6]}}",
     6, "'b' leaves a hole"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
     8, "'a' twice"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "empty name"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},}", 4, "expected a string"},
    {"{\"a", 0, "does not end"},
    {"{\"a\\", 0, "unknown escape"},
    {"{\"a\\x\":1}", 0, "unknown escape"},
    {"{\"a\\u12\":1}", 0, "four hexadecimal"},
    {"{\"a\\u0000\":1}", 0, "NUL"},
    {"{\"\\ud800\":1}", 0, "surrogate"},
    {"{\"\\ud800\\u0041\":1}", 0, "surrogate"},
    {"{\"\\udc00\":1}", 0, "surrogate"},
    {"{\"a\n\":1}", 0, "control character"},
    {"{\"a\\u001b\":1}", 0, "a name holds a control character"},
    {"{\"a\x7f\":1}", 0, "a name holds a control character"},
    {"{\"a\\u009b\":1}", 0, "a name holds a control character"},
    {"{\"a\":{\"k\\u001b\\u009b\":1}}", 0, "unknown key 'k\?\?\?'"},
    {"{\"\xff\":1}", 0, "not UTF-8"},
    {"{\"\xc0\x80\":1}", 0, "not UTF-8"},
    {"{\"\xe2\x82", 0, "not UTF-8"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
};

static void refusals(void)
{
    moegen_rt_problem *p = moegen_rt_problem_create();
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct refused *r = &refused[i];
        moegen_rt_error err = {""};
        write_file(r->header, strlen(r->header), r->data);
        moegen_rt_status status = moegen_rt_safetensors_read(path, p, &err);
        CHECK(status == MOEGEN_RT_BAD_DATA, "%s was read (%d)", r->header, (int)status);
        CHECK(strstr(err.text, r->says) && strncmp(err.text, path, strlen(path)) == 0,
              "%s: says '%s', expected '%s'", r->header, err.text, r->says);
        CHECK(!moegen_rt_problem_at(p, 0), "%s left a tensor behind", r->header);
    }
    moegen_rt_error err;
    char name[300] = "{\"";
    memset(name + 2, 'n', 257);
    write_file(name, 259, 0);
    CHECK(moegen_rt_safetensors_read(path, p, &err) && strstr(err.text, "longer than 256"), "%s",
          err.text);
    FILE *f = fopen(path, "wb");
    fputs("abc", f);
    fclose(f);
    CHECK(moegen_rt_safetensors_read(path, p, &err) && strstr(err.text, "only 3 bytes"), "%s",
          err.text);
    f = fopen(path, "wb");
    fwrite("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, 1, f);
    fclose(f);
    CHECK(moegen_rt_safetensors_read(path, p, &err) && strstr(err.text, "not a tensor file"), "%s",
          err.text);
    CHECK(moegen_rt_safetensors_read(folder, p, &err) == MOEGEN_RT_IO, "%s", err.text);
    CHECK(moegen_rt_safetensors_read(nowhere, p, &err) == MOEGEN_RT_IO, "%s", err.text);
    moegen_rt_problem_destroy(p);
}

static void accepted(void)
{
    static const char header[] =
        " {\"__metadata__\" : {\"format\":\"p\\\"t\", \"\\ud83d\\ude00\":\"\"} , "
        "\"a\\/\\u00e9\\\\\":{\"shape\":[ 2 , 3 ],"
        "\"data_offsets\":[0,6],\n\"dtype\":\"U8\"},\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_"
        "offsets\":[6,8]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]}}   ";
    moegen_rt_problem *p = moegen_rt_problem_create();
    moegen_rt_error err = {""};
    write_file(header, sizeof header - 1, 8);
    CHECK(moegen_rt_safetensors_read(path, p, &err) == MOEGEN_RT_OK, "%s", err.text);
    moegen_rt_tensor *a = moegen_rt_problem_tensor(p, "a/\xc3\xa9\\"),
                     *s = moegen_rt_problem_tensor(p, "s");
    CHECK(a && a->rank == 2 && a->shape[1] == 3 && ((uint8_t *)a->data)[5] == 5, "a");
    CHECK(s && s->rank == 0 && *(uint16_t *)s->data == 0x0706 && moegen_rt_tensor_count(s) == 1,
          "s");
    moegen_rt_tensor *none = moegen_rt_problem_tensor(p, "none");
    CHECK(none && none->bytes == 0 && moegen_rt_tensor_count(none) == 0, "none");
    moegen_rt_problem_destroy(p);
}

static int is_wanted(void *user, const char *name)
{
    return strchr(user, *name) != NULL;
}

/* Files have tensors of dtypes that nothing here has: that is for whoever wants those. */
static void other_dtypes(void)
{
    static const char header[] =
        "{\"m\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"c\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[3,5]},"
        "\"s\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[5,6]},"
        "\"p\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[6,8]}}";
    static char wanted[][5] = {"cs", "", "cm", "p"};
    static const char *const says[] = {"", "", "'m': dtype 'BOOL'", "'p': dtype 'F4'"};
    write_file(header, sizeof header - 1, 8);
    for (int i = 0; i < 4; i++) {
        moegen_rt_problem *p = moegen_rt_problem_create();
        moegen_rt_error err = {""};
        moegen_rt_safetensors_read_some(path, p, is_wanted, wanted[i], &err);
        CHECK(*says[i] ? strstr(err.text, says[i]) != NULL : !*err.text, "%d: %s", i, err.text);
        moegen_rt_tensor *c = moegen_rt_problem_tensor(p, "c"),
                         *s = moegen_rt_problem_tensor(p, "s");
        CHECK((c && s) == (i == 0), "%d", i);
        CHECK(i || (c->dtype == MOEGEN_RT_U8 && ((uint8_t *)c->data)[1] == 4), "c");
        CHECK(i || (s->dtype == MOEGEN_RT_U8 && ((uint8_t *)s->data)[0] == 5), "s");
        moegen_rt_problem_destroy(p);
    }
}

static void round_trip(void)
{
    moegen_rt_problem *p = moegen_rt_problem_create(), *q = moegen_rt_problem_create();
    moegen_rt_tensor list[MOEGEN_RT_DTYPES + 1], *t;
    moegen_rt_error err = {""};
    for (int d = 0; d < MOEGEN_RT_DTYPES; d++) {
        char name[32];
        int64_t shape[3] = {d, 3, 5};
        snprintf(name, sizeof name, "t \"%d\\\xc3\xa9", d);
        CHECK(!moegen_rt_problem_add(p, name, (moegen_rt_dtype)d, 3, shape, &t, &err), "%s",
              err.text);
        for (size_t i = 0; i < t->bytes; i++)
            ((uint8_t *)t->data)[i] = (uint8_t)(i * 7 + (size_t)d);
        list[d] = *t;
    }
    CHECK(moegen_rt_safetensors_write(path, list, MOEGEN_RT_DTYPES, &err) == MOEGEN_RT_OK, "%s",
          err.text);
    CHECK(moegen_rt_safetensors_read(path, q, &err) == MOEGEN_RT_OK, "%s", err.text);
    for (int d = 0; d < MOEGEN_RT_DTYPES; d++) {
        t = moegen_rt_problem_tensor(q, list[d].name);
        CHECK(t && t->dtype == list[d].dtype && t->rank == 3 && t->bytes == list[d].bytes &&
                  memcmp(t->shape, list[d].shape, 3 * sizeof *t->shape) == 0 &&
                  memcmp(t->data, list[d].data, t->bytes) == 0 && (uintptr_t)t->data % 64 == 0,
              "%s", list[d].name);
    }
    list[MOEGEN_RT_DTYPES] = list[0];
    CHECK(moegen_rt_safetensors_write(path, list, MOEGEN_RT_DTYPES + 1, &err) &&
              strstr(err.text, "twice"),
          "%s", err.text);
    list[0].name = "bad\n";
    CHECK(moegen_rt_safetensors_write(path, list, 1, &err) == MOEGEN_RT_BAD_ARGUMENT, "%s",
          err.text);
    list[0].name = "a";
    CHECK(moegen_rt_safetensors_write(nowhere, list, 1, &err) == MOEGEN_RT_IO, "%s", err.text);
    CHECK(moegen_rt_safetensors_write(folder, list, 1, &err) == MOEGEN_RT_IO, "%s", err.text);
    CHECK(moegen_rt_safetensors_write("/dev/full", list + 5, 1, &err) == MOEGEN_RT_IO, "%s",
          err.text);
    CHECK(moegen_rt_safetensors_write("/dev/null", list, 1, &err) == MOEGEN_RT_OK, "%s", err.text);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(q);
}

/* Texts of __metadata__ come back; what is too long reads as empty. */
static void metadata(void)
{
    static const char *const texts[][2] = {
        {"format", "pt"}, {"a \"quoted\\ name", "line\n\xc3\xa9\t"}, {"empty", ""}};
    moegen_rt_problem *p = moegen_rt_problem_create(), *q = moegen_rt_problem_create();
    moegen_rt_error err = {""};
    int64_t shape[1] = {3};
    moegen_rt_tensor *t;
    char longer[400];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK(!moegen_rt_problem_add(p, "t", MOEGEN_RT_U8, 1, shape, &t, &err), "%s", err.text);
    memset(t->data, 7, 3);
    for (int i = 0; i < 3; i++)
        moegen_rt_problem_set(p, texts[i][0], texts[i][1]);
    moegen_rt_problem_set(p, "long", longer);
    moegen_rt_problem_set(p, longer, "of a name too long");
    for (size_t count = 0; count < 2; count++) {
        CHECK(!moegen_rt_safetensors_write_with(path, t, count, p, &err), "%s", err.text);
        CHECK(!moegen_rt_safetensors_read_with(path, q, q, &err), "%s", err.text);
        CHECK((moegen_rt_problem_tensor(q, "t") != NULL) == (count == 1), "tensors");
        for (int i = 0; i < 3; i++)
            CHECK(strcmp(moegen_rt_problem_text(q, texts[i][0], "-"), texts[i][1]) == 0, "%s",
                  texts[i][0]);
        CHECK(strcmp(moegen_rt_problem_text(q, "long", "-"), "") == 0, "a long text");
        CHECK(!moegen_rt_problem_text(q, longer, NULL), "a long name");
    }
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(q);
}

/* Random damage to a good header must give an answer, whatever it is. */
static void fuzz(int rounds)
{
    static const char good[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"aa\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_"
        "offsets\":[0,16]},"
        "\"b\\u00e9\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[16,19]}}";
    static const char pieces[] = "{}[]:,\"\\u0123456789 eE.-+\xc3\xff";
    uint64_t state = 12345;
    int read = 0;
    for (int i = 0; i < rounds; i++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        size_t len = sizeof good - 1;
        for (int k = 0; k < 1 + i % 3; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(state >> 33) % len, kind = (size_t)(state >> 20) % 3;
            if (kind == 0) {
                text[at] = pieces[(state >> 50) % (sizeof pieces - 1)];
            } else if (kind == 1 && len > 2) {
                memmove(text + at, text + at + 1, len - at - 1);
                len--;
            } else {
                text[at] = (char)(state >> 56);
            }
        }
        moegen_rt_problem *p = moegen_rt_problem_create();
        moegen_rt_error err = {""};
        write_file(text, len, 19);
        moegen_rt_status status = moegen_rt_safetensors_read(path, p, &err);
        CHECK(status == MOEGEN_RT_OK || *err.text, "failed without a sentence");
        read += status == MOEGEN_RT_OK;
        moegen_rt_problem_destroy(p);
    }
    CHECK(read < rounds, "nothing was refused");
}

/* A writer that is killed, where the file system has files without names. */
static void killed(void)
{
    enum { MANY = 1 << 24, WRITERS = 8 };
    int unnamed = open(folder, O_TMPFILE | O_WRONLY, 0600);
    if (unnamed < 0)
        return;
    close(unnamed);
    float *data = calloc(MANY, sizeof *data);
    moegen_rt_tensor t = {.name = "x",
                          .dtype = MOEGEN_RT_F32,
                          .rank = 1,
                          .shape = {MANY},
                          .data = data,
                          .bytes = MANY * sizeof *data};
    for (int i = 0; data && i < WRITERS; i++) {
        struct timespec some = {0, 3000000 * (i + 1)};
        pid_t child = fork();
        while (child == 0)
            if (moegen_rt_safetensors_write(path, &t, 1, NULL) != MOEGEN_RT_OK)
                _exit(1);
        nanosleep(&some, NULL);
        CHECK(child > 0 && !kill(child, SIGKILL) && waitpid(child, NULL, 0) == child, "no child");
    }
    free(data);
}

/* Written through, whether there is a file at its end or not yet; devices stay what they are. */
static void linked(void)
{
    static const char *const to[] = {"t.safetensors", "new.safetensors", "first.link", "/dev/null"};
    static const char *const link[] = {"first.link", "new.link", "second.link", "null.link"};
    float data[2] = {1, 2};
    moegen_rt_tensor t = {.name = "x",
                          .dtype = MOEGEN_RT_F32,
                          .rank = 1,
                          .shape = {2},
                          .data = data,
                          .bytes = sizeof data};
    char at[128], end[128];
    for (int i = 0; i < 4; i++) {
        struct stat is;
        moegen_rt_problem *p = moegen_rt_problem_create();
        snprintf(at, sizeof at, "%s/%s", folder, link[i]);
        snprintf(end, sizeof end, "%s/%s", folder, i == 2 ? to[0] : to[i]);
        data[1] = (float)(i + 2);
        CHECK(!symlink(to[i], at) && !moegen_rt_safetensors_write(at, &t, 1, NULL), "%s", at);
        CHECK(!lstat(at, &is) && S_ISLNK(is.st_mode), "%s is no link any more", at);
        if (i < 3) {
            CHECK(!moegen_rt_safetensors_read(end, p, NULL) &&
                      ((const float *)moegen_rt_problem_tensor(p, "x")->data)[1] == data[1],
                  "%s was not written through", at);
        } else {
            CHECK(!lstat(to[i], &is) && S_ISCHR(is.st_mode), "%s is no device any more", to[i]);
        }
        moegen_rt_problem_destroy(p);
    }
    for (int i = 0; i < 4; i++) {
        snprintf(at, sizeof at, "%s/%s", folder, link[i]);
        unlink(at);
    }
    snprintf(at, sizeof at, "%s/itself", folder);
    moegen_rt_error why = {{0}};
    CHECK(!symlink("itself", at) && moegen_rt_safetensors_write(at, &t, 1, &why) == MOEGEN_RT_IO &&
              strstr(why.text, "itself: cannot write"),
          "%s", why.text);
    unlink(at);
    snprintf(at, sizeof at, "%s/%s", folder, to[1]);
    unlink(at);
}

static void nothing_left_behind(void)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    while ((e = readdir(d)))
        CHECK(!strstr(e->d_name, ".tmp"), "%s was left behind", e->d_name);
    closedir(d);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    snprintf(nowhere, sizeof nowhere, "%s/none/x", folder);
    refusals();
    accepted();
    other_dtypes();
    round_trip();
    metadata();
    fuzz(5000);
    killed();
    linked();
    nothing_left_behind();
    unlink(path);
    rmdir(folder);
    return failures != 0;
}
