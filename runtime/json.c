/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - tokens of the JSON of a tensor file's header, read strictly: names, texts, sizes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime_private.h"

void rt_disarm(char *text)
{
    for (char *c = text; *c; c++)
        for (int n = rt_control(c); n > 0; n--)
            c[n - 1] = '?';
}

bool rt_scan_bad(struct rt_scan *s, const char *format, ...)
{
    if (s->status != MOEGEN_RT_OK)
        return false;
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    rt_disarm(what);
    s->status = *s->name ? rt_fail(s->err, MOEGEN_RT_BAD_DATA, "%s: tensor '%s': %s", s->path,
                                   s->name, what)
                         : rt_fail(s->err, MOEGEN_RT_BAD_DATA, "%s: header, byte %zu: %s", s->path,
                                   (size_t)(s->at - s->start), what);
    return false;
}

void rt_scan_skip(struct rt_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

bool rt_scan_take(struct rt_scan *s, char c)
{
    rt_scan_skip(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

bool rt_scan_expect(struct rt_scan *s, char c, const char *where)
{
    return rt_scan_take(s, c) || rt_scan_bad(s, "expected '%c' %s", c, where);
}

int rt_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    int n = s[0] < 0x80   ? 1
            : s[0] < 0xc2 ? 0
            : s[0] < 0xe0 ? 2
            : s[0] < 0xf0 ? 3
            : s[0] < 0xf5 ? 4
                          : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || /* overlong, surrogate */
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))   /* beyond U+10FFFF */
        return 0;
    return n;
}

int rt_control(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] == 0xc2)
        return s[1] >= 0x80 && s[1] < 0xa0 ? 2 : 0;
    return (s[0] && s[0] < 0x20) || s[0] == 0x7f;
}

static int put_utf8(char *to, uint32_t c)
{
    if (c < 0x80)
        return to[0] = (char)c, 1;
    if (c < 0x800)
        return to[0] = (char)(0xc0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return to[0] = (char)(0xe0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)),
               to[2] = (char)(0x80 | (c & 63)), 3;
    return to[0] = (char)(0xf0 | c >> 18), to[1] = (char)(0x80 | (c >> 12 & 63)),
           to[2] = (char)(0x80 | (c >> 6 & 63)), to[3] = (char)(0x80 | (c & 63)), 4;
}

/* Four hexadecimal digits. */
static bool hex4(struct rt_scan *s, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *d = s->at < s->end && *s->at ? strchr(digits, *s->at) : NULL;
        if (!d)
            return rt_scan_bad(s, "\\u needs four hexadecimal digits");
        *code = *code << 4 | (uint32_t)((d - digits) & 15);
    }
    return true;
}

/* What follows a backslash, as UTF-8 in to. */
static bool escape(struct rt_scan *s, char *to, int *len)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = s->at < s->end ? *s->at++ : '\0';
    const char *known = c ? strchr(from, c) : NULL;
    uint32_t code, low;
    if (known)
        return *to = into[known - from], *len = 1, true;
    if (c != 'u')
        return rt_scan_bad(s, "unknown escape in a string");
    if (!hex4(s, &code))
        return false;
    if (code >= 0xd800 && code < 0xdc00) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
            return rt_scan_bad(s, "half of a surrogate pair");
        s->at += 2;
        if (!hex4(s, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return rt_scan_bad(s, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return rt_scan_bad(s, "half of a surrogate pair");
    }
    if (code == 0)
        return rt_scan_bad(s, "a string holds the character NUL");
    *len = put_utf8(to, code);
    return true;
}

bool rt_scan_string(struct rt_scan *s, bool any, const char *where)
{
    size_t len = 0;
    if (!rt_scan_take(s, '"'))
        return rt_scan_bad(s, "expected a string %s", where);
    for (;;) {
        char piece[5];
        int n = 1;
        if (s->at == s->end)
            return rt_scan_bad(s, "a string does not end");
        if (*s->at == '"')
            break;
        if ((unsigned char)*s->at < 0x20)
            return rt_scan_bad(s, "a string holds a control character");
        if (*s->at == '\\') {
            s->at++;
            if (!escape(s, piece, &n))
                return false;
        } else {
            n = rt_utf8(s->at);
            if (n == 0 || n > s->end - s->at)
                return rt_scan_bad(s, "a string is not UTF-8");
            memcpy(piece, s->at, (size_t)n);
            s->at += n;
        }
        piece[n] = '\0';
        if (!any && rt_control(piece))
            return rt_scan_bad(s, "a name holds a control character");
        if (len + (size_t)n <= RT_MAX_NAME)
            memcpy(s->string + len, piece, (size_t)n);
        else if (!any)
            return rt_scan_bad(s, "a name is longer than %d bytes", RT_MAX_NAME);
        len += (size_t)n;
    }
    s->at++;
    s->string[len <= RT_MAX_NAME ? len : 0] = '\0';
    return true;
}

/* A whole number below 2^63 without sign, fraction or leading zero. */
static bool number(struct rt_scan *s, int64_t *value)
{
    rt_scan_skip(s);
    const char *first = s->at;
    uint64_t v = 0;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        if (v > (INT64_MAX - 9) / 10)
            return rt_scan_bad(s, "a number is too large");
        v = v * 10 + (uint64_t)(*s->at - '0');
    }
    if (s->at == first || (*first == '0' && s->at - first > 1))
        return rt_scan_bad(s, "expected a whole number, not negative, without leading zeros");
    *value = (int64_t)v;
    return true;
}

bool rt_scan_numbers(struct rt_scan *s, int room, int64_t *to, int *count, const char *what)
{
    *count = 0;
    if (!rt_scan_expect(s, '[', what))
        return false;
    if (rt_scan_take(s, ']'))
        return true;
    do {
        if (*count == room)
            return rt_scan_bad(s, "more than %d numbers %s", room, what);
        if (!number(s, &to[(*count)++]))
            return false;
    } while (rt_scan_take(s, ','));
    return rt_scan_expect(s, ']', what);
}
