/* SPDX-License-Identifier: Apache-2.0 */
/* digest.c - SHA-256 (FIPS 180-4), and a fast 64-bit hash. */
#include <string.h>

#include "base.h"

/* ---- SHA-256 ---- */

static const uint32_t first[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const uint32_t constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* One round without its renaming: d and h become the new e and a. */
static inline void round_of(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e, uint32_t f,
                            uint32_t g, uint32_t *h, uint32_t x)
{
    uint32_t t = *h + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + (g ^ (e & (f ^ g))) + x;
    *d += t;
    *h = t + (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) | (c & (a | b)));
}

static void block(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (right(x, 7) ^ right(x, 18) ^ x >> 3) + w[i - 7] +
               (right(y, 17) ^ right(y, 19) ^ y >> 10);
    }
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
    for (int i = 0; i < 64; i += 8) { /* after eight rounds every name is back in its place */
        round_of(a, b, c, &d, e, f, g, &k, constant[i] + w[i]);
        round_of(k, a, b, &c, d, e, f, &g, constant[i + 1] + w[i + 1]);
        round_of(g, k, a, &b, c, d, e, &f, constant[i + 2] + w[i + 2]);
        round_of(f, g, k, &a, b, c, d, &e, constant[i + 3] + w[i + 3]);
        round_of(e, f, g, &k, a, b, c, &d, constant[i + 4] + w[i + 4]);
        round_of(d, e, f, &g, k, a, b, &c, constant[i + 5] + w[i + 5]);
        round_of(c, d, e, &f, g, k, a, &b, constant[i + 6] + w[i + 6]);
        round_of(b, c, d, &e, f, g, k, &a, constant[i + 7] + w[i + 7]);
    }
    const uint32_t v[8] = {a, b, c, d, e, f, g, k};
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

void sha256_start(struct sha256 *s)
{
    *s = (struct sha256){0};
    memcpy(s->h, first, sizeof first);
}

void sha256_add(struct sha256 *s, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    size_t held = s->len % 64;
    s->len += len;
    if (held) {
        size_t n = len < 64 - held ? len : 64 - held;
        memcpy(s->tail + held, p, n);
        if (held + n < 64)
            return;
        block(s->h, s->tail);
        p += n;
        len -= n;
    }
    for (; len >= 64; p += 64, len -= 64)
        block(s->h, p);
    if (len)
        memcpy(s->tail, p, len);
}

void sha256_end(struct sha256 *s, unsigned char out[32])
{
    uint64_t bits = 8 * s->len;
    unsigned char pad[72] = {0x80};
    size_t zeros = (119 - s->len % 64) % 64; /* up to 8 bytes before the end of a block */
    for (int i = 0; i < 8; i++)
        pad[1 + zeros + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(s, pad, 1 + zeros + 8);
    for (int i = 0; i < 32; i++)
        out[i] = (unsigned char)(s->h[i / 4] >> (24 - i % 4 * 8));
}

void digest_sha256(const void *bytes, size_t len, unsigned char out[32])
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, bytes, len);
    sha256_end(&s, out);
}

/* ---- fast hash: words go into the halves of 64 x 64 -> 128 bit products, two chains at a time
 * ---- */

__extension__ typedef unsigned __int128 u128;

/* Odd, half of the bits set. */
#define K0 UINT64_C(0xa3d3615b96b1c5e9)
#define K1 UINT64_C(0xc68be217d2a53d4b)
#define K2 UINT64_C(0x9e1d5ac3b24b6ad3)
#define K3 UINT64_C(0xd94e3a8765b2c397)

static uint64_t word(const unsigned char *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* b is added again, so that neither word can hide the other by making a factor zero. */
static uint64_t mix(uint64_t h, uint64_t a, uint64_t b, uint64_t k)
{
    return fold(h ^ a, b ^ k) + (b << 32 | b >> 32) + (h ^ a);
}

uint64_t digest_fast(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    uint64_t g = K0 ^ len, h = K1;
    size_t left = len;
    for (; left >= 32; p += 32, left -= 32) {
        g = mix(g, word(p), word(p + 8), K2);
        h = mix(h, word(p + 16), word(p + 24), K3);
    }
    unsigned char tail[32] = {0};
    if (left)
        memcpy(tail, p, left);
    g = mix(g, word(tail), word(tail + 8), K2);
    h = mix(h, word(tail + 16), word(tail + 24), K3);
    return fold(mix(g, h, len, K0) ^ K1, K3);
}

void digest_hex(const unsigned char *bytes, size_t len, char *out)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        *out++ = digit[bytes[i] >> 4];
        *out++ = digit[bytes[i] & 15];
    }
    *out = '\0';
}
