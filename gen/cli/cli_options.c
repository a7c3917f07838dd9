/* SPDX-License-Identifier: Apache-2.0 */
/* cli_options.c - the options of all commands: one table that the parser, --help and completions
 * read. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum kind { FLAG, COUNT, TEXT, INTEGER, FROM_1, REAL, SECONDS, LIST_OF, JSON };

#define AT(field) offsetof(struct options, field)
static const struct option {
    const char *name, *brief, *value;
    unsigned commands;
    enum kind kind;
    size_t at;
    const char *help;
} table[] = {
    /* name, short, value, commands, kind, field, help */
    {"--set", NULL, "KEY=VALUE", ANY, LIST_OF, AT(set),
     "override a key of the spec (repeatable): --set plan.tile_rows=6"},
    {"--target", NULL, "T", SPEC | COMPARE, TEXT, AT(target),
     "instruction set (see `moegen list targets`); check: a list, or all"},
    {"--spelling", NULL, "S", SPEC | COMPARE, TEXT, AT(spelling),
     "bytes, intrinsics or scalar; check: a list, or all"},
    {"--out", "-o", "PATH", GEN | RUN | QUANTIZE | PACK, TEXT, AT(out),
     "gen: directory for name.c and name.h (.), or - to print the C; run, quantize, pack: "
     "the tensor file to write"},
    {"--out", "-o", "F.html", REPORT, TEXT, AT(out),
     "the page to write (report.html in the directory), or - to print it"},
    {"--to", NULL, "FORMAT", QUANTIZE, TEXT, AT(to),
     "see `moegen list formats`; f32, bf16 or f16: back"},
    {"--from", NULL, "FORMAT", QUANTIZE, TEXT, AT(from),
     "back: the format of codes that the file's metadata does not name"},
    {"--from", NULL, "LAYOUT", PACK, TEXT, AT(from),
     "how the matrices lie, plain or transposed, where their shapes are those of both"},
    {"--only", NULL, "PATTERN", QUANTIZE, LIST_OF, AT(only),
     "tensors of such names, the others are copied (repeatable): --only '*proj_weight'"},
    {"--axis", NULL, "N", QUANTIZE, INTEGER, AT(axis),
     "the axis that products contract, from 0 (default: the last)"},
    {"--scale", NULL, "KIND", QUANTIZE, TEXT, AT(scale),
     "what shares a scale: row (an output channel), static (a matrix), block (128 x 128), group"},
    {"--group", NULL, "N", QUANTIZE, FROM_1, AT(group), "elements of a group: int4: 32 or 128"},
    {"--scale-rule", NULL, "RULE", QUANTIZE, TEXT, AT(scale_rule),
     "mx formats: ocp (the largest element may clip) or wide (twice the scale: nothing clips)"},
    {"--gate-up", NULL, "ORDER", QUANTIZE, TEXT, AT(gate_up),
     "the tensor holds gate and up, split or interleaved: two scales where a matrix has one"},
    {"--stem", NULL, "NAME", GEN, TEXT, AT(stem), "file name without suffix, for one kernel"},
    {"--cflags", NULL, "F", GEN, TEXT, AT(cflags),
     "write the options that a compiler needs for the C: cc @F"},
    {"--depfile", NULL, "F", GEN, TEXT, AT(depfile), "write a dependency file for build systems"},
    {"--in", "-i", "F", RUN | PACK, LIST_OF, AT(in),
     "tensor file with the inputs (safetensors), or a directory of such files (repeatable)"},
    {"--cc", NULL, "A,B", CHECK, TEXT, AT(cc),
     "also compile the C with these compilers: --cc gcc,clang"},
    {"--T", NULL, "A,B", TUNE, TEXT, AT(token_list),
     "numbers of tokens of the calls that are to be fast (the spec's T, else 1,16,256,1024)"},
    {"--threads", NULL, "A,B", TUNE, TEXT, AT(thread_list),
     "threads that run a kernel, tuned one after the other (all CPUs)"},
    {"--budget", NULL, "S", TUNE, SECONDS, AT(budget),
     "seconds to search for each kernel (60), once its tensors are filled; what is found is "
     "confirmed in up to twice as long"},
    {"--out", "-o", "F.yaml", TUNE, TEXT, AT(out),
     "the file of tuned plans to write (that of this CPU in ~/.config/moegen/tuned)"},
    {"--T", NULL, "N", CHECK | BENCH | COMPARE, FROM_1, AT(tokens), "number of tokens"},
    {"--routing", NULL, "KIND", CHECK | BENCH | COMPARE, TEXT, AT(routing),
     "how tokens choose experts: uniform, skewed, one, ..."},
    {"--seed", NULL, "N", CHECK | BENCH | COMPARE, INTEGER, AT(seed),
     "seed of the random inputs (1)"},
    {"--vary", NULL, "KEY=A,B", BENCH | COMPARE, LIST_OF, AT(vary),
     "compare variants side by side (repeatable: all combinations)"},
    {"--against", NULL, "PROGRAM", COMPARE, TEXT, AT(against),
     "A is what another version of moegen makes of the spec, B what this one makes of it"},
    {"--runs", NULL, "N", BENCH, FROM_1, AT(runs), "timed runs of each variant"},
    {"--runs", NULL, "N", COMPARE, FROM_1, AT(runs),
     "processes of each variant (default: until it is clear, or the budget is spent)"},
    {"--seconds", NULL, "S", BENCH, SECONDS, AT(seconds), "time to spend on each variant (1)"},
    {"--seconds", NULL, "S", COMPARE, SECONDS, AT(seconds),
     "timing of each variant in each process (as long as its inputs take to fill)"},
    {"--turns", NULL, NULL, BENCH, FLAG, AT(turns),
     "what `compare` asks for: a run of each variant for each byte 'r' on stdin, see "
     "gen/cli/compare/turns.c"},
    {"--budget", NULL, "S", COMPARE, SECONDS, AT(budget),
     "seconds after which no further kernel is compared (180; of --baseline=F: none)"},
    {"--margin", NULL, "SHARE", COMPARE, REAL, AT(margin),
     "smaller differences count as the same (0.02)"},
    {"--fail-below", NULL, "RATIO", COMPARE, REAL, AT(fail_below),
     "exit with 1 when a kernel, or all together, is slower than that: 0.97"},
    {"--baseline", NULL, "[=F]", COMPARE, JSON, AT(baseline),
     "of files: compare shares of the roof, each of its own run, instead of times; --baseline=F: "
     "bench what F lists, and compare with what it has of this kind of CPU"},
    {"--record", NULL, NULL, COMPARE, FLAG, AT(record),
     "put what is reached now into the F of --baseline=F, in place of what it has of this kind of "
     "CPU"},
    {"--md", NULL, NULL, COMPARE, FLAG, AT(md), "print Markdown"},
    {"--plot", NULL, "F.svg", BENCH | COMPARE | TUNE, TEXT, AT(plot),
     "draw the results: bars; bench: also a roofline, lines over T and threads; tune: what was "
     "tried"},
    {"--cold", NULL, NULL, BENCH | COMPARE, FLAG, AT(cold),
     "empty the caches before each run: weights come from memory, as between the layers of a "
     "model"},
    {"--latency", NULL, NULL, BENCH, FLAG, AT(latency),
     "only measure spec text to callable kernel: cold, disk hit, memory hit"},
    {"--max", NULL, "SIZE", CACHE, TEXT, AT(max), "prune: keep at most this much: 256M"},
    {"--threads", NULL, "N", ANY, INTEGER, AT(threads),
     "threads that run a kernel (default: the spec's shard.cores, else all CPUs)"},
    {"--json", NULL, "[F]", ANY, JSON, AT(json),
     "results as JSON on stdout; bench: or into file F; compare: --json=F"},
    {"--quiet", "-q", NULL, ANY, FLAG, AT(quiet), "print no notes, only results and errors"},
    {"--verbose", "-v", NULL, ANY, COUNT, AT(verbose), "say more; twice: everything"},
    {"--help", "-h", NULL, ANY, FLAG, AT(help), "this text"},
};
enum { OPTIONS = sizeof table / sizeof *table };

