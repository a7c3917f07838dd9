/* SPDX-License-Identifier: Apache-2.0 */
/* cli_codes.c - what a status says: of the library by name, of the program by number. */
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const struct code {
    const char *name, *says, *then;
} codes[] = {
    /* exit status of the program */
    {"0", "ok", "nothing"},
    {"1", "a check failed, or `compare` found what is slower for sure",
     "results on stdout say which kernel and by how much"},
    {"2", "bad input: a spec, a tensor, a file or the command's words",
     "each message on stderr has its place: mend what it points at"},
    {"3", "not supported on this machine: an instruction set, a compiler, memory",
     "`moegen list targets` says what needs what; spelling scalar runs anywhere"},
    {"4", "a bug of moegen", "please report it with the spec and the command"},
    /* moegen_status of the library, moegen.h */
    {"MOEGEN_OK", "ok", "nothing"},
    {"MOEGEN_BAD_ARGUMENT", "the host's fault: NULL, an unknown tensor, a wrong shape or dtype",
     "the error's text names the argument, and what was expected"},
    {"MOEGEN_BAD_SPEC", "the spec's fault: an unknown key, a value out of range, keys at odds",
     "the error holds every complaint with its place; `moegen list keys FAMILY` has the keys"},
    {"MOEGEN_UNSUPPORTED", "this machine or spelling cannot",
     "choose another target or spelling; `moegen explain SPEC` says why others were rejected"},
    {"MOEGEN_BAD_DATA", "a tensor's content is out of range: an expert's index, a token's id",
     "outputs hold nothing of use; look at what made the indices"},
    {"MOEGEN_NO_MEMORY", "there is not enough memory", "fewer tokens, or fewer threads, need less"},
    {"MOEGEN_IO", "a file could not be read or written",
     "the error's text has its name and the system's reason"},
    {"MOEGEN_INTERNAL", "a bug of moegen", "please report it with the spec and the call"},
};

bool code_explained(const char *name, struct text *to)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(name, codes[i].name) != 0)
            continue;
        text_fmt(to, "%s  %s\n  what to do: %s\n", name, codes[i].says, codes[i].then);
        return true;
    }
    return false;
}

bool code_unknown(const char *name, struct text *known)
{
    bool is_number = *name && strspn(name, "0123456789") == strlen(name);
    bool is_name = strncmp(name, "MOEGEN_", 7) == 0 &&
                   strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == strlen(name);
    if ((!is_number && !is_name) || access(name, F_OK) == 0)
        return false;
    for (size_t i = 0, found = 0; i < sizeof codes / sizeof *codes; i++)
        if (is_number == (strncmp(codes[i].name, "MOEGEN_", 7) != 0))
            text_fmt(known, "%s%s", found++ ? ", " : "", codes[i].name);
    return true;
}
