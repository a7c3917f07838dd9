-- SPDX-License-Identifier: Apache-2.0
-- avx2_moves.lua - AVX2 with F16C (VEX): the rows of avx2.lua that move data: loads, stores, what reorders lanes. Columns: see avx512.lua.
return {
    rows = {
        -- op          intrinsic                                                          mnemonic       encoding                          places   memory
        zero         = {"_mm256_setzero_ps()",                                            "vxorps",      "VEX.256.NP.0F.WIG 57 /r",        "A"},
        const        = {"_mm256_castsi256_ps(_mm256_set1_epi32((int32_t)$i))",            "vbroadcastss", "VEX.256.66.0F38.W0 18 /r",      "RM",    4},
        copy         = {"$a",                                                             "vmovaps",     "VEX.256.NP.0F.WIG 28 /r",        "RM",    32},
        move         = {"$a",                                                             "vmovaps",     "VEX.256.NP.0F.WIG 28 /r",        "RM",    32},
        load         = {"_mm256_loadu_ps($m)",                                            "vmovups",     "VEX.256.NP.0F.WIG 10 /r",        "RM",    32},
        store        = {"_mm256_storeu_ps($m, $a)",                                       "vmovups",     "VEX.256.NP.0F.WIG 11 /r",        "MR",    32},
        store_stream = {"_mm256_stream_ps($m, $a)",                                       "vmovntps",    "VEX.256.NP.0F.WIG 2B /r",        "MR",    32},
        load_bits    = {"_mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)($m)))",      "vmovdqu",     "VEX.256.F3.0F.WIG 6F /r",          "RM",    32},
        store_bits   = {"_mm256_storeu_si256((__m256i *)($m), _mm256_castps_si256($a))",       "vmovdqu",     "VEX.256.F3.0F.WIG 7F /r",          "MR",    32},
        stream_bits  = {"_mm256_stream_si256((__m256i *)($m), _mm256_castps_si256($a))",       "vmovntdq",    "VEX.256.66.0F.WIG E7 /r",          "MR",    32},
        bcast        = {"_mm256_set1_ps(*($m))",                                          "vbroadcastss", "VEX.256.66.0F38.W0 18 /r",      "RM",    4},
        load_u16     = {"_mm256_castsi256_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)($m))))",
                                                                                          "vpmovzxwd",   "VEX.256.66.0F38.WIG 33 /r",      "RM",    16},
        load_u8      = {"_mm256_castsi256_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)($m))))",
                                                                                          "vpmovzxbd",   "VEX.256.66.0F38.WIG 31 /r",      "RM",    8},
        bcast_u8     = {"_mm256_castsi256_ps(_mm256_set1_epi8(*(const char *)($m)))",             "vpbroadcastb", "VEX.256.66.0F38.W0 78 /r",      "RM",    1},
        bcast_u16    = {"_mm256_castsi256_ps(_mm256_set1_epi16(*(const short *)($m)))",           "vpbroadcastw", "VEX.256.66.0F38.W0 79 /r",      "RM",    2},
        load_f16     = {"_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)($m)))",        "vcvtph2ps",   "VEX.256.66.0F38.W0 13 /r",       "RM",    16},
        store_f16    = {"_mm_storeu_si128((__m128i *)($m), _mm256_cvtps_ph($a, 0))",      "vcvtps2ph",   "VEX.256.66.0F3A.W0 1D /r ib",    "MR",    16, fixed = 0},

        unpack_low   = {"_mm256_unpacklo_ps($a, $b)",                                     "vunpcklps",   "VEX.256.NP.0F.WIG 14 /r",        "RVM"},
        unpack_high  = {"_mm256_unpackhi_ps($a, $b)",                                     "vunpckhps",   "VEX.256.NP.0F.WIG 15 /r",        "RVM"},
        halves_low   = {"_mm256_shuffle_ps($a, $b, 0x44)",                                "vshufps",     "VEX.256.NP.0F.WIG C6 /r ib",     "RVM",   32, fixed = 0x44},
        halves_high  = {"_mm256_shuffle_ps($a, $b, 0xee)",                                "vshufps",     "VEX.256.NP.0F.WIG C6 /r ib",     "RVM",   32, fixed = 0xee},
        groups_even  = {"_mm256_permute2f128_ps($a, $b, 0x20)",                           "vperm2f128",  "VEX.256.66.0F3A.W0 06 /r ib",    "RVM",   32, fixed = 0x20},
        groups_odd   = {"_mm256_permute2f128_ps($a, $b, 0x31)",                           "vperm2f128",  "VEX.256.66.0F3A.W0 06 /r ib",    "RVM",   32, fixed = 0x31},
        lookup       = {"_mm256_permutevar8x32_ps($b, _mm256_castps_si256($a))",          "vpermps",     "VEX.256.66.0F38.W0 16 /r",       "RVM"},

        pack_u16     = {"_mm256_castsi256_ps(_mm256_packus_epi32(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpackusdw",   "VEX.256.66.0F38.WIG 2B /r",      "RVM"},
        pack_u8      = {"_mm256_castsi256_ps(_mm256_packus_epi16(_mm256_castps_si256($a), _mm256_castps_si256($b)))",
                                                                                          "vpackuswb",   "VEX.256.66.0F.WIG 67 /r",        "RVM"},
        swap_middle  = {"_mm256_castsi256_ps(_mm256_permute4x64_epi64(_mm256_castps_si256($a), 0xd8))",
                                                                                          "vpermq",      "VEX.256.66.0F3A.W1 00 /r ib",    "RM",    32, fixed = 0xd8},
        store_half   = {"_mm_storeu_ps((float *)($m), _mm256_castps256_ps128($a))",       "vmovups",     "VEX.128.NP.0F.WIG 11 /r",        "MR",    16},
        store_quarter = {"_mm_storel_epi64((__m128i *)($m), _mm_castps_si128(_mm256_castps256_ps128($a)))",
                                                                                          "vmovq",       "VEX.128.66.0F.WIG D6 /r",        "MR",    8},
    },
}
