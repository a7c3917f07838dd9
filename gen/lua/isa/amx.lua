-- SPDX-License-Identifier: Apache-2.0
-- amx.lua - AMX tiles with dot products of bf16 and of bytes, over AVX-512 with BF16. Columns: see avx512.lua. Place T: a memory operand whose rows
-- are a stride register apart (SIB, index = stride). gcc's load does not say that it reads memory: hence the barrier.
-- down: the op by which words are best moved down to be looked up, if it is no shift: these CPUs shift where they multiply pairs.
-- few: how few tokens multiply codes of 4 bits, if not as pairs: by `digits`, see templates/along/digits.lua. These CPUs take four steps
-- for a dot product of pairs, and two to look words up.
return {
    name = "amx", summary = "AMX: 8 tiles of 16 rows x 64 bytes, dot products of bf16 and bytes, over avx512_bf16",
    rank = 40, extends = "avx512_bf16",
    requires = {"amx_tile", "amx_bf16", "amx_int8"},
    gcc = "-mamx-tile -mamx-bf16 -mamx-int8",
    registers = {t = 8}, prefix = {t = "tmm"}, types = {t = "int"}, down = "high_words", few = "digits",
    rows = {
        -- op          intrinsic                                                                 mnemonic        encoding                          places
        tile_config  = {"_tile_loadconfig($m)",                                                  "ldtilecfg",   "VEX.128.NP.0F38.W0 49 /0",       "M"},
        tile_release = {"_tile_release()",                                                       "tilerelease", "VEX.128.NP.0F38.W0 49 C0",       ""},
        tile_zero    = {"_tile_zero($d)",                                                        "tilezero",    "VEX.128.F2.0F38.W0 49 /r",       "R"},
        tile_load    = {"__asm__ volatile(\"\" ::: \"memory\"); _tile_loadd($d, $m, $s)",        "tileloadd",   "VEX.128.F2.0F38.W0 4B /r",       "RTS"},
        tile_stream  = {"__asm__ volatile(\"\" ::: \"memory\"); _tile_stream_loadd($d, $m, $s)", "tileloaddt1", "VEX.128.66.0F38.W0 4B /r",       "RTS"},
        tile_store   = {"_tile_stored($a, $m, $s)",                                              "tilestored",  "VEX.128.F3.0F38.W0 4B /r",       "TSR"},
        tile_dot     = {"_tile_dpbf16ps($d, $a, $b)",                                            "tdpbf16ps",   "VEX.128.F3.0F38.W0 5C /r",       "RMV"},
        tile_dot_i8  = {"_tile_dpbssd($d, $a, $b)",                                              "tdpbssd",     "VEX.128.F2.0F38.W0 5E /r",       "RMV"},
    },
}
