/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the program `moegen`: its commands and which function runs each. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

const struct command commands[] = {
    {"gen", "SPEC", "write the C and header of a spec's kernels",
     "  moegen gen specs/olmoe-1b-7b.yaml:forward -o build\n"
     "  moegen gen specs/olmoe-1b-7b.yaml:forward --target avx512 --spelling bytes -o -\n"
     "  moegen gen specs/olmoe-1b-7b.yaml -o build --depfile build/olmoe.d",
     GEN, cmd_gen},
    {"run", "SPEC", "compile a kernel in memory and run it on a tensor file",
     "  moegen run specs/olmoe-1b-7b.yaml:forward --in in.safetensors --out out.safetensors\n"
     "  moegen run spec.yaml --in in.safetensors --out out.safetensors --target scalar --threads 1",
     RUN, cmd_run},
    {"check", "SPEC", "compare with the float64 reference; error of every output",
     "  moegen check specs/olmoe-1b-7b.yaml:forward --T 256\n"
     "  moegen check specs/olmoe-1b-7b.yaml --target all --spelling all --cc gcc,clang",
     CHECK, cmd_check},
    {"bench", "SPEC", "time, GFLOP/s, shares of the machine's measured peak and roof, GB/s",
     "  moegen bench specs/olmoe-1b-7b.yaml:forward --T 1024\n"
     "  moegen bench specs/olmoe-1b-7b.yaml:forward --vary target=avx2,avx512 --threads 1\n"
     "  moegen bench specs/olmoe-1b-7b.yaml --json result.json\n"
     "  moegen bench specs/olmoe-1b-7b.yaml:forward --latency",
     BENCH, cmd_bench},
    {"compare", "A.json B.json | SPEC",
     "is one variant faster than another? median ratio, 95 % interval, verdict",
     "  moegen compare specs/layer-a.yaml:forward --vary target=avx2,avx512 --T 64\n"
     "  moegen compare specs/layer-a.yaml --against ../before/build/moegen --T 64\n"
     "  moegen compare before.json after.json --fail-below 0.97\n"
     "  moegen compare before-*.json after-*.json --md\n"
     "\n"
     "Of a spec, the first variant is A; each is benched in fresh processes, in turns (A B, B A),\n"
     "until the verdicts are clear or --budget is spent. Of files, the first half is A's, the "
     "second\n"
     "B's. B is faster or slower when its ratio is beyond --margin and 1 is well outside of the\n"
     "interval, the same when the ratio is within it and the interval within twice, else noisy.",
     COMPARE, cmd_compare},
    {"tune", "SPEC",
     "find the fastest plan of this machine, prove it, and keep it for later kernels",
     "  moegen tune specs/olmoe-1b-7b.yaml:forward\n"
     "  moegen tune specs/olmoe-1b-7b.yaml --budget 120 --T 1,64 --threads 1,2 -o plans.yaml\n"
     "\n"
     "Ctrl-C ends the search and keeps the best that was found; again: without confirming it.\n"
     "`moegen explain` shows which tuned plan a kernel takes; --set plan.tuned=false: none.",
     TUNE, cmd_tune},
    {"report", "DIR", "tables and pictures of a directory's result files as one HTML page",
     "  moegen bench specs/layer-a.yaml --vary T=16,256 --json results/layer-a.json\n"
     "  moegen report results",
     REPORT, cmd_report},
    {"explain", "SPEC | CODE",
     "the plan, why each choice, why other targets were rejected, what multiplies; or a status",
     "  moegen explain specs/olmoe-1b-7b.yaml:forward\n"
     "  moegen explain specs/olmoe-1b-7b.yaml:forward --target avx2\n"
     "  moegen explain MOEGEN_BAD_DATA\n"
     "  moegen explain 3",
     EXPLAIN, cmd_explain},
    {"list", "WHAT", "kernels, activations, dtypes, formats, targets or keys [FAMILY]",
     "  moegen list kernels\n"
     "  moegen list keys moe_layer\n"
     "  moegen list formats",
     LIST, cmd_list},
    {"quantize", "IN.safetensors", "tensors of a file to codes and scales of a format, or back",
     "  moegen quantize model.safetensors --to mxfp4 --only '*proj_weight' --out "
     "small.safetensors\n"
     "  moegen quantize model.safetensors --to fp8_e4m3 --axis 1 --only '*proj_weight' --out o.st\n"
     "  moegen quantize small.safetensors --to bf16 --out again.safetensors\n"
     "  moegen quantize deepseek.safetensors --to bf16 --from fp8_e4m3 --scale block --out o.st\n"
     "\n"
     "Without --only, every tensor of f32, bf16 or f16 with two extents or more is converted, or\n"
     "back: every one that the file's metadata or --from names the format of. The rest is copied.\n"
     "A tensor is matrices of [.., out, in] elements, or with --axis n, which `in` then is, of\n"
     "[.., in, out], out being all extents after it. Scales of NAME_weight are NAME_scale: [.., "
     "1,\n"
     "out] of rows, [.., 1] of a matrix, [.., out/128, in/128] of blocks, [.., out, in/group] of\n"
     "groups. Groups lie along `in`: then codes are [.., out, in/32, 32 or 16 bytes] (mx...) or\n"
     "[.., out, in/2] whatever the axis was. `moegen list formats` has the formats.",
     QUANTIZE, cmd_quantize},
    {"pack", "SPEC", "matrices of weights of a file in the order in which a kernel reads them",
     "  moegen pack specs/olmoe-1b-7b.yaml:forward --in model.safetensors --out "
     "packed.safetensors\n"
     "  moegen pack spec.yaml --in w.safetensors --out p.safetensors --target avx512\n"
     "\n"
     "Packed tensors are for kernels with weights.layout: packed, of a plan that reads them so:\n"
     "others refuse them. Matrices lie in the file as the spec's layout says, plain or "
     "transposed;\n"
     "if it says packed, as their shapes or --from say. Other tensors are copied.",
     PACK, cmd_pack},
    {"cache", "WHAT", "the disk cache: path, list, verify, prune --max SIZE, clear",
     "  moegen cache path\n"
     "  moegen cache prune --max 256M",
     CACHE, cmd_cache},
    {"schema", "", "JSON schema of the spec language, for editors", "  moegen schema > moegen.json",
     SCHEMA, cmd_schema},
    {"completion", "SHELL", "completions for bash or zsh", "  eval \"$(moegen completion bash)\"",
     COMPLETION, cmd_completion},
    {NULL, NULL, NULL, NULL, 0, NULL},
};

