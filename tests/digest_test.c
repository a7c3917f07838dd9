/* SPDX-License-Identifier: Apache-2.0 */
/* digest_test.c - SHA-256 by its standard's examples; the fast hash sees every bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void fail(int line, const char *what)
{
    fprintf(stderr, "digest_test.c:%d: not so: %s\n", line, what);
    exit(1);
}

static void sha_is(const char *text, size_t repeat, const char *want)
{
    struct sha256 s;
    unsigned char out[32];
    char hex[65];
    sha256_start(&s);
    for (size_t i = 0; i < repeat; i++)
        sha256_add(&s, text, strlen(text));
    sha256_end(&s, out);
    digest_hex(out, 32, hex);
    CHECK(strcmp(hex, want) == 0);
}

static void test_sha256(void)
{
    /* FIPS 180-4 examples */
    sha_is("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha_is("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    sha_is("aaaaaaaaaa", 100000,
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    unsigned char bytes[300], one[32], two[32];
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 31);
    for (size_t len = 0; len < 200; len++) { /* any split gives the same */
        struct sha256 s;
        sha256_start(&s);
        sha256_add(&s, bytes, len / 3);
        sha256_add(&s, bytes + len / 3, len - len / 3);
        sha256_end(&s, one);
        digest_sha256(bytes, len, two);
        CHECK(memcmp(one, two, 32) == 0);
    }
}

static void test_fast(void)
{
    unsigned char bytes[300];
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 31);
    CHECK(digest_fast("", 0) != digest_fast("\0", 1) &&
          digest_fast("\0", 1) != digest_fast("\0\0", 2));
    for (size_t len = 1; len < 200; len += 3) { /* every bit counts, alignment does not */
        uint64_t h = digest_fast(bytes, len);
        unsigned char copy[301];
        memcpy(copy + 1, bytes, len);
        CHECK(digest_fast(copy + 1, len) == h);
        for (size_t bit = 0; bit < 8 * len; bit++) {
            copy[1 + bit / 8] ^= (unsigned char)(1 << bit % 8);
            uint64_t g = digest_fast(copy + 1, len) ^ h;
            copy[1 + bit / 8] ^= (unsigned char)(1 << bit % 8);
            CHECK(__builtin_popcountll(g) >= 8);
        }
    }
}

int main(void)
{
    test_sha256();
    test_fast();
    return 0;
}