static const struct option *option_find(const char *word, size_t len, unsigned command)
{
    for (int i = 0; i < OPTIONS; i++) {
        const struct option *x = &table[i];
        bool named = strlen(x->name) == len && memcmp(x->name, word, len) == 0;
        bool brief = x->brief && strlen(x->brief) == len && memcmp(x->brief, word, len) == 0;
        if ((named || brief) && (x->commands & command))
            return x;
    }
    return NULL;
}

static bool words_add(struct words *w, const char *word)
{
    const char **more = realloc(w->at, (size_t)(w->count + 1) * sizeof *more);
    if (!more) {
        bad("out of memory");
        return false;
    }
    w->at = more;
    w->at[w->count++] = word;
    return true;
}

/* bench takes a file after --json when the next word looks like one. */
static bool json_file_follows(unsigned command, const char *next)
{
    size_t n = next ? strlen(next) : 0;
    return n && (command & BENCH) && (next[0] != '-' || n == 1) && !strstr(next, ".yaml") &&
           !strstr(next, ".yml");
}

static bool store(struct options *o, const struct option *x, const char *value)
{
    static const char *const numbers[] = {[INTEGER] = "whole number >= 0",
                                          [FROM_1] = "whole number >= 1",
                                          [REAL] = "number >= 0",
                                          [SECONDS] = "number of seconds > 0"};
    char *at = (char *)o + x->at, *end = NULL;
    bool zero = false;
    errno = 0;
    switch (x->kind) {
    case FLAG:
        *(bool *)at = true;
        return true;
    case COUNT:
        ++*(int *)at;
        return true;
    case JSON:
        if (x->at == AT(json) && strcmp(value, "-") != 0 && !(o->command->bit & RESULTS)) {
            bad("--json takes no file here: %s prints its JSON", o->command->name);
            return false;
        }
        *(const char **)at = value;
        return true;
    case TEXT:
        *(const char **)at = value;
        return true;
    case LIST_OF:
        return words_add((struct words *)at, value);
    case INTEGER:
    case FROM_1:
        *(int64_t *)at = strtoll(value, &end, 10);
        zero = *(int64_t *)at == 0;
        break;
    case REAL:
    case SECONDS:
        *(double *)at = strtod(value, &end);
        end += end != value && *end == 's' && x->kind == SECONDS;
        errno = isfinite(*(double *)at) ? errno : ERANGE;
        zero = *(double *)at == 0;
        break;
    }
    zero = zero && (x->kind == FROM_1 || x->kind == SECONDS); /* would be as if it were not given */
    if (end != value && !*end && !errno && *value != '-' && !zero)
        return true;
    bad("%s: '%s' is not a %s", x->name, value, numbers[x->kind]);
    return false;
}

