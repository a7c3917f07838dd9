-- SPDX-License-Identifier: Apache-2.0
-- scalar_state.lua - what ops mean that work on more than vectors: the thread's floating-point mode, and matrix tiles. Columns: see
-- scalar.lua, whose rows these are too (a Lua function has room for some 200 constants).
--
-- mode       the op is about the thread's state, not about its operands
return {
    -- the thread's floating-point mode: a control word of the CPU, see vector/entry.lua
    keep_mode    = {operands = "m",         mode = true, whole = "mode_get((int32_t *)m);", says = "$m = floating-point mode", writes = true},
    set_mode     = {operands = "m",         mode = true, whole = "mode_set(*(const int32_t *)m);", says = "floating-point mode = $m"},

    -- tiles: 16 rows of 64 bytes, rows in memory s bytes apart; sums are f32, products of bf16 pairs, or integers, of bytes
    tile_config  = {operands = "m",         class = "t", whole = "(void)m;", says = "tile shapes = $m"},
    tile_release = {operands = "",          class = "t", whole = "", says = "tiles off"},
    tile_zero    = {operands = "d",         class = "t", whole = "for (int r = 0; r < 16; r++) for (int n = 0; n < 16; n++) d->f[r][n] = 0;",
                                            says = "$d = 0"},
    tile_load    = {operands = "d m s",     class = "t", whole = "for (int r = 0; r < 16; r++) copy_64(d->row[r], (const uint8_t *)m + r * s);",
                                            says = "$d = rows of $m"},
    tile_stream  = {operands = "d m s",     class = "t", whole = "for (int r = 0; r < 16; r++) copy_64(d->row[r], (const uint8_t *)m + r * s);",
                                            says = "$d = rows of $m, which are not kept near"},
    tile_store   = {operands = "m s a",     class = "t", whole = "for (int r = 0; r < 16; r++) copy_64((uint8_t *)m + r * s, a->row[r]);",
                                            says = "rows of $m = $a", writes = true},
    tile_dot     = {operands = "D a b",     class = "t", products = 512, whole = "dot_bf16(d, a, b);", says = "$d += $a * $b"},
    tile_dot_i8  = {operands = "D a b",     class = "t", products = 1024, whole = "dot_tiles(d, a, b);", says = "$d += $a * $b, signed bytes"},
}
