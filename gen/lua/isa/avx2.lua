-- SPDX-License-Identifier: Apache-2.0
-- avx2.lua - AVX2 with FMA and F16C (VEX): rows name the ops of isa/scalar.lua. Columns: see avx512.lua.
return {
    name = "avx2", summary = "AVX2 + FMA + F16C, 8 lanes, 16 registers",
    rank = 20, arch = "x86", portable = true,
    requires = {"avx2", "fma", "f16c"},
    gcc = "-mavx2 -mfma -mf16c",
    lanes = 8, bytes = 32, registers = {v = 16, r = 16}, prefix = {v = "ymm"},
    types = {v = "__m256"}, zero_upper = true, tile = {rows = 6, vectors = 2},
    more = "avx2_moves",
    classes = {k = "v"},   -- masks are vectors
    rows = {
        -- op          intrinsic                                                          mnemonic       encoding                          places   memory
        fma          = {"_mm256_fmadd_ps($a, $b, $d)",                                    "vfmadd231ps", "VEX.256.66.0F38.W0 B8 /r",       "RVM"},
        fnma         = {"_mm256_fnmadd_ps($a, $b, $d)",                                   "vfnmadd231ps", "VEX.256.66.0F38.W0 BC /r",      "RVM"},
        fma_load     = {"_mm256_fmadd_ps($a, _mm256_loadu_ps($m), $d)",                   "vfmadd231ps", "VEX.256.66.0F38.W0 B8 /r",       "RVM",   32},
        mul_add      = {"_mm256_fmadd_ps($d, $a, $b)",                                    "vfmadd213ps", "VEX.256.66.0F38.W0 A8 /r",       "RVM"},
        add          = {"_mm256_add_ps($a, $b)",                                          "vaddps",      "VEX.256.NP.0F.WIG 58 /r",        "RVM"},
        sub          = {"_mm256_sub_ps($a, $b)",                                          "vsubps",      "VEX.256.NP.0F.WIG 5C /r",        "RVM"},
        mul          = {"_mm256_mul_ps($a, $b)",                                          "vmulps",      "VEX.256.NP.0F.WIG 59 /r",        "RVM"},
        div          = {"_mm256_div_ps($a, $b)",                                          "vdivps",      "VEX.256.NP.0F.WIG 5E /r",        "RVM"},
        min          = {"_mm256_min_ps($a, $b)",                                          "vminps",      "VEX.256.NP.0F.WIG 5D /r",        "RVM"},
        max          = {"_mm256_max_ps($a, $b)",                                          "vmaxps",      "VEX.256.NP.0F.WIG 5F /r",        "RVM"},
        round        = {"_mm256_round_ps($a, 8)",                                         "vroundps",    "VEX.256.66.0F3A.WIG 08 /r ib",   "RM",    32, fixed = 8},
        to_int       = {"_mm256_castsi256_ps(_mm256_cvtps_epi32($a))",                    "vcvtps2dq",   "VEX.256.66.0F.WIG 5B /r",        "RM"},
        to_float     = {"_mm256_cvtepi32_ps(_mm256_castps_si256($a))",                    "vcvtdq2ps",   "VEX.256.NP.0F.WIG 5B /r",        "RM"},

        int_add      = {"_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpaddd",      "VEX.256.66.0F.WIG FE /r",        "RVM"},
        int_max      = {"_mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpmaxsd",     "VEX.256.66.0F38.WIG 3D /r",      "RVM"},
        bit_and      = {"_mm256_and_ps($a, $b)",                                          "vandps",      "VEX.256.NP.0F.WIG 54 /r",        "RVM"},
        bit_or       = {"_mm256_or_ps($a, $b)",                                           "vorps",       "VEX.256.NP.0F.WIG 56 /r",        "RVM"},
        bit_xor      = {"_mm256_xor_ps($a, $b)",                                          "vxorps",      "VEX.256.NP.0F.WIG 57 /r",        "RVM"},
        shl          = {"_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256($a), $i))", "vpslld", "VEX.256.66.0F.WIG 72 /6 ib",     "VMI"},
        shr          = {"_mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256($a), $i))", "vpsrld", "VEX.256.66.0F.WIG 72 /2 ib",     "VMI"},
        shr_by       = {"_mm256_castsi256_ps(_mm256_srlv_epi32(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpsrlvd",     "VEX.256.66.0F38.W0 45 /r",       "RVM"},
        dot_words    = {"_mm256_castsi256_ps(_mm256_madd_epi16(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpmaddwd",    "VEX.256.66.0F.WIG F5 /r",        "RVM"},
        shl_words    = {"_mm256_castsi256_ps(_mm256_slli_epi16(_mm256_castps_si256($a), $i))", "vpsllw", "VEX.256.66.0F.WIG 71 /6 ib",     "VMI"},
        max_bytes    = {"_mm256_castsi256_ps(_mm256_max_epu8(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpmaxub",     "VEX.256.66.0F.WIG DE /r",        "RVM"},

        is_nan       = {"_mm256_cmp_ps($a, $b, _CMP_UNORD_Q)",                            "vcmpps",      "VEX.256.NP.0F.WIG C2 /r ib",     "RVM",   32, fixed = 3},
        is_less      = {"_mm256_cmp_ps($a, $b, _CMP_LT_OS)",                              "vcmpps",      "VEX.256.NP.0F.WIG C2 /r ib",     "RVM",   32, fixed = 1},
        blend        = {"_mm256_blendv_ps($a, $b, $k)",                                   "vblendvps",   "VEX.256.66.0F3A.W0 4A /r ib",    "RSVM"},
    },
}
