/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc.c - C text through an installed compiler: for the spelling that needs its intrinsics, and to
 * check that generated C compiles everywhere. Works in a private temporary directory, starts the
 * compiler without a shell, and leaves nothing behind.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jit.h"
#include "rt_write.h"

extern char **environ;

enum { MAX_WORDS = 64, MAX_LOG = 1 << 20 };

/* The files of one job, all in dir. */
struct place {
    char dir[512];
    char c[600], header[600], so[600], log[600];
};

static bool put_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool ok = rt_write_all(fd, text, strlen(text));
    return close(fd) == 0 && ok;
}

static void place_leave(struct place *p)
{
    if (!p->dir[0])
        return;
    unlink(p->c);
    unlink(p->header);
    unlink(p->so);
    unlink(p->log);
    rmdir(p->dir);
}

static moegen_status place_enter(struct place *p, const char *text, moegen_error **err)
{
    const char *root = file_temporary();
    snprintf(p->dir, sizeof p->dir, "%s/moegen-XXXXXX", root);
    if (!mkdtemp(p->dir)) {
        p->dir[0] = '\0';
        return error_set(err, MOEGEN_IO, "%s: cannot make a temporary directory (%s)", root,
                         strerror(errno));
    }
    snprintf(p->c, sizeof p->c, "%s/kernel.c", p->dir);
    snprintf(p->header, sizeof p->header, "%s/moegen_rt.h", p->dir);
    snprintf(p->so, sizeof p->so, "%s/kernel.so", p->dir);
    snprintf(p->log, sizeof p->log, "%s/log", p->dir);
    if (!put_file(p->c, text) || !put_file(p->header, moegen_rt_header_text))
        return error_set(err, MOEGEN_IO, "%s: cannot write (%s)", p->c, strerror(errno));
    return MOEGEN_OK;
}

/* ---- the child ---- */

/* The environment with messages in English. Caller frees the array; the strings are shared. */
static char **english(void)
{
    static char lc_all[] = "LC_ALL=C";
    size_t n = 0, kept = 0;
    while (environ && environ[n])
        n++;
    char **env = malloc((n + 2) * sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "LC_ALL=", 7) != 0)
            env[kept++] = environ[i];
    env[kept++] = lc_all;
    env[kept] = NULL;
    return env;
}

/* The program reads nothing, writes to log, inherits no other file and no blocked signal. errno or
 * 0. */
static int start(char *const words[], const char *log, pid_t *pid)
{
    char **env = english();
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGCHLD);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
#endif
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &usual);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int error = env ? posix_spawnp(pid, words[0], &files, &how, words, env) : ENOMEM;
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    free(env);
    return error;
}

/* Exit status; -1: the host collects its children itself, so that only the result can tell. */
static int await(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ---- messages ---- */

static void read_log(const char *path, struct text *log)
{
    char part[4096];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && log->len < MAX_LOG && (n = read(fd, part, sizeof part)) > 0)
        text_add(log, part, (size_t)n);
    if (fd >= 0)
        close(fd);
}

/* One line of the log: "DIR/kernel.c:LINE:COL: error: MESSAGE" becomes a diagnostic. False: it
 * finds no fault with the text. */
static bool complain(const char *line, const struct place *p, const char *text, moegen_error **err)
{
    static const char kind[] = ": error: ";
    const char *message = strstr(line, kind);
    size_t n = strlen(p->c);
    int row = 0, col = 0;
    if (!message || strncmp(line, p->c, n) != 0 || sscanf(line + n, ":%d:%d", &row, &col) < 1)
        return false;
    message += strlen(kind);
    char *source = line_of(text, strlen(text), row);
    error_add(err, MOEGEN_INTERNAL, "<generated>", row, col, 1, message, NULL, source);
    free(source);
    return true;
}

/* The text's fault is ours; where the compiler finds none with it, it is the compiler that fails:
 * it has no such option, no header, no room for its files, or is no compiler. */