static bool unknown(const struct options *o, const char *word)
{
    const char *near = NULL;
    for (int i = 0; i < OPTIONS && strlen(word) > 3; i++)
        if ((table[i].commands & o->command->bit) && strncmp(table[i].name, word, 4) == 0)
            near = table[i].name;
    bad("%s has no option '%s'%s%s; `moegen %s --help` lists them", o->command->name, word,
        near ? ", did you mean " : "", near ? near : "", o->command->name);
    return false;
}

bool options_parse(struct options *o, int count, char **words)
{
    unsigned command = o->command->bit;
    bool plain = false; /* after `--` */
    for (int i = 0; i < count; i++) {
        const char *word = words[i];
        if (plain || word[0] != '-' || !word[1]) {
            if (!words_add(&o->operands, word))
                return false;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            plain = true;
            continue;
        }
        size_t len = strcspn(word, "=");
        const struct option *x = option_find(word, len, command);
        if (!x)
            return unknown(o, word);
        const char *value = word[len] ? word + len + 1 : NULL;
        const char *next = i + 1 < count ? words[i + 1] : NULL;
        if (x->kind == JSON && !value)
            value = json_file_follows(command, next) ? words[++i] : "-";
        else if (x->value && !value && next)
            value = words[++i];
        if (x->value ? !value || (x->kind == TEXT && !*value) : value != NULL) {
            bad("%s takes %s%s", x->name, x->value ? "a value: " : "no value",
                x->value ? x->value : "");
            return false;
        }
        if (!store(o, x, value))
            return false;
    }
    if (o->threads > MOST_THREADS)
        bad("--threads: %" PRId64 " is not in 0..%d", o->threads, MOST_THREADS);
    return o->threads <= MOST_THREADS;
}

