/* SPDX-License-Identifier: Apache-2.0 */
/* cache_test.c - the disk cache never lies and never fails the program. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache/cache.h"

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void fail(int line, const char *what)
{
    fprintf(stderr, "cache_test.c:%d: not so: %s\n", line, what);
    _exit(1);
}

static char root[64]; /* a fresh directory */
static int logged;

static void note(void *user, int level, const char *message)
{
    (void)user, (void)level, (void)message;
    logged++;
}

/* ---- entries whose content follows from a number ---- */

enum { SIZE = 3000 };

static void key_of(unsigned i, unsigned char key[32])
{
    digest_sha256(&i, sizeof i, key);
}

static void fill(unsigned i, unsigned char *code, char *meta, size_t room)
{
    for (unsigned j = 0; j < SIZE; j++)
        code[j] = (unsigned char)(i * 7 + j * j);
    snprintf(meta, room, "moegen-kernel 1\nname k%u\ntarget scalar\n", i);
}

static bool put(struct cache *c, unsigned i)
{
    unsigned char code[SIZE], key[32];
    char meta[128];
    fill(i, code, meta, sizeof meta);
    key_of(i, key);
    struct blob b = {.at = code, .len = SIZE - i % 5, .entry = {i % 9, 64, 0, 0}};
    return cache_put(c, key, &b, meta, strlen(meta));
}

/* A hit must be right in every byte. */
static bool hit(struct cache *c, unsigned i)
{
    unsigned char code[SIZE], key[32];
    char meta[128];
    struct blob b = {0};
    struct text t = {0};
    fill(i, code, meta, sizeof meta);
    key_of(i, key);
    if (!cache_get(c, key, &b, &t)) {
        CHECK(!b.at && !t.at);
        return false;
    }
    CHECK(b.len == SIZE - i % 5 && memcmp(b.at, code, b.len) == 0);
    CHECK(b.entry[0] == i % 9 && b.entry[1] == 64 && strcmp(t.at, meta) == 0 &&
          t.len == strlen(meta));
    blob_free(&b);
    text_free(&t);
    return true;
}

static void file_of(unsigned i, char path[200])
{
    unsigned char key[32];
    char hex[65];
    key_of(i, key);
    digest_hex(key, 32, hex);
    snprintf(path, 200, "%s/%.2s/%s.krn", root, hex, hex + 2);
}

/* Files below the directory. */
static int files(void)
{
    char command[128];
    int n = 0;
    snprintf(command, sizeof command, "find %s -type f | wc -l", root);
    FILE *f = popen(command, "r");
    CHECK(f && fscanf(f, "%d", &n) == 1);
    pclose(f);
    return n;
}

/* ---- tests ---- */

static void test_round_trip(void)
{
    struct cache *c = cache_open(root, note, NULL);
    CHECK(c && strcmp(cache_path(c), root) == 0);
    CHECK(!hit(c, 1) && put(c, 1) && hit(c, 1) && put(c, 1) && hit(c, 1) && !hit(c, 2));
    struct stat st;
    char path[200];
    file_of(1, path);
    CHECK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600 && files() == 1);
    cache_close(c);
    c = cache_open(root, note, NULL);
    CHECK(hit(c, 1) && logged == 0);
    cache_close(c);
    CHECK(!put(NULL, 1) && !hit(NULL, 1) && cache_prune(NULL, 0, NULL) == 0 && !*cache_path(NULL));
    CHECK(cache_open("", note, NULL) == NULL && logged == 0);
}

static void test_place(void)
{
    char dir[100], want[120];
    snprintf(dir, sizeof dir, "%s/a/b", root);
    snprintf(want, sizeof want, "%s/moegen", dir);
    unsetenv("MOEGEN_CACHE_DIR");
    setenv("XDG_CACHE_HOME", dir, 1);
    struct cache *c = cache_open(NULL, note, NULL);
    CHECK(c && strcmp(cache_path(c), want) == 0 && put(c, 1) && hit(c, 1));
    cache_close(c);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", dir, 1);
    snprintf(want, sizeof want, "%s/.cache/moegen", dir);
    c = cache_open(NULL, note, NULL);
    CHECK(c && strcmp(cache_path(c), want) == 0);
    cache_close(c);
    setenv("MOEGEN_CACHE_DIR", dir, 1);
    c = cache_open(NULL, note, NULL);
    CHECK(c && strcmp(cache_path(c), dir) == 0);
    cache_close(c);
    unsetenv("MOEGEN_CACHE_DIR");
    unsetenv("HOME");
    CHECK(cache_open(NULL, note, NULL) == NULL && logged == 0);
}

