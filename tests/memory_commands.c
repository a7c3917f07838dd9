/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_commands.c - every command of the program with an allocation that fails, number n = 1, 2,
 * ..., alone and with all later ones: it ends by a status, not by a signal; by 0 only with just
 * what it says and writes otherwise; and no file is there in part.
 *
 *     memory_commands MOEGEN FAILING_MALLOC SOURCE [FIRST LAST]     the rows of the table to run
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 24, FILES = 16, LARGEST = 1 << 22 };

static const char *program, *library, *source;
static char top[] = "/tmp/moegen-memory-XXXXXX", work[64], cache[64];
static int failures, runs;

/* ---- the commands ---- */

enum {
    EXACT = 0,
    TIMES = 1,  /* numbers in the output differ from run to run */
    CACHED = 2, /* with the disk cache that the first row has filled */
};
static const struct command {
    int once, after; /* steps of n: for one failure, and for all from n on; 0: not tried */
    int most;        /* ... up to this n; 0: all */
    int flags;
    const char *words; /* @ is the source tree */
} commands[] = {
    /* once, after, most, flags, words */
    /* some commands take long once memory suffices for their kernel: these stop before */
    {0, 0, 0, CACHED,
     "check @/tests/host/toy.yaml:forward --T 3 --routing one --target scalar --quiet"},
    {1, 1, 0, CACHED, "cache path"},
    {1, 1, 0, CACHED, "cache list"},
    {1, 1, 0, CACHED, "cache list --json"},
    {1, 1, 0, CACHED, "cache verify"},
    {1, 1, 0, CACHED, "cache prune --max 256M"},
    {1, 1, 0, 0, "completion bash"},
    {1, 1, 0, 0, "gen --help"},
    {11, 53, 0, 0, "schema"},
    {11, 37, 0, 0, "list kernels --json"},
    {23, 127, 0, 0, "list keys"},
    {1, 1, 0, 0, "list formats --json"},
    {1, 3, 0, 0,
     "quantize @/tests/vectors/Swish-PRE-nobias/in.safetensors --to nvfp4 --axis 1 --only gate_* "
     "--gate-up split --out x.st --json --threads 1"},
    {7, 29, 0, 0, "explain @/tests/host/toy.yaml:forward --target scalar"},
    {17, 61, 0, 0, "explain @/tests/host/toy.yaml --target scalar --json"},
    {41, 167, 0, 0,
     "gen @/tests/host/toy.yaml:forward --target scalar --stem x --depfile x.d --cflags x.f "
     "--json --set dtype=bf16 --set name=other"},
    {1, 0, 60, 0, "gen @/tests/host/toy.yaml:forward --target scalar"}, /* up to the command */
    {113, 251, 0, 0, "gen @/tests/host/toy.yaml --target avx2 --spelling bytes"},
    {67, 151, 0, 0, "gen @/tests/host/toy.yaml:forward -o - --target scalar"},
    {3, 29, 0, 0, "gen @/tests/host/toy.yaml:forward --set H=-1 --set E=x --set frogs=2"},
    {7, 31, 0, 0, "gen @/tests/errors/wrong_kinds.yaml"},
    {7, 31, 0, 0, "gen @/tests/errors/unclosed_map.yaml"},
    {29, 83, 0, 0,
     "check @/tests/host/toy.yaml:forward --T 9 --routing uniform --target scalar --json"},
    {37, 89, 0, 0, "check @/tests/host/toy.yaml:forward --T 9 --routing uniform --target scalar"},
    {397, 701, 0, 0,
     "check @/tests/host/toy.yaml:forward --T 3 --routing one --target all --spelling scalar"},
    {29, 83, 0, TIMES,
     "run @/tests/vectors/Swish-PRE-nobias/spec.yaml --in "
     "@/tests/vectors/Swish-PRE-nobias/in.safetensors --out out --target scalar --json --set T=70 "
     "--set N_blocks=8"},
    {0, 53, 500, TIMES,
     "bench @/tests/host/toy.yaml:forward --T 9 --runs 1 --json --target scalar"},
    {0, 67, 500, TIMES, "bench @/tests/host/toy.yaml:forward --latency --target scalar --json"},
    {3, 5, 0, 0, "compare @/tests/compare/a.json @/tests/compare/b.json"},
    {5, 7, 0, 0, "compare @/tests/compare/a.json @/tests/compare/b.json --json --plot x.svg"},
    {3, 7, 0, 0, "report @/tests/compare -o x.html"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* ---- what a run leaves ---- */

struct left {
    int status; /* of waitpid */
    long allocations;
    char *out, *err;
    struct file {
        char name[64], *text;
        size_t len;
    } file[FILES];
    int files;
};

static char *read_all(const char *path, size_t *len)
{
    char *text = malloc(LARGEST);
    int fd = open(path, O_RDONLY);
    ssize_t n, done = 0;
    while (text && fd >= 0 && (n = read(fd, text + done, (size_t)(LARGEST - 1 - done))) > 0)
        done += n;
    if (!text || fd < 0 || done == LARGEST - 1) {
        printf("cannot read %s\n", path);
        exit(1);
    }
    close(fd);
    text[done] = '\0';
    *len = (size_t)done;
    return realloc(text, (size_t)done + 1);
}

/* Every number becomes one #, and so does null. */
static void blur(char *s)
{
    char *to = s;
    while (*s) {
        size_t n = strncmp(s, "null", 4) == 0 ? 4
                   : strchr("0123456789", *s) ? strspn(s, "0123456789.e+-")
                                              : 0;
        *to++ = n ? '#' : *s;
        s += n ? n : 1;
    }
    *to = '\0';
}

static const char *at(const char *dir, const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Takes the files of the working directory away. */
static void collect(struct left *l)
{
    DIR *d = opendir(work);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.' || l->files == FILES)
            continue;
        struct file *f = &l->file[l->files++];
        snprintf(f->name, sizeof f->name, "%.60s", e->d_name);
        f->text = read_all(at(work, e->d_name), &f->len);
        unlink(at(work, e->d_name));
    }
    if (d)
        closedir(d);
}

static void forget(struct left *l)
{
    for (int i = 0; i < l->files; i++)
        free(l->file[i].text);
    free(l->out);
    free(l->err);
    *l = (struct left){0};
}

static void child(const struct command *c, const char *fail)
{
    char words[1000], *word[WORDS] = {(char *)(uintptr_t)program}, *rest = NULL;
    size_t n = 0;
    int count = 1;
    for (const char *s = c->words; *s && n < sizeof words - 300; s++)
        n += (size_t)snprintf(words + n, sizeof words - n, *s == '@' ? "%s" : "%.1s",
                              *s == '@' ? source : s);
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        word[count++] = w;
    setenv("MOEGEN_CACHE_DIR", c->flags & CACHED ? cache : "", 1);
    setenv("FAIL_AT", fail, 1);
    setenv("FAIL_COUNT", at(top, "count"), 1);
    setenv("LD_PRELOAD", library, 1);
    if (chdir(work) || !freopen(at(top, "out"), "w", stdout) ||
        !freopen(at(top, "err"), "w", stderr))
        _exit(98);
    execv(program, word);
    _exit(97);
}

static struct left run(const struct command *c, const char *fail)
{
    struct left l = {0};
    size_t len;
    fflush(stdout);
    unlink(at(top, "count"));
    pid_t pid = fork();
    if (pid == 0)
        child(c, fail);
    waitpid(pid, &l.status, 0);
    runs++;
    l.out = read_all(at(top, "out"), &len);
    l.err = read_all(at(top, "err"), &len);
    if (c->flags & TIMES)
        blur(l.out);
    FILE *f = fopen(at(top, "count"), "r");
    if (f && fscanf(f, "%ld", &l.allocations) != 1)
        l.allocations = 0;
    if (f)
        fclose(f);
    collect(&l);
    return l;
}

/* ---- judging ---- */

static bool has(const struct left *l, const struct file *f)
{
    for (int i = 0; i < l->files; i++)
        if (strcmp(l->file[i].name, f->name) == 0)
            return l->file[i].len == f->len && memcmp(l->file[i].text, f->text, f->len) == 0;
    return false;
}

/* NULL, or what is wrong with a run under failing allocations. */
static const char *wrong(const struct left *l, const struct left *usual)
{
    bool ended = WIFEXITED(l->status);
    int code = ended ? WEXITSTATUS(l->status) : -1, usual_code = WEXITSTATUS(usual->status);
    if (!ended)
        return "ended by a signal";
    if (code == 0 && usual_code != 0)
        return "accepted what it refuses otherwise";
    if (code != usual_code && code != 2 && code != 3)
        return "exit status is neither bad input nor no memory";
    if (code == 0 && strcmp(l->out, usual->out) != 0)
        return "exit status 0 with another output";
    if (code == 0 && l->files != usual->files)
        return "exit status 0 without its files";
    for (int i = 0; i < l->files; i++)
        if (!has(usual, &l->file[i]))
            return "a file is not what it is otherwise";
    if (code != 0 && !*l->err)
        return "failed without a word";
    if (strstr(l->err, "(null)") || strstr(l->out, "(null)"))
        return "says (null)";
    return NULL;
}

static void try(const struct command *c, const struct left *usual, long n, bool after)
{
    char fail[32];
    snprintf(fail, sizeof fail, "%ld%s", n, after ? "+" : "");
    struct left l = run(c, fail);
    const char *what = wrong(&l, usual);
    if (what && failures++ < 20)
        printf("FAIL_AT=%s moegen %s: %s (status %#x)\n%s%s\n", fail, c->words, what,
               (unsigned)l.status, l.err, strlen(l.out) < 2000 ? l.out : "");
    forget(&l);
}

static void judge(const struct command *c)
{
    struct left usual = run(c, "");
    long most = c->most && c->most < usual.allocations ? c->most : usual.allocations + 1;
    if (!WIFEXITED(usual.status) || WEXITSTATUS(usual.status) > 2 || !usual.allocations) {
        printf("moegen %s: undisturbed status %#x, %ld allocations\n%s", c->words,
               (unsigned)usual.status, usual.allocations, usual.err);
        failures++;
    }
    for (int after = 0; after < 2; after++) {
        int step = after ? c->after : c->once;
        for (long n = 1; step && n <= most; n += step)
            try(c, &usual, n, after);
    }
    forget(&usual);
}

int main(int argc, char **argv)
{
    char clean[100];
    if (argc < 4 || !mkdtemp(top))
        return 2;
    program = argv[1];
    library = argv[2];
    source = argv[3];
    snprintf(work, sizeof work, "%s/work", top);
    snprintf(cache, sizeof cache, "%s/cache", top);
    mkdir(work, 0700);
    unsetenv("MOEGEN_TEMPLATE_DIR");
    int first = argc > 5 ? atoi(argv[4]) : 0, last = argc > 5 ? atoi(argv[5]) : COMMANDS - 1;
    for (int i = 0; i < COMMANDS; i++)
        if (i == 0 || (i >= first && i <= last))
            judge(&commands[i]);
    snprintf(clean, sizeof clean, "rm -r %s", top);
    if (system(clean))
        failures++;
    printf("%d runs, %d failures\n", runs, failures);
    return failures != 0;
}
