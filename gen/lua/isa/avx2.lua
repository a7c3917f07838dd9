-- SPDX-License-Identifier: Apache-2.0
-- avx2.lua - AVX2 with FMA and F16C (VEX): rows name the ops of isa/scalar.lua. Columns: see avx512.lua.
return {
    name = "avx2", summary = "AVX2 + FMA + F16C, 8 lanes, 16 registers",
    rank = 20,
    requires = {"avx2", "fma", "f16c"},
    gcc = "-mavx2 -mfma -mf16c",
    lanes = 8, bytes = 32, registers = {v = 16, r = 16}, prefix = {v = "ymm"},
    types = {v = "__m256"}, zero_upper = true, tile = {rows = 6, vectors = 2},
    classes = {k = "v"},   -- masks are vectors
    rows = {
        -- op          intrinsic                                                          mnemonic       encoding                          places   memory
        zero         = {"_mm256_setzero_ps()",                                            "vxorps",      "VEX.256.NP.0F.WIG 57 /r",        "A"},
        const        = {"_mm256_castsi256_ps(_mm256_set1_epi32((int32_t)$i))",            "vbroadcastss", "VEX.256.66.0F38.W0 18 /r",      "RM",    4},
        copy         = {"$a",                                                             "vmovaps",     "VEX.256.NP.0F.WIG 28 /r",        "RM",    32},
        move         = {"$a",                                                             "vmovaps",     "VEX.256.NP.0F.WIG 28 /r",        "RM",    32},
        load         = {"_mm256_loadu_ps($m)",                                            "vmovups",     "VEX.256.NP.0F.WIG 10 /r",        "RM",    32},
        store        = {"_mm256_storeu_ps($m, $a)",                                       "vmovups",     "VEX.256.NP.0F.WIG 11 /r",        "MR",    32},
        store_stream = {"_mm256_stream_ps($m, $a)",                                       "vmovntps",    "VEX.256.NP.0F.WIG 2B /r",        "MR",    32},
        bcast        = {"_mm256_set1_ps(*($m))",                                          "vbroadcastss", "VEX.256.66.0F38.W0 18 /r",      "RM",    4},
        load_u16     = {"_mm256_castsi256_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)($m))))",
                                                                                          "vpmovzxwd",   "VEX.256.66.0F38.WIG 33 /r",      "RM",    16},
        load_f16     = {"_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)($m)))",        "vcvtph2ps",   "VEX.256.66.0F38.W0 13 /r",       "RM",    16},
        store_f16    = {"_mm_storeu_si128((__m128i *)($m), _mm256_cvtps_ph($a, 0))",      "vcvtps2ph",   "VEX.256.66.0F3A.W0 1D /r ib",    "MR",    16, fixed = 0},

        fma          = {"_mm256_fmadd_ps($a, $b, $d)",                                    "vfmadd231ps", "VEX.256.66.0F38.W0 B8 /r",       "RVM"},
        fnma         = {"_mm256_fnmadd_ps($a, $b, $d)",                                   "vfnmadd231ps", "VEX.256.66.0F38.W0 BC /r",      "RVM"},
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
        bit_and      = {"_mm256_and_ps($a, $b)",                                          "vandps",      "VEX.256.NP.0F.WIG 54 /r",        "RVM"},
        bit_or       = {"_mm256_or_ps($a, $b)",                                           "vorps",       "VEX.256.NP.0F.WIG 56 /r",        "RVM"},
        bit_xor      = {"_mm256_xor_ps($a, $b)",                                          "vxorps",      "VEX.256.NP.0F.WIG 57 /r",        "RVM"},
        shl          = {"_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256($a), $i))", "vpslld", "VEX.256.66.0F.WIG 72 /6 ib",     "VMI"},
        shr          = {"_mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256($a), $i))", "vpsrld", "VEX.256.66.0F.WIG 72 /2 ib",     "VMI"},

        unpack_low   = {"_mm256_unpacklo_ps($a, $b)",                                     "vunpcklps",   "VEX.256.NP.0F.WIG 14 /r",        "RVM"},
        unpack_high  = {"_mm256_unpackhi_ps($a, $b)",                                     "vunpckhps",   "VEX.256.NP.0F.WIG 15 /r",        "RVM"},
        halves_low   = {"_mm256_shuffle_ps($a, $b, 0x44)",                                "vshufps",     "VEX.256.NP.0F.WIG C6 /r ib",     "RVM",   32, fixed = 0x44},
        halves_high  = {"_mm256_shuffle_ps($a, $b, 0xee)",                                "vshufps",     "VEX.256.NP.0F.WIG C6 /r ib",     "RVM",   32, fixed = 0xee},
        groups_even  = {"_mm256_permute2f128_ps($a, $b, 0x20)",                           "vperm2f128",  "VEX.256.66.0F3A.W0 06 /r ib",    "RVM",   32, fixed = 0x20},
        groups_odd   = {"_mm256_permute2f128_ps($a, $b, 0x31)",                           "vperm2f128",  "VEX.256.66.0F3A.W0 06 /r ib",    "RVM",   32, fixed = 0x31},

        is_nan       = {"_mm256_cmp_ps($a, $b, _CMP_UNORD_Q)",                            "vcmpps",      "VEX.256.NP.0F.WIG C2 /r ib",     "RVM",   32, fixed = 3},
        is_less      = {"_mm256_cmp_ps($a, $b, _CMP_LT_OS)",                              "vcmpps",      "VEX.256.NP.0F.WIG C2 /r ib",     "RVM",   32, fixed = 1},
        blend        = {"_mm256_blendv_ps($a, $b, $k)",                                   "vblendvps",   "VEX.256.66.0F3A.W0 4A /r ib",    "RSVM"},

        pack_u16     = {"_mm256_castsi256_ps(_mm256_packus_epi32(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpackusdw",   "VEX.256.66.0F38.WIG 2B /r",      "RVM"},
        swap_middle  = {"_mm256_castsi256_ps(_mm256_permute4x64_epi64(_mm256_castps_si256($a), 0xd8))",
                                                                                          "vpermq",      "VEX.256.66.0F3A.W1 00 /r ib",    "RM",    32, fixed = 0xd8},
        store_half   = {"_mm_storeu_ps((float *)($m), _mm256_castps256_ps128($a))",       "vmovups",     "VEX.128.NP.0F.WIG 11 /r",        "MR",    16},
    },
}
