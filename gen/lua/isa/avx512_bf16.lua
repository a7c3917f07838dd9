-- SPDX-License-Identifier: Apache-2.0
-- avx512_bf16.lua - dot products of bf16 pairs and rounding to bf16, over AVX-512, and dot products (VNNI) and tables (VBMI) of bytes,
-- which CPUs with the former have, all but the first. Columns: see avx512.lua. How fast dot products of bf16 are differs between CPUs by a factor of four: see
-- templates/product/dot.lua.
return {
    name = "avx512_bf16", summary = "AVX-512 with BF16, VNNI and VBMI: dot products of bf16 pairs and of bytes, rounding, tables of bytes; over avx512",
    rank = 32, extends = "avx512",
    requires = {"avx512_bf16", "avx512_vnni", "avx512_vbmi"},
    gcc = "-mavx512bf16 -mavx512vnni -mavx512vbmi",
    rows = {
        -- op          intrinsic                                                          mnemonic       encoding                          places   memory
        bcast_pair   = {"_mm512_castsi512_ps(_mm512_broadcastd_epi32(_mm_loadu_si32($m)))", "vpbroadcastd", "EVEX.512.66.0F38.W0 58 /r",   "RM",    4},
        dot_bf16     = {"_mm512_dpbf16_ps($d, (__m512bh)$a, (__m512bh)$b)",               "vdpbf16ps",   "EVEX.512.F3.0F38.W0 52 /r",      "RVM"},
        dot_bf16_bcast = {"_mm512_dpbf16_ps($d, (__m512bh)$a, (__m512bh)_mm512_broadcastd_epi32(_mm_loadu_si32($m)))",
                                                                                          "vdpbf16ps",   "EVEX.512.F3.0F38.W0.b 52 /r",    "RVM",   4},
        dot_bytes    = {"_mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512($d), _mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpdpbusd",    "EVEX.512.66.0F38.W0 50 /r",      "RVM"},
        lookup_bytes = {"_mm512_castsi512_ps(_mm512_permutex2var_epi8(_mm512_castps_si512($a), _mm512_castps_si512($d), _mm512_castps_si512($b)))",
                                                                                          "vpermi2b",    "EVEX.512.66.0F38.W0 75 /r",      "RVM"},
        lookup_words = {"_mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpermw",      "EVEX.512.66.0F38.W1 8D /r",      "RVM"},
        permute_bytes = {"_mm512_castsi512_ps(_mm512_permutexvar_epi8(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpermb",      "EVEX.512.66.0F38.W0 8D /r",      "RVM"},
        high_words   = {"_mm512_castsi512_ps(_mm512_mulhi_epu16(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpmulhuw",    "EVEX.512.66.0F.WIG E4 /r",       "RVM"},
        unpack_low_words = {"_mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpunpcklwd",  "EVEX.512.66.0F.W0 61 /r",        "RVM"},
        unpack_high_words = {"_mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpunpckhwd",  "EVEX.512.66.0F.W0 69 /r",        "RVM"},
        unpack_low_bytes = {"_mm512_castsi512_ps(_mm512_unpacklo_epi8(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpunpcklbw",  "EVEX.512.66.0F.W0 60 /r",        "RVM"},
        unpack_high_bytes = {"_mm512_castsi512_ps(_mm512_unpackhi_epi8(_mm512_castps_si512($a), _mm512_castps_si512($b)))",
                                                                                          "vpunpckhbw",  "EVEX.512.66.0F.W0 68 /r",        "RVM"},
        round_bf16   = {"_mm512_castsi512_ps(_mm512_zextsi256_si512((__m256i)_mm512_cvtneps_pbh($a)))", "vcvtneps2bf16", "EVEX.512.F3.0F38.W0 72 /r",   "RM",    64, half = "R"},
        pair_bf16    = {"(__m512)_mm512_cvtne2ps_pbh($a, $b)",                             "vcvtne2ps2bf16", "EVEX.512.F2.0F38.W0 72 /r",   "RVM"},
        store_half   = {"_mm256_storeu_si256((__m256i *)($m), _mm256_castps_si256(_mm512_castps512_ps256($a)))",
                                                                                          "vmovdqu32",   "EVEX.256.F3.0F.W0 7F /r",        "MR",    32},
    },
}
