/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.c - features, caches and number of CPUs.
 *
 * A new instruction set: one row in `features` (leaf, subleaf, register and bit as the manual of
 * CPUID gives them; `needs` says which register state the operating system must save). Nothing else
 * in runtime/ knows a feature by name.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime_private.h"

enum reg { EAX, EBX, ECX, EDX };
enum { XMM = 0, YMM = 0x6, ZMM = 0xe6, TILE = 0x60000 }; /* bits of XCR0 that must be set */

/* clang-format off */
static const struct feature {
    const char *name;
    uint32_t leaf, subleaf;
    enum reg reg;
    int bit;
    uint32_t needs;
} features[] = {
    /* name               leaf sub  reg  bit  needs */
    {"sse2",              0x1,   0, EDX, 26,  XMM},
    {"sse3",              0x1,   0, ECX,  0,  XMM},
    {"ssse3",             0x1,   0, ECX,  9,  XMM},
    {"sse4_1",            0x1,   0, ECX, 19,  XMM},
    {"sse4_2",            0x1,   0, ECX, 20,  XMM},
    {"popcnt",            0x1,   0, ECX, 23,  XMM},
    {"movbe",             0x1,   0, ECX, 22,  XMM},
    {"bmi1",              0x7,   0, EBX,  3,  XMM},
    {"bmi2",              0x7,   0, EBX,  8,  XMM},
    {"gfni",              0x7,   0, ECX,  8,  XMM},
    {"avx",               0x1,   0, ECX, 28,  YMM},
    {"fma",               0x1,   0, ECX, 12,  YMM},
    {"f16c",              0x1,   0, ECX, 29,  YMM},
    {"avx2",              0x7,   0, EBX,  5,  YMM},
    {"avx_vnni",          0x7,   1, EAX,  4,  YMM},
    {"avx_ifma",          0x7,   1, EAX, 23,  YMM},
    {"avx_vnni_int8",     0x7,   1, EDX,  4,  YMM},
    {"avx_ne_convert",    0x7,   1, EDX,  5,  YMM},
    {"avx_vnni_int16",    0x7,   1, EDX, 10,  YMM},
    {"avx512f",           0x7,   0, EBX, 16,  ZMM},
    {"avx512dq",          0x7,   0, EBX, 17,  ZMM},
    {"avx512_ifma",       0x7,   0, EBX, 21,  ZMM},
    {"avx512cd",          0x7,   0, EBX, 28,  ZMM},
    {"avx512bw",          0x7,   0, EBX, 30,  ZMM},
    {"avx512vl",          0x7,   0, EBX, 31,  ZMM},
    {"avx512_vbmi",       0x7,   0, ECX,  1,  ZMM},
    {"avx512_vbmi2",      0x7,   0, ECX,  6,  ZMM},
    {"avx512_vnni",       0x7,   0, ECX, 11,  ZMM},
    {"avx512_bitalg",     0x7,   0, ECX, 12,  ZMM},
    {"avx512_vpopcntdq",  0x7,   0, ECX, 14,  ZMM},
    {"avx512_fp16",       0x7,   0, EDX, 23,  ZMM},
    {"avx512_bf16",       0x7,   1, EAX,  5,  ZMM},
    {"avx10",             0x7,   1, EDX, 19,  ZMM},
    {"amx_bf16",          0x7,   0, EDX, 22,  TILE},
    {"amx_tile",          0x7,   0, EDX, 24,  TILE},
    {"amx_int8",          0x7,   0, EDX, 25,  TILE},
    {"amx_fp16",          0x7,   1, EAX, 21,  TILE},
    {"amx_complex",       0x7,   1, EDX,  8,  TILE},
    {"amx_fp8",          0x1e,   1, EAX,  4,  TILE},
    {"amx_transpose",    0x1e,   1, EAX,  5,  TILE},
    {"amx_tf32",         0x1e,   1, EAX,  6,  TILE},
    {"amx_avx512",       0x1e,   1, EAX,  7,  TILE},
    {"amx_movrs",        0x1e,   1, EAX,  8,  TILE},
};
/* clang-format on */
enum { FEATURES = sizeof features / sizeof *features };

/* What this CPU has, read once: CPUID traps in virtual machines, at tens of microseconds each. */
static bool present[FEATURES];
static char kind[32] = "unknown";
static pthread_once_t present_once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* The leaves that `features` names, each asked for at most once. */
struct leaf {
    uint32_t leaf, subleaf;
    unsigned reg[4]; /* zero where the CPU has no such leaf */
};
struct leaves {
    struct leaf at[16];
    int count;
};