static moegen_status report(const char *cc, const struct place *p, const char *text,
                            moegen_error **err)
{
    struct text log = {0};
    char *rest = NULL, *first = NULL;
    size_t found = 0;
    read_log(p->log, &log);
    for (char *line = log.at ? strtok_r(log.at, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        found += complain(line, p, text, err);
        if (!first || (strstr(line, "error: ") && !strstr(first, "error: ")))
            first = line;
    }
    moegen_status status = log.lost ? MOEGEN_NO_MEMORY
                           : found  ? MOEGEN_INTERNAL
                                    : MOEGEN_BAD_ARGUMENT;
    if (log.lost)
        error_set(err, status, "%s failed, and there is no memory for its messages", cc);
    else if (!found)
        error_set(err, status, "the C compiler %s makes nothing of a kernel, and %s%s", cc,
                  first ? "says: " : "does not say why", first ? first : "");
    text_free(&log);
    return status;
}

/* ---- compile ---- */

static moegen_status not_started(const char *cc, int error, moegen_error **err)
{
    return error_set(err, error == ENOMEM ? MOEGEN_NO_MEMORY : MOEGEN_UNSUPPORTED,
                     "no C compiler: cannot start %s (%s)", cc, strerror(error));
}

/* Runs the first compiler that can be started; p->so is there afterwards. */
static moegen_status compile(struct place *p, const char *text, const char *cc,
                             const char *const *how, const char *const *flags, moegen_error **err)
{
    const char *chosen = cc ? cc : getenv("MOEGEN_CC");
    const char *const candidates[] = {chosen && chosen[0] ? chosen : "gcc", "cc", "clang"};
    size_t choices = chosen && chosen[0] ? 1 : sizeof candidates / sizeof *candidates;
    const char *words[MAX_WORDS];
    size_t n = 1;
    for (; *how; how++)
        words[n++] = *how;
    for (; flags && *flags && n < MAX_WORDS - 5; flags++)
        words[n++] = *flags;
    const char *level = getenv("MOEGEN_CC_LEVEL"); /* another one than -O2: tests */
    if (level && level[0])
        words[n++] = level;
    words[n++] = "-o";
    words[n++] = p->so;
    words[n++] = p->c;
    words[n] = NULL;
    moegen_status status = place_enter(p, text, err);
    if (status)
        return status;
    int error = ENOENT;
    pid_t pid = 0;
    size_t i = 0;
    for (; i < choices; i++) {
        words[0] = candidates[i];
        error = start((char *const *)(uintptr_t)words, p->log, &pid);
        if (!error)
            break;
    }
    if (error)
        return not_started(choices == 1 ? candidates[0] : "gcc, cc or clang", error, err);
    int code = await(pid);
    struct stat made;
    if (code > 0 || stat(p->so, &made))
        return report(candidates[i], p, text, err);
    return MOEGEN_OK;
}

/* The dynamic linker tells only in words. */
static bool out_of_memory(const char *why)
{
    return !why || strstr(why, "out of memory") || strstr(why, strerror(ENOMEM));
}

moegen_status cc_compile(const char *text, const char *cc, const char *const *flags,
                         const char *const *symbols, int n, struct code *out, moegen_error **err)
{
    static const char *const how[] = {"-std=c11", "-O2", "-fPIC", "-shared", "-fno-lto", NULL};
    struct place p = {0};
    struct code code = {0};
    moegen_status status = compile(&p, text, cc, how, flags, err);
    if (status)
        goto out;
    code.dl = dlopen(p.so, RTLD_NOW | RTLD_LOCAL);
    if (!code.dl) {
        const char *why = dlerror();
        status = error_set(err, out_of_memory(why) ? MOEGEN_NO_MEMORY : MOEGEN_UNSUPPORTED,
                           "cannot load the compiled kernel: %s", why ? why : "no reason given");
        goto out;
    }
    for (int i = 0; i < n && i < MAX_ENTRIES; i++) {
        code.fn[i] = dlsym(code.dl, symbols[i]);
        if (!code.fn[i]) {
            status = error_set(err, MOEGEN_INTERNAL, "no function is called '%s'", symbols[i]);
            goto out;
        }
    }
    *out = code;
    code = (struct code){0};
out:
    code_unmap(&code);
    place_leave(&p);
    return status;
}

moegen_status cc_check(const char *text, const char *cc, const char *const *flags,
                       moegen_error **err)
{
    static const char *const how[] = {"-std=c11", "-c", NULL};
    struct place p = {0};
    moegen_status status = compile(&p, text, cc, how, flags, err);
    place_leave(&p);
    return status;
}

moegen_status cc_there(const char *cc, moegen_error **err)
{
    const char *const words[] = {cc, "--version", NULL};
    pid_t pid = 0;
    int error = start((char *const *)(uintptr_t)words, "/dev/null", &pid);
    if (error)
        return not_started(cc, error, err);
    (void)await(pid);
    return MOEGEN_OK;
}