/* Change one byte, or cut, or grow: a miss, the file is gone, and the cache heals. */
static void damage(struct cache *c, long at, unsigned char flip, long size)
{
    char path[200];
    unsigned char byte;
    file_of(3, path);
    CHECK(put(c, 3) && hit(c, 3));
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    if (flip) {
        CHECK(pread(fd, &byte, 1, at) == 1);
        byte ^= flip;
        CHECK(pwrite(fd, &byte, 1, at) == 1);
    }
    CHECK(size < 0 || ftruncate(fd, size) == 0);
    close(fd);
    CHECK(!hit(c, 3) && access(path, F_OK) != 0);
}

static void test_damage(void)
{
    struct cache *c = cache_open(root, note, NULL);
    char path[200];
    file_of(3, path);
    struct stat st;
    CHECK(put(c, 3) && stat(path, &st) == 0);
    for (long at = 0; at < 104; at++) /* every byte of the header */
        damage(c, at, (unsigned char)(1 << at % 8), -1);
    for (unsigned i = 0; i < 1000; i++)
        damage(c, rand() % st.st_size, (unsigned char)(1 << rand() % 8), -1);
    for (long size = 0; size < st.st_size; size += size < 110 ? 1 : 97)
        damage(c, 0, 0, size);
    damage(c, 0, 0, st.st_size + 1);
    damage(c, 0, 0, 1l << 40);
    CHECK(put(c, 3) && hit(c, 3) && logged == 0);
    cache_close(c);
}

static void test_trust(void)
{
    struct cache *c = cache_open(root, note, NULL);
    char path[200], other[200];
    file_of(4, path);
    CHECK(put(c, 4) && chmod(path, 0620) == 0 && !hit(c, 4));
    CHECK(put(c, 4) && chmod(path, 0602) == 0 && !hit(c, 4));
    if (geteuid() == 0)
        CHECK(put(c, 4) && chown(path, 12345, 0) == 0 && !hit(c, 4));
    CHECK(put(c, 4)); /* a link is no entry, even to a good file */
    snprintf(other, sizeof other, "%s/elsewhere", root);
    CHECK(rename(path, other) == 0 && symlink(other, path) == 0 && !hit(c, 4) && unlink(path) == 0);
    CHECK(mkfifo(path, 0600) == 0 && !hit(c, 4)); /* must not wait for a writer */
    CHECK(put(c, 4) && hit(c, 4));
    file_of(5, other); /* a good file under another key */
    CHECK(put(c, 5) && rename(path, other) == 0 && !hit(c, 5));
    cache_close(c);
    CHECK(logged == 0 && chmod(root, 0770) == 0 && !cache_open(root, note, NULL) && logged == 1);
    CHECK(chmod(root, 0707) == 0 && !cache_open(root, note, NULL) && logged == 2);
    if (geteuid() == 0)
        CHECK(chmod(root, 0700) == 0 && chown(root, 12345, 0) == 0 &&
              !cache_open(root, note, NULL) && chown(root, 0, 0) == 0 && logged == 3);
}

/* Whatever the disk says: misses and one line in the log. */
static void test_unwritable(void)
{
    char path[200];
    snprintf(path, sizeof path, "%s/file", root);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    CHECK(!cache_open(path, note, NULL) && logged == 1);
    CHECK(!cache_open("/proc/nothing/here", note, NULL) && logged == 2);
    if (geteuid() == 0)
        CHECK(setgid(12345) == 0 && chown(root, 12345, 12345) == 0 && setuid(12345) == 0);
    struct cache *c = cache_open(root, note, NULL);
    CHECK(c && put(c, 1) && chmod(root, 0500) == 0);
    for (unsigned i = 2; i < 20; i++)
        CHECK(!put(c, i) && !hit(c, i));
    CHECK(hit(c, 1) && logged == 3);
    CHECK(chmod(root, 0700) == 0 && put(c, 2) && hit(c, 2));
    cache_close(c);
}

static bool see(void *user, const struct cache_entry *e)
{
    char *last = user;
    CHECK(strcmp(last, e->key) < 0 && strlen(e->key) == 64);
    CHECK(e->problem ? !*e->meta : strstr(e->meta, "\nname k") != NULL);
    CHECK(e->used > 0);
    strcpy(last, e->key);
    logged += e->problem != NULL;
    return true;
}

