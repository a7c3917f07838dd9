-- SPDX-License-Identifier: Apache-2.0
-- scalar.lua - every op of the vector IR and what it means, lane by lane, in C. This is the one place that says so: the
-- scalar spelling prints these lines, so any target's program runs, and is checked, on any machine.
--
-- operands   d written   D read and written   a b c read   m memory   i immediate; in the order Program:op takes them
-- meaning    statement for lane l of LANES; d, a, b, c point to vec (f float, i int32_t, u uint32_t lanes), m to memory
-- whole      the same as a statement for all lanes, or for the rows of tiles (class t); helpers: see vector/helpers.lua
-- says       the same for the comment beside the bytes
-- products   of a lane, where it is not one (ops D a b)
--
-- A NEW INSTRUCTION SET (EVEX or VEX) takes 2 files: gen/lua/isa/<name>.lua with a row per op it has (copy avx2.lua, which
-- for its length has the rows that move data in a file of their own, `more`, and leave out `portable`: rows
-- name an op of this table, an intrinsic, a mnemonic and the encoding as the Intel manual prints it; `requires` names
-- the CPU features), and, for a feature moegen has not met yet, one row in runtime/cpu.c. The planner ranks targets by
-- their properties, and takes one for kernels that multiply or convert by rows of its own; the encoder test and the kernel tests
-- enumerate isa/ by themselves. An op that is in no table yet gets its meaning here first. What all instruction sets of a machine
-- share is in gen/lua/arch/<arch>: see target.lua.
local ops = {
    -- op            operands                meaning
    zero         = {operands = "d",         meaning = "d->u[l] = 0", says = "$d = 0"},
    const        = {operands = "d i",       meaning = "d->u[l] = i", says = "$d = $i", immediate = "bits"},
    copy         = {operands = "d a",       meaning = "d->u[l] = a->u[l]", says = "$d = $a"},
    move         = {operands = "D a",       meaning = "d->u[l] = a->u[l]", says = "$d = $a"},   -- what a loop carries on
    load         = {operands = "d m",       meaning = "d->f[l] = ((const float *)m)[l]", says = "$d = $m"},
    store        = {operands = "m a",       meaning = "((float *)m)[l] = a->f[l]", says = "$m = $a", writes = true},
    store_stream = {operands = "m a",       meaning = "((float *)m)[l] = a->f[l]", says = "$m = $a", writes = true},
    load_bits    = {operands = "d m",       whole = "for (int l = 0; l < 2 * LANES; l++) d->h[l] = ((const uint16_t *)m)[l];", says = "$d = bits of $m"},
    store_bits   = {operands = "m a",       whole = "for (int l = 0; l < 2 * LANES; l++) ((uint16_t *)m)[l] = a->h[l];", says = "$m = bits of $a", writes = true},
    stream_bits  = {operands = "m a",       whole = "for (int l = 0; l < 2 * LANES; l++) ((uint16_t *)m)[l] = a->h[l];", says = "$m = bits of $a", writes = true},
    bcast        = {operands = "d m",       meaning = "d->f[l] = *(const float *)m", says = "$d = $m"},
    load_u16     = {operands = "d m",       meaning = "d->u[l] = ((const uint16_t *)m)[l]", says = "$d = $m"},
    store_u16    = {operands = "m a",       meaning = "((uint16_t *)m)[l] = (uint16_t)a->u[l]", says = "$m = $a", writes = true},
    load_u8      = {operands = "d m",       meaning = "d->u[l] = ((const uint8_t *)m)[l]", says = "$d = $m"},
    bcast_u8     = {operands = "d m",       meaning = "d->u[l] = *(const uint8_t *)m * 0x1010101u", says = "$d = $m, each byte"},
    bcast_u16    = {operands = "d m",       meaning = "d->u[l] = *(const uint16_t *)m * 0x10001u", says = "$d = $m, each half"},
    store_u8     = {operands = "m a",       meaning = "((uint8_t *)m)[l] = (uint8_t)a->u[l]", says = "$m = $a", writes = true},
    bcast_pair   = {operands = "d m",       whole = "for (int h = 0; h < 2 * LANES; h++) d->h[h] = ((const uint16_t *)m)[h & 1];",
                                            says = "$d = pair at $m"},
    load_f16     = {operands = "d m",       meaning = "d->f[l] = half_to_float(((const uint16_t *)m)[l])", says = "$d = $m"},
    store_f16    = {operands = "m a",       meaning = "((uint16_t *)m)[l] = float_to_half(a->f[l])", says = "$m = $a", writes = true},

    fma          = {operands = "D a b",     meaning = "d->f[l] = fused(a->f[l], b->f[l], d->f[l])", says = "$d += $a * $b"},
    fnma         = {operands = "D a b",     meaning = "d->f[l] = fused(-a->f[l], b->f[l], d->f[l])", says = "$d -= $a * $b"},
    fma_bcast    = {operands = "D a m",     meaning = "d->f[l] = fused(a->f[l], *(const float *)m, d->f[l])", says = "$d += $a * $m"},
    fma_load     = {operands = "D a m",     meaning = "d->f[l] = fused(a->f[l], ((const float *)m)[l], d->f[l])", says = "$d += $a * $m"},
    mul_add      = {operands = "D a b",     meaning = "d->f[l] = fused(d->f[l], a->f[l], b->f[l])", says = "$d = $d * $a + $b"},
    dot_bf16     = {operands = "D a b",     meaning = "d->f[l] = dot_pair(&a->h[2 * l], &b->h[2 * l], d->f[l])", products = 2,
                                            says = "$d += $a * $b, pairs of bf16"},
    dot_bf16_bcast = {operands = "D a m",   meaning = "d->f[l] = dot_pair(&a->h[2 * l], m, d->f[l])", says = "$d += $a * $m, pairs of bf16"},
    add          = {operands = "d a b",     meaning = "d->f[l] = a->f[l] + b->f[l]", says = "$d = $a + $b"},
    sub          = {operands = "d a b",     meaning = "d->f[l] = a->f[l] - b->f[l]", says = "$d = $a - $b"},
    mul          = {operands = "d a b",     meaning = "d->f[l] = a->f[l] * b->f[l]", says = "$d = $a * $b"},
    div          = {operands = "d a b",     meaning = "d->f[l] = a->f[l] / b->f[l]", says = "$d = $a / $b"},
    min          = {operands = "d a b",     meaning = "d->f[l] = a->f[l] < b->f[l] ? a->f[l] : b->f[l]", says = "$d = min($a, $b)"},
    max          = {operands = "d a b",     meaning = "d->f[l] = a->f[l] > b->f[l] ? a->f[l] : b->f[l]", says = "$d = max($a, $b)"},
    round        = {operands = "d a",       meaning = "d->f[l] = nearest(a->f[l])", says = "$d = round($a)"},
    scalef       = {operands = "d a b",     meaning = "d->f[l] = scaled(a->f[l], b->f[l])", says = "$d = $a * 2^$b"},
    to_int       = {operands = "d a",       meaning = "d->i[l] = integer(a->f[l])", says = "$d = (int)$a"},
    to_float     = {operands = "d a",       meaning = "d->f[l] = (float)a->i[l]", says = "$d = (float)$a"},

    int_add      = {operands = "d a b",     meaning = "d->u[l] = a->u[l] + b->u[l]", says = "$d = $a + $b"},
    int_max      = {operands = "d a b",     meaning = "d->i[l] = a->i[l] > b->i[l] ? a->i[l] : b->i[l]", says = "$d = max($a, $b), integers"},
    bit_and      = {operands = "d a b",     meaning = "d->u[l] = a->u[l] & b->u[l]", says = "$d = $a & $b"},
    bit_or       = {operands = "d a b",     meaning = "d->u[l] = a->u[l] | b->u[l]", says = "$d = $a | $b"},
    bit_xor      = {operands = "d a b",     meaning = "d->u[l] = a->u[l] ^ b->u[l]", says = "$d = $a ^ $b"},
    shl          = {operands = "d a i",     meaning = "d->u[l] = a->u[l] << i", says = "$d = $a << $i"},
    shr          = {operands = "d a i",     meaning = "d->u[l] = a->u[l] >> i", says = "$d = $a >> $i"},

    shr_by       = {operands = "d a b",     meaning = "d->u[l] = b->u[l] < 32 ? a->u[l] >> b->u[l] : 0", says = "$d = $a >> $b"},

    is_nan       = {operands = "d a b",     meaning = "d->u[l] = a->f[l] != a->f[l] || b->f[l] != b->f[l] ? 0xffffffffu : 0", says = "$d = isnan($a)", class = "k"},
    is_less      = {operands = "d a b",     meaning = "d->u[l] = a->f[l] < b->f[l] ? 0xffffffffu : 0", says = "$d = $a < $b", class = "k"},
    blend        = {operands = "d k a b",   meaning = "d->u[l] = k->u[l] ? b->u[l] : a->u[l]", says = "$d = $k ? $b : $a"},

    -- lanes across: in groups of 4 lanes (128 bits), and groups across; what transposes need
    unpack_low   = {operands = "d a b",     meaning = "d->u[l] = (l & 1 ? b : a)->u[(l & ~3) + (l & 3) / 2]", says = "$d = low pairs of $a, $b"},
    unpack_high  = {operands = "d a b",     meaning = "d->u[l] = (l & 1 ? b : a)->u[(l & ~3) + 2 + (l & 3) / 2]", says = "$d = high pairs of $a, $b"},
    halves_low   = {operands = "d a b",     meaning = "d->u[l] = (l & 2 ? b : a)->u[(l & ~3) + (l & 1)]", says = "$d = low halves of $a, $b"},
    halves_high  = {operands = "d a b",     meaning = "d->u[l] = (l & 2 ? b : a)->u[(l & ~3) + 2 + (l & 1)]", says = "$d = high halves of $a, $b"},
    groups_even  = {operands = "d a b",     meaning = "d->u[l] = (l < LANES / 2 ? a : b)->u[2 * (l % (LANES / 2) & ~3) + (l & 3)]",
                                            says = "$d = even groups of $a, $b"},
    groups_odd   = {operands = "d a b",     meaning = "d->u[l] = (l < LANES / 2 ? a : b)->u[2 * (l % (LANES / 2) & ~3) + 4 + (l & 3)]",
                                            says = "$d = odd groups of $a, $b"},

    -- any lane: each one's number is its last bits
    lookup       = {operands = "d a b",     meaning = "d->u[l] = b->u[a->u[l] % LANES]", says = "$d = $b[$a]"},

    -- f32 lanes rounded to bf16: of one vector into the low half, of two into one, the second one's first
    round_bf16   = {operands = "d a",       whole = "for (int l = 0; l < LANES; l++) { d->h[l] = bf16_of(a->u[l]); d->h[LANES + l] = 0; }",
                                            says = "$d = bf16 of $a"},
    pair_bf16    = {operands = "d a b",     whole = "for (int l = 0; l < LANES; l++) { d->h[l] = bf16_of(b->u[l]); d->h[LANES + l] = bf16_of(a->u[l]); }",
                                            says = "$d = bf16 of $b, of $a"},
    store_half   = {operands = "m a",       whole = "for (int l = 0; l < LANES; l++) ((uint16_t *)m)[l] = a->h[l];",
                                            says = "$m = low half of $a", writes = true},

    -- addresses and caches
    load_pointer = {operands = "d m",       class = "r", ctype = "float *", whole = "$d = *$m;", says = "$d = $m"},
    prefetch_0   = {operands = "m",         whole = "(void)m;", says = "fetch $m"},
    prefetch_1   = {operands = "m",         whole = "(void)m;", says = "fetch $m to L2"},
}

for _, more in ipairs{require "isa.scalar_state", (require "isa.scalar_words")} do
    for name, op in next, more do   -- in any order
        ops[name] = op
    end
end

return ops
