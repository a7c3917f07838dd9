-- SPDX-License-Identifier: Apache-2.0
-- instructions.lua - what every x86-64 target has: ops on addresses, caches and the floating-point mode, and the frame of a leaf
-- function.
-- Columns: see isa/avx512.lua; place T: memory only. Encodings without a vector prefix are legacy ones, with REX computed from
-- the operands.
return {
    rows = {
        -- op          intrinsic                                          mnemonic       encoding          places  memory
        load_pointer = {"*($m)",                                          "mov",         "REX.W 8B /r",    "RM"},
        prefetch_0   = {"_mm_prefetch((const char *)($m), _MM_HINT_T0)",  "prefetcht0",  "0F 18 /1",       "M"},
        prefetch_1   = {"_mm_prefetch((const char *)($m), _MM_HINT_T1)",  "prefetcht1",  "0F 18 /2",       "M"},
        keep_mode    = {"*($m) = (int32_t)_mm_getcsr()",                  "stmxcsr",     "0F AE /3",       "M"},
        set_mode     = {"_mm_setcsr((uint32_t)*($m))",                    "ldmxcsr",     "0F AE /2",       "M"},
    },
    frame = {
        --  name       mnemonic       encoding            places
        move       = {"mov",         "REX.W 8B /r",      "RM"},
        number     = {"mov",         "REX.W C7 /0 id",   "MI"},
        address    = {"lea",         "REX.W 8D /r",      "RT"},
        add_8      = {"add",         "REX.W 83 /0 ib",   "MI"},
        add_32     = {"add",         "REX.W 81 /0 id",   "MI"},
        down       = {"sub",         "REX.W 83 /5 ib",   "MI"},
        push       = {"push",        "50 +r",            "M"},
        pop        = {"pop",         "58 +r",            "M"},
        again      = {"jnz",         "0F 85 id",         "I"},
        skip       = {"jz",          "0F 84 id",         "I"},
        back       = {"ret",         "C3",               ""},
        wide_off   = {"vzeroupper",  "C5 F8 77",         ""},
    },
}
