-- SPDX-License-Identifier: Apache-2.0
-- scalar_words.lua - what ops mean that read signed bytes, take vectors as 16-bit words, narrow lanes to these, or move a part of a vector.
-- Columns: see scalar.lua, whose rows these are too (a Lua function has room for some 200 constants).
return {
    load_i8      = {operands = "d m",       meaning = "d->i[l] = ((const int8_t *)m)[l]", says = "$d = $m, signed"},
    load_i8_half = {operands = "d m",       whole = "for (int l = 0; l < LANES; l++) { d->h[l] = (uint16_t)((const int8_t *)m)[l]; d->h[LANES + l] = 0; }",
                                            says = "low half of $d = words of $m, signed"},
    load_i8_words = {operands = "d m",      whole = "for (int h = 0; h < 2 * LANES; h++) d->h[h] = (uint16_t)((const int8_t *)m)[h];",
                                            says = "$d = words of $m, signed"},
    bcast_two    = {operands = "d m",       whole = "for (int h = 0; h < 2 * LANES; h++) d->h[h] = ((const uint16_t *)m)[h & 3];",
                                            says = "$d = 4 words at $m"},
    bcast_four   = {operands = "d m",       meaning = "d->f[l] = ((const float *)m)[l % 4]", says = "$d = 4 lanes at $m"},
    dot_words    = {operands = "d a b",     whole = "for (int l = 0; l < LANES; l++) d->u[l] = (uint32_t)((short)a->h[2 * l] * (short)b->h[2 * l]) "
                                                 .. "+ (uint32_t)((short)a->h[2 * l + 1] * (short)b->h[2 * l + 1]);", products = 2,
                                            says = "$d = $a * $b, pairs of words"},
    dot_bytes    = {operands = "D a b",     whole = "for (int l = 0; l < LANES; l++) for (int j = 4 * l; j < 4 * l + 4; j++) "
                                                 .. "d->u[l] += (uint32_t)(a->b[j] * (int8_t)b->b[j]);", products = 4,
                                            says = "$d += $a * $b, unsigned bytes by signed ones"},
    shl_words    = {operands = "d a i",     whole = "for (int h = 0; h < 2 * LANES; h++) d->h[h] = (uint16_t)((uint32_t)a->h[h] << i);",
                                            says = "$d = words of $a << $i"},
    max_bytes    = {operands = "d a b",     whole = "for (int j = 0; j < 4 * LANES; j++) d->b[j] = a->b[j] > b->b[j] ? a->b[j] : b->b[j];",
                                            says = "$d = max($a, $b), unsigned bytes"},
    widen_f16    = {operands = "d a",       meaning = "d->f[l] = half_to_float(a->h[l])", says = "$d = low half of $a"},

    -- lanes narrowed to 16 bits, and these to 8, in groups of 128 bits: half of the 256-bit pack of avx2
    pack_u16     = {operands = "d a b",     whole = "for (int l = 0; l < LANES; l += 4) for (int j = 0; j < 4; j++) "
                                                 .. "{ d->h[2 * l + j] = saturated(a->i[l + j]); d->h[2 * l + 4 + j] = saturated(b->i[l + j]); }",
                                            says = "$d = pack($a, $b)"},

    -- bytes: looked up in 8 * LANES of them by their low bits, or in groups of 128 bits, there two vectors' as words, too
    shuffle_bytes = {operands = "d a b",    whole = "for (int j = 0; j < 4 * LANES; j++) "
                                                 .. "d->b[j] = b->b[j] & 128 ? 0 : a->b[(j & ~15) + (b->b[j] & 15)];",
                                            says = "$d = bytes of $a at $b"},
    lookup_words = {operands = "d a b",     whole = "for (int h = 0; h < 2 * LANES; h++) d->h[h] = b->h[a->h[h] & (2 * LANES - 1)];",
                                            says = "$d = words of $b at $a"},
    permute_bytes = {operands = "d a b",    whole = "for (int j = 0; j < 4 * LANES; j++) d->b[j] = b->b[a->b[j] & (4 * LANES - 1)];",
                                            says = "$d = bytes of $b at $a"},
    high_words   = {operands = "d a b",     whole = "for (int h = 0; h < 2 * LANES; h++) d->h[h] = (uint16_t)((uint32_t)a->h[h] * b->h[h] >> 16);",
                                            says = "$d = high half of $a * $b, unsigned words"},
    lookup_bytes = {operands = "D a b",     whole = "for (int j = 0; j < 4 * LANES; j++) "
                                                 .. "d->b[j] = (d->b[j] & 4 * LANES ? b : a)->b[d->b[j] & (4 * LANES - 1)];",
                                            says = "$d = bytes of $a, $b at $d"},
    unpack_low_words = {operands = "d a b", whole = "for (int h = 0; h < 2 * LANES; h++) "
                                                 .. "d->h[h] = (h & 1 ? b : a)->h[(h & ~7) + (h & 7) / 2];",
                                            says = "$d = low words of $a, $b"},
    unpack_high_words = {operands = "d a b", whole = "for (int h = 0; h < 2 * LANES; h++) "
                                                 .. "d->h[h] = (h & 1 ? b : a)->h[(h & ~7) + 4 + (h & 7) / 2];",
                                            says = "$d = high words of $a, $b"},
    unpack_low_bytes = {operands = "d a b", whole = "for (int j = 0; j < 2 * LANES; j++) "
                                                 .. "d->h[j] = (uint16_t)(a->b[j + j / 8 * 8] | b->b[j + j / 8 * 8] << 8);",
                                            says = "$d = low bytes of $a, $b"},
    unpack_high_bytes = {operands = "d a b", whole = "for (int j = 0; j < 2 * LANES; j++) "
                                                 .. "d->h[j] = (uint16_t)(a->b[j + j / 8 * 8 + 8] | b->b[j + j / 8 * 8 + 8] << 8);",
                                            says = "$d = high bytes of $a, $b"},
    -- parts of vectors
    groups_upper = {operands = "d a b",     meaning = "d->u[l] = (l < LANES / 2 ? a : b)->u[LANES / 2 + l % (LANES / 2)]",
                                            says = "$d = upper groups of $a, $b"},
    swap_middle  = {operands = "d a",       whole = "for (int l = 0; l < 2; l++) { d->u[l] = a->u[l]; d->u[2 + l] = a->u[4 + l]; "
                                                 .. "d->u[4 + l] = a->u[2 + l]; d->u[6 + l] = a->u[6 + l]; }",
                                            says = "$d = $a, middle quarters swapped"},
}
