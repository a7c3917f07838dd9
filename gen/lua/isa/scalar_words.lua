-- SPDX-License-Identifier: Apache-2.0
-- scalar_words.lua - what ops mean that read signed bytes, or vectors as 16-bit words. Columns: see scalar.lua, whose rows these are too
-- (a Lua function has room for some 200 constants).
return {
    load_i8      = {operands = "d m",       meaning = "d->i[l] = ((const int8_t *)m)[l]", says = "$d = $m, signed"},
    load_i8_half = {operands = "d m",       whole = "for (int l = 0; l < LANES; l++) { d->h[l] = (uint16_t)((const int8_t *)m)[l]; d->h[LANES + l] = 0; }",
                                            says = "low half of $d = words of $m, signed"},
    shl_words    = {operands = "d a i",     whole = "for (int h = 0; h < 2 * LANES; h++) d->h[h] = (uint16_t)((uint32_t)a->h[h] << i);",
                                            says = "$d = words of $a << $i"},
    widen_f16    = {operands = "d a",       meaning = "d->f[l] = half_to_float(a->h[l])", says = "$d = low half of $a"},
}