static void test_list(void)
{
    struct cache *c = cache_open(root, note, NULL);
    char path[200], last[65] = "";
    uint64_t bytes;
    for (unsigned i = 0; i < 50; i++) {
        CHECK(put(c, i));
        file_of(i, path);
        struct timespec t[2] = {{.tv_sec = 1000000 + 10 * i}, {.tv_sec = 1000000 + 10 * i}};
        CHECK(utimensat(AT_FDCWD, path, t, 0) == 0);
    }
    CHECK(cache_each(c, see, last) == 50 && logged == 0);
    CHECK(hit(c, 0)); /* now the latest */
    file_of(20, path);
    CHECK(truncate(path, 100) == 0); /* the latest, too */
    last[0] = '\0';
    CHECK(cache_each(c, see, last) == 50 && logged == 1);
    CHECK(cache_prune(c, 10 * 3300, &bytes) == 39 && bytes > 38 * 3000 && files() == 11);
    CHECK(hit(c, 0) && !hit(c, 1) && !hit(c, 40) && hit(c, 41) && hit(c, 49));
    unsigned char key[32];
    char hex[65];
    key_of(49, key);
    digest_hex(key, 32, hex);
    CHECK(cache_drop(c, hex) && !cache_drop(c, hex) && !hit(c, 49));
    CHECK(!cache_drop(c, "../../etc") && !cache_drop(c, ""));
    snprintf(path, sizeof path, "%s/%.2s/.new-1-2-3", root, hex);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    CHECK(cache_prune(c, 0, NULL) == 10 && files() == 1); /* it may still be at work */
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    CHECK(utimensat(AT_FDCWD, path, old, 0) == 0 && cache_prune(c, 0, NULL) == 0 && files() == 0);
    cache_close(c);
}

/* One process: put, get, damage, remove, at random, for ever. */
static void worker(unsigned seed)
{
    struct cache *c = cache_open(root, NULL, NULL);
    char path[200];
    alarm(30); /* nobody may be there any more to end it */
    for (;;) {
        unsigned i = (unsigned)rand_r(&seed) % 16, what = (unsigned)rand_r(&seed) % 64;
        file_of(i, path);
        if (!hit(c, i))
            put(c, i);
        if (what == 0)
            (void)!truncate(path, rand_r(&seed) % SIZE);
        if (what == 1)
            unlink(path);
        if (what == 2)
            cache_prune(c, 20000, NULL);
        int fd = what == 3 ? open(path, O_WRONLY) : -1;
        if (fd >= 0) {
            (void)!pwrite(fd, "?", 1, rand_r(&seed) % SIZE);
            close(fd);
        }
    }
}

/* hit() stops a worker with status 1 if it ever gets wrong bytes; being killed is part of the plan.
 */
static void test_concurrent(void)
{
    enum { N = 8 };
    pid_t pid[N] = {0};
    time_t end = time(NULL) + 3;
    unsigned seed = 1, kills = 0;
    while (time(NULL) <= end || kills < N) {
        unsigned i = (unsigned)rand() % N;
        if (pid[i]) {
            int status;
            kill(pid[i], SIGKILL);
            CHECK(waitpid(pid[i], &status, 0) == pid[i] && WIFSIGNALED(status));
            kills++;
        }
        pid[i] = fork();
        if (pid[i] == 0)
            worker(++seed * 7919 + kills);
        usleep(15000);
    }
    for (unsigned i = 0; i < N; i++) {
        int status;
        if (!pid[i])
            continue;
        kill(pid[i], SIGKILL);
        CHECK(waitpid(pid[i], &status, 0) == pid[i] && WIFSIGNALED(status));
    }
    struct cache *c = cache_open(root, note, NULL);
    for (unsigned i = 0; i < 16; i++)
        CHECK((hit(c, i) || put(c, i)) && hit(c, i));
    CHECK(files() == 16 && logged == 0);
    cache_close(c);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"round_trip", test_round_trip}, {"place", test_place},           {"damage", test_damage},
    {"trust", test_trust},           {"unwritable", test_unwritable}, {"list", test_list},
    {"concurrent", test_concurrent},
};

static int run(size_t i)
{
    snprintf(root, sizeof root, "/tmp/moegen-test-XXXXXX");
    if (!mkdtemp(root))
        return 1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        tests[i].run();
        _exit(0);
    }
    int status = 1;
    char command[100];
    waitpid(pid, &status, 0);
    snprintf(command, sizeof command, "rm -rf %s", root);
    if (system(command))
        status = 1;
    printf("%-14s %s\n", tests[i].name, status ? "FAILED" : "ok");
    return status != 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc < 2 || strcmp(argv[1], tests[i].name) == 0)
            failed |= run(i);
    return failed;
}
