/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - counts and prints what is not so; included once by each test. */
#include <stdio.h>

static int failures;
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition) && failures++ < 20) {                                                     \
            printf("%s:%d: ", __FILE__, __LINE__);                                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)
