-- SPDX-License-Identifier: Apache-2.0
-- avx512_bf16.lua - dot products of bf16 pairs, over AVX-512. Columns: see avx512.lua. How fast they are differs between
-- CPUs by a factor of four: see templates/lib/dot.lua.
return {
    name = "avx512_bf16", summary = "AVX-512 with BF16: dot products of bf16 pairs, over avx512",
    rank = 32, extends = "avx512",
    requires = {"avx512_bf16"},
    gcc = "-mavx512bf16",
    rows = {
        -- op          intrinsic                                                          mnemonic       encoding                          places   memory
        bcast_pair   = {"_mm512_castsi512_ps(_mm512_broadcastd_epi32(_mm_loadu_si32($m)))", "vpbroadcastd", "EVEX.512.66.0F38.W0 58 /r",   "RM",    4},
        dot_bf16     = {"_mm512_dpbf16_ps($d, (__m512bh)$a, (__m512bh)$b)",               "vdpbf16ps",   "EVEX.512.F3.0F38.W0 52 /r",      "RVM"},
    },
}
