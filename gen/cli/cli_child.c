/* SPDX-License-Identifier: Apache-2.0 */
/* cli_child.c - work in a process of its own: see cli_child.h. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli_child.h"

void *child_share(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

void child_unshare(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}

bool child_run(void (*work)(void *ctx), void *ctx, char how_it_ended[128])
{
    int status = 0;
    fflush(NULL); /* or the child would print it once more */
    pid_t parent = getpid(), child = fork();
    if (child <= 0) {
        if (child == 0) { /* not to outlive a parent that is killed */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(EXIT_FAILURE);
        }
        work(ctx);
        if (child == 0)
            exit(EXIT_SUCCESS);
        return true;
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) {
            snprintf(how_it_ended, 128, "nobody knows how it ended (%s)", strerror(errno));
            return false;
        }
    if (WIFSIGNALED(status))
        snprintf(how_it_ended, 128, "%s (signal %d)", strsignal(WTERMSIG(status)),
                 WTERMSIG(status));
    else if (status)
        snprintf(how_it_ended, 128, "the process ended with status %d", WEXITSTATUS(status));
    return status == 0;
}