/* The bytes of a list's first item. */
static size_t item_len(const char *list)
{
    size_t len = 0;
    for (int depth = 0; list[len] && (depth || list[len] != ','); len++)
        depth += (strchr("[{", list[len]) != NULL) - (strchr("]}", list[len]) != NULL);
    return len;
}

bool next_item(const char **at, char out[ITEM])
{
    if (!*at || !**at)
        return false;
    size_t len = item_len(*at);
    snprintf(out, ITEM, "%.*s", (int)len, *at);
    *at += len + ((*at)[len] == ',');
    return true;
}

int items_fit(const char *option, const char *list)
{
    for (size_t len; list && *list; list += len + (list[len] == ','))
        if ((len = item_len(list)) >= ITEM)
            return bad("%s: an item of %zu bytes, and %d are the most: %.32s...", option, len,
                       ITEM - 1, list);
    return EXIT_OK;
}

void options_free(struct options *o)
{
    free(o->operands.at);
    free(o->set.at);
    free(o->in.at);
    free(o->vary.at);
    free(o->only.at);
}

void help_command(const struct command *c, FILE *to)
{
    fprintf(to, "usage: moegen %s %s [options]\n\n%s\n\noptions:\n", c->name, c->operands,
            c->summary);
    for (int i = 0; i < OPTIONS; i++) {
        const struct option *x = &table[i];
        char left[64];
        if (!(x->commands & c->bit))
            continue;
        snprintf(left, sizeof left, "%s%s%s%s%s", x->brief ? x->brief : "",
                 x->brief ? ", " : "    ", x->name, x->value ? " " : "", x->value ? x->value : "");
        fprintf(to, "  %-22s %s\n", left, x->help);
    }
    fprintf(to, "\nexamples:\n%s\n", c->examples);
    fprintf(to,
            "\nexit status: 0 ok, 1 check failed, 2 bad input, 3 not supported on this machine, "
            "4 a bug of moegen\n");
}

void help_all(FILE *to)
{
    fprintf(to,
            "moegen %d.%d.%d - generator of mixture-of-experts kernels\n\n"
            "usage: moegen COMMAND ... (`moegen COMMAND --help` has examples)\n\ncommands:\n",
            MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR, MOEGEN_VERSION_PATCH);
    for (const struct command *c = commands; c->name; c++)
        fprintf(to, "  %-11s %s\n", c->name, c->summary);
    fprintf(to,
            "\nSPEC is a YAML file, or FILE:KERNEL[,KERNEL...] for those kernels of a model file.\n"
            "Start here:\n"
            "  moegen list kernels\n"
            "  moegen check specs/olmoe-1b-7b.yaml:forward --T 256\n");
}

int completion_print(const char *shell)
{
    if (strcmp(shell, "bash") != 0 && strcmp(shell, "zsh") != 0)
        return bad("completion: '%s' is not one of bash, zsh", shell);
    if (strcmp(shell, "zsh") == 0)
        printf("autoload -U +X bashcompinit && bashcompinit\n");
    printf("_moegen() {\n    local cur=${COMP_WORDS[COMP_CWORD]} words\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (const struct command *c = commands; c->name; c++) {
        printf("    %s) words='", c->name);
        for (int i = 0; i < OPTIONS; i++)
            if (table[i].commands & c->bit)
                printf("%s ", table[i].name);
        printf("' ;;\n");
    }
    printf("    esac\n    [ \"$COMP_CWORD\" = 1 ] && words='");
    for (const struct command *c = commands; c->name; c++)
        printf("%s ", c->name);
    printf("'\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "    [ \"${cur#-}\" = \"$cur\" ] && [ \"$COMP_CWORD\" != 1 ] && "
           "COMPREPLY+=($(compgen -f -- \"$cur\"))\n}\n"
           "complete -F _moegen moegen\n");
    return EXIT_OK;
}
