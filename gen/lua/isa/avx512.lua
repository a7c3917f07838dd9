-- SPDX-License-Identifier: Apache-2.0
-- avx512.lua - AVX-512 F, BW, DQ and VL: rows name the ops of isa/scalar.lua.
-- places   where each operand of the op goes: R reg, V vvvv, M rm or memory, I immediate, K mask, A all three
-- memory   bytes that the memory operand covers (disp8 is stored divided by it)
-- fixed    an immediate that belongs to the op
-- half     the place of a register that is half as long as the others
-- Of the table itself: arch, the room arch/<arch> of what all targets of such a machine share; portable, of one table: its programs in
-- the scalar spelling are those of target `scalar`.
return {
    name = "avx512", summary = "AVX-512 F/BW/DQ/VL, 16 lanes, 32 registers",
    rank = 30, arch = "x86",
    requires = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"},
    gcc = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512",
    lanes = 16, bytes = 64, registers = {v = 32, k = 8, r = 16}, prefix = {v = "zmm", k = "k"},
    types = {v = "__m512", k = "__mmask16"}, zero_upper = true, tile = {rows = 14, vectors = 2},
    more = "avx512_moves",
    classes = {},
    rows = {
        -- op          intrinsic                                                          mnemonic       encoding                          places   memory
        fma          = {"_mm512_fmadd_ps($a, $b, $d)",                                    "vfmadd231ps", "EVEX.512.66.0F38.W0 B8 /r",      "RVM"},
        fnma         = {"_mm512_fnmadd_ps($a, $b, $d)",                                   "vfnmadd231ps", "EVEX.512.66.0F38.W0 BC /r",     "RVM"},
        fma_bcast    = {"_mm512_fmadd_ps($a, _mm512_set1_ps(*($m)), $d)",                 "vfmadd231ps", "EVEX.512.66.0F38.W0.b B8 /r",    "RVM",   4},
        mul_add      = {"_mm512_fmadd_ps($d, $a, $b)",                                    "vfmadd213ps", "EVEX.512.66.0F38.W0 A8 /r",      "RVM"},
        add          = {"_mm512_add_ps($a, $b)",                                          "vaddps",      "EVEX.512.NP.0F.W0 58 /r",        "RVM"},
        sub          = {"_mm512_sub_ps($a, $b)",                                          "vsubps",      "EVEX.512.NP.0F.W0 5C /r",        "RVM"},
        mul          = {"_mm512_mul_ps($a, $b)",                                          "vmulps",      "EVEX.512.NP.0F.W0 59 /r",        "RVM"},
        div          = {"_mm512_div_ps($a, $b)",                                          "vdivps",      "EVEX.512.NP.0F.W0 5E /r",        "RVM"},
        min          = {"_mm512_min_ps($a, $b)",                                          "vminps",      "EVEX.512.NP.0F.W0 5D /r",        "RVM"},
        max          = {"_mm512_max_ps($a, $b)",                                          "vmaxps",      "EVEX.512.NP.0F.W0 5F /r",        "RVM"},
        round        = {"_mm512_roundscale_ps($a, 8)",                                    "vrndscaleps", "EVEX.512.66.0F3A.W0 08 /r ib",   "RM",    64, fixed = 8},
        scalef       = {"_mm512_scalef_ps($a, $b)",                                       "vscalefps",   "EVEX.512.66.0F38.W0 2C /r",      "RVM"},
        to_int       = {"_mm512_castsi512_ps(_mm512_cvtps_epi32($a))",                    "vcvtps2dq",   "EVEX.512.66.0F.W0 5B /r",        "RM"},
        to_float     = {"_mm512_cvtepi32_ps(_mm512_castps_si512($a))",                    "vcvtdq2ps",   "EVEX.512.NP.0F.W0 5B /r",        "RM"},

        int_add      = {"_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpaddd",      "EVEX.512.66.0F.W0 FE /r",        "RVM"},
        int_max      = {"_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpmaxsd",     "EVEX.512.66.0F38.W0 3D /r",      "RVM"},
        bit_and      = {"_mm512_and_ps($a, $b)",                                          "vpandd",      "EVEX.512.66.0F.W0 DB /r",        "RVM"},
        bit_or       = {"_mm512_or_ps($a, $b)",                                           "vpord",       "EVEX.512.66.0F.W0 EB /r",        "RVM"},
        bit_xor      = {"_mm512_xor_ps($a, $b)",                                          "vpxord",      "EVEX.512.66.0F.W0 EF /r",        "RVM"},
        shl          = {"_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512($a), $i))", "vpslld", "EVEX.512.66.0F.W0 72 /6 ib",     "VMI"},
        shr          = {"_mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512($a), $i))", "vpsrld", "EVEX.512.66.0F.W0 72 /2 ib",     "VMI"},
        shr_by       = {"_mm512_castsi512_ps(_mm512_srlv_epi32(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpsrlvd",     "EVEX.512.66.0F38.W0 45 /r",      "RVM"},
        dot_words    = {"_mm512_castsi512_ps(_mm512_madd_epi16(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpmaddwd",    "EVEX.512.66.0F.W0 F5 /r",        "RVM"},
        shl_words    = {"_mm512_castsi512_ps(_mm512_slli_epi16(_mm512_castps_si512($a), $i))", "vpsllw", "EVEX.512.66.0F.W0 71 /6 ib",     "VMI"},
        max_bytes    = {"_mm512_castsi512_ps(_mm512_max_epu8(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpmaxub",     "EVEX.512.66.0F.W0 DE /r",        "RVM"},

        is_nan       = {"_mm512_cmp_ps_mask($a, $b, _CMP_UNORD_Q)",                       "vcmpps",      "EVEX.512.NP.0F.W0 C2 /r ib",     "RVM",   64, fixed = 3},
        is_less      = {"_mm512_cmp_ps_mask($a, $b, _CMP_LT_OS)",                         "vcmpps",      "EVEX.512.NP.0F.W0 C2 /r ib",     "RVM",   64, fixed = 1},
        blend        = {"_mm512_mask_blend_ps($k, $a, $b)",                               "vblendmps",   "EVEX.512.66.0F38.W0 65 /r",      "RKVM"},
    },
}