static const struct leaf *leaf_at(struct leaves *known, uint32_t leaf, uint32_t subleaf)
{
    for (int i = 0; i < known->count; i++)
        if (known->at[i].leaf == leaf && known->at[i].subleaf == subleaf)
            return &known->at[i];
    bool there = leaf == 0 || leaf <= leaf_at(known, 0, 0)->reg[EAX];
    if (subleaf > 0) /* the highest subleaf is in EAX of subleaf 0 */
        there = there && subleaf <= leaf_at(known, leaf, 0)->reg[EAX];
    struct leaf *new = &known->at[known->count++];
    *new = (struct leaf){leaf, subleaf, {0}};
    if (there)
        __cpuid_count(leaf, subleaf, new->reg[EAX], new->reg[EBX], new->reg[ECX], new->reg[EDX]);
    return new;
}

static uint64_t xcr0(struct leaves *known)
{
    uint32_t low, high;
    if (!(leaf_at(known, 1, 0)->reg[ECX] >> 27 & 1)) /* no OSXSAVE? */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool tiles_allowed(void)
{
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

static void find_present(void)
{
    struct leaves known = {.count = 0};
    uint64_t saved = xcr0(&known);
    int tiles = -1; /* not asked yet */
    char maker[13] = "";
    const struct leaf *l = leaf_at(&known, 0, 0);
    memcpy(maker, &l->reg[EBX], 4);
    memcpy(maker + 4, &l->reg[EDX], 4);
    memcpy(maker + 8, &l->reg[ECX], 4);
    snprintf(kind, sizeof kind, "%s-%08x", maker, leaf_at(&known, 1, 0)->reg[EAX]);
    for (int i = 0; i < FEATURES; i++) {
        const struct feature *f = &features[i];
        l = leaf_at(&known, f->leaf, f->subleaf);
        present[i] = (l->reg[f->reg] >> f->bit & 1) && !(f->needs & ~saved);
        if (present[i] && f->needs == TILE) {
            tiles = tiles < 0 ? tiles_allowed() : tiles;
            present[i] = tiles;
        }
    }
}
#else
static void find_present(void) {}
#endif

/* Equal but for underscores? */
static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (*a == '_')
            a++;
        while (*b == '_')
            b++;
        if (*a != *b)
            return false;
        if (!*a)
            return true;
    }
}

int moegen_rt_cpu_has(const char *name)
{
    pthread_once(&present_once, find_present);
    for (int i = 0; i < FEATURES; i++)
        if (same_name(features[i].name, name))
            return present[i];
    return 0;
}

const char *moegen_rt_cpu_feature(int i)
{
    return i >= 0 && i < FEATURES ? features[i].name : NULL;
}

const char *moegen_rt_cpu_kind(void)
{
    pthread_once(&present_once, find_present);
    return kind;
}

int moegen_rt_cpu_count(void)
{
    for (int room = 1024; room <= 1 << 20; room *= 2) { /* the kernel's mask may be longer */
        cpu_set_t *set = CPU_ALLOC(room);
        if (!set)
            break;
        size_t size = CPU_ALLOC_SIZE(room);
        int n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0)
            return n;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* One line of a small file; false if there is none. */
static bool read_line(const char *path, char *line, int room)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool got = fgets(line, room, f) != NULL;
    fclose(f);
    return got;
}

static size_t cache_from_sysfs(int level)
{
    for (int i = 0; i < 8; i++) {
        char path[96], line[64];
#define ATTRIBUTE(name)                                                                            \
    (snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i, name),        \
     read_line(path, line, sizeof line))
        if (!ATTRIBUTE("level"))
            break;
        if (atoi(line) != level || !ATTRIBUTE("type") || strncmp(line, "Instr", 5) == 0)
            continue;
        if (!ATTRIBUTE("size"))
            continue;
#undef ATTRIBUTE
        char *unit;
        size_t size = strtoul(line, &unit, 10);
        return *unit == 'K' ? size << 10 : *unit == 'M' ? size << 20 : size;
    }
    return 0;
}

size_t moegen_rt_cpu_cache(int level)
{
    if (level < 1 || level > 3)
        return 0;
    size_t size = cache_from_sysfs(level);
#ifdef _SC_LEVEL1_DCACHE_SIZE
    static const int name[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                               _SC_LEVEL3_CACHE_SIZE};
    if (size == 0) {
        long bytes = sysconf(name[level - 1]);
        size = bytes > 0 ? (size_t)bytes : 0;
    }
#endif
    return size;
}
