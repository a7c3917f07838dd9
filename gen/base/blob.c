/* SPDX-License-Identifier: Apache-2.0 */
/* blob.c - machine code as bytes: what compilers give and caches keep. */
#include <stdlib.h>

#include "base.h"

void blob_free(struct blob *b)
{
    free(b->at);
    *b = (struct blob){0};
}
