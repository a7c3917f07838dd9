/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.h - the programs of tests/amx.lua, one struct per spelling. */
#include <stdint.h>

#include "moegen_rt.h"

typedef void tile_product(float *S_0, const uint16_t *A_0, float *S_1, const uint16_t *A_1,
                          const uint16_t *B_0, const uint16_t *B_1, int64_t steps, int64_t a_stride,
                          int64_t a_step, int64_t b_stride, int64_t b_step, int64_t s_stride);

struct tile_programs {
    const char *name;
    tile_product *set, *add;
    void (*on)(const uint8_t *shapes);
    void (*off)(void);
    void (*peak)(float *out, int64_t stride, int64_t n); /* n * PEAK_DOTS dots from registers */
};

extern const struct tile_programs bytes_programs, intrinsics_programs, scalar_programs;
extern const uint8_t *const tile_shapes;

enum { PEAK_DOTS = 24 };