static const struct command *command_find(const char *name)
{
    for (const struct command *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

/* Where the caller closed stdin, stdout or stderr, the next file opened would be it, and what is
 * printed would lie amid a result: something that cannot be written takes the place. */
static bool hold_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    if (!hold_streams())
        return EXIT_NOT_HERE; /* and nowhere to say why */
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a complaint */
    const char *name = argc > 1 ? argv[1] : "--help";
    if (strcmp(name, "--version") == 0) {
        printf("moegen %d.%d.%d\n", MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR,
               MOEGEN_VERSION_PATCH);
        return EXIT_OK;
    }
    bool help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0;
    if (help && argc > 2 && command_find(argv[2])) {
        help_command(command_find(argv[2]), stdout);
        return EXIT_OK;
    }
    if (help) {
        help_all(argc > 1 ? stdout : stderr);
        return argc > 1 ? EXIT_OK : EXIT_BAD_INPUT;
    }
    struct options o = {.command = command_find(name), .seed = 1, .axis = -1, .margin = 0.02};
    if (!o.command)
        return bad("'%s' is no command; `moegen --help` lists them", name);
    int result = EXIT_BAD_INPUT;
    if (!command_keep(argc, argv)) {
        result = fail(MOEGEN_NO_MEMORY, NULL);
    } else if (options_parse(&o, argc - 2, argv + 2)) {
        quiet = o.quiet;
        verbose = o.verbose;
        if (o.help) {
            help_command(o.command, stdout);
            result = EXIT_OK;
        } else {
            result = results_ready(&o);
            if (!result)
                result = whole(o.command->run(&o));
        }
    }
    options_free(&o);
    if (fflush(stdout) || ferror(stdout))
        return bad("cannot write to standard output");
    return result;
}
