-- SPDX-License-Identifier: Apache-2.0
-- avx512_moves.lua - AVX-512: the rows of avx512.lua that move data: loads, stores, what reorders lanes. Columns: see avx512.lua.
return {
    rows = {
        -- op          intrinsic                                                          mnemonic       encoding                          places   memory
        zero         = {"_mm512_setzero_ps()",                                            "vpxord",      "EVEX.512.66.0F.W0 EF /r",        "A"},
        const        = {"_mm512_castsi512_ps(_mm512_set1_epi32((int32_t)$i))",            "vbroadcastss", "EVEX.512.66.0F38.W0 18 /r",     "RM",    4},
        copy         = {"$a",                                                             "vmovaps",     "EVEX.512.NP.0F.W0 28 /r",        "RM",    64},
        move         = {"$a",                                                             "vmovaps",     "EVEX.512.NP.0F.W0 28 /r",        "RM",    64},
        load         = {"_mm512_loadu_ps($m)",                                            "vmovups",     "EVEX.512.NP.0F.W0 10 /r",        "RM",    64},
        store        = {"_mm512_storeu_ps($m, $a)",                                       "vmovups",     "EVEX.512.NP.0F.W0 11 /r",        "MR",    64},
        store_stream = {"_mm512_stream_ps($m, $a)",                                       "vmovntps",    "EVEX.512.NP.0F.W0 2B /r",        "MR",    64},
        load_bits    = {"_mm512_castsi512_ps(_mm512_loadu_si512($m))",                         "vmovdqu32",   "EVEX.512.F3.0F.W0 6F /r",          "RM",    64},
        store_bits   = {"_mm512_storeu_si512($m, _mm512_castps_si512($a))",                    "vmovdqu32",   "EVEX.512.F3.0F.W0 7F /r",          "MR",    64},
        stream_bits  = {"_mm512_stream_si512((__m512i *)(void *)($m), _mm512_castps_si512($a))", "vmovntdq",    "EVEX.512.66.0F.W0 E7 /r",          "MR",    64},
        bcast        = {"_mm512_set1_ps(*($m))",                                          "vbroadcastss", "EVEX.512.66.0F38.W0 18 /r",     "RM",    4},
        load_u16     = {"_mm512_castsi512_ps(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)($m))))",
                                                                                          "vpmovzxwd",   "EVEX.512.66.0F38.W0 33 /r",      "RM",    32},
        store_u16    = {"_mm256_storeu_si256((__m256i *)($m), _mm512_cvtepi32_epi16(_mm512_castps_si512($a)))",
                                                                                          "vpmovdw",     "EVEX.512.F3.0F38.W0 33 /r",      "MR",    32},
        load_u8      = {"_mm512_castsi512_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)($m))))",
                                                                                          "vpmovzxbd",   "EVEX.512.66.0F38.W0 31 /r",      "RM",    16},
        bcast_u8     = {"_mm512_castsi512_ps(_mm512_set1_epi8(*(const char *)($m)))",             "vpbroadcastb", "EVEX.512.66.0F38.W0 78 /r",     "RM",    1},
        bcast_u16    = {"_mm512_castsi512_ps(_mm512_set1_epi16(*(const short *)($m)))",           "vpbroadcastw", "EVEX.512.66.0F38.W0 79 /r",     "RM",    2},
        store_u8     = {"_mm_storeu_si128((__m128i *)($m), _mm512_cvtepi32_epi8(_mm512_castps_si512($a)))",
                                                                                          "vpmovdb",     "EVEX.512.F3.0F38.W0 31 /r",      "MR",    16},
        load_f16     = {"_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)($m)))",     "vcvtph2ps",   "EVEX.512.66.0F38.W0 13 /r",      "RM",    32},
        store_f16    = {"_mm256_storeu_si256((__m256i *)($m), _mm512_cvtps_ph($a, 0))",   "vcvtps2ph",   "EVEX.512.66.0F3A.W0 1D /r ib",   "MR",    32, fixed = 0},

        unpack_low   = {"_mm512_unpacklo_ps($a, $b)",                                     "vunpcklps",   "EVEX.512.NP.0F.W0 14 /r",        "RVM"},
        unpack_high  = {"_mm512_unpackhi_ps($a, $b)",                                     "vunpckhps",   "EVEX.512.NP.0F.W0 15 /r",        "RVM"},
        halves_low   = {"_mm512_shuffle_ps($a, $b, 0x44)",                                "vshufps",     "EVEX.512.NP.0F.W0 C6 /r ib",     "RVM",   64, fixed = 0x44},
        halves_high  = {"_mm512_shuffle_ps($a, $b, 0xee)",                                "vshufps",     "EVEX.512.NP.0F.W0 C6 /r ib",     "RVM",   64, fixed = 0xee},
        groups_even  = {"_mm512_shuffle_f32x4($a, $b, 0x88)",                             "vshuff32x4",  "EVEX.512.66.0F3A.W0 23 /r ib",   "RVM",   64, fixed = 0x88},
        groups_odd   = {"_mm512_shuffle_f32x4($a, $b, 0xdd)",                             "vshuff32x4",  "EVEX.512.66.0F3A.W0 23 /r ib",   "RVM",   64, fixed = 0xdd},
        lookup       = {"_mm512_permutexvar_ps(_mm512_castps_si512($a), $b)",             "vpermps",     "EVEX.512.66.0F38.W0 16 /r",      "RVM"},

        pack_u16     = {"_mm512_castsi512_ps(_mm512_packus_epi32(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpackusdw",   "EVEX.512.66.0F38.W0 2B /r",      "RVM"},
    },
}
