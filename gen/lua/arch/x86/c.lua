-- SPDX-License-Identifier: Apache-2.0
-- c.lua - what x86-64 has in C.
return {
    -- what stands above tiles of intrinsics
    intrinsics = "\n#include <immintrin.h>\n"
        .. "\n// Some of gcc's intrinsics are macros when it does not optimise, and convert signs.\n"
        .. "#pragma GCC diagnostic ignored \"-Wsign-conversion\"\n",
    -- what a caller has in matrix tiles: xsavec64 and xrstor64 of states 17 and 18, which also end their use
    keep_tiles = "\n    uint8_t kept[64 + 640 + 8192];   // legacy area, header and configuration; tiles\n"
        .. "    uint8_t *const tiles = kept + (64 - (uintptr_t)kept % 64) % 64;\n"
        .. "    for (int i = 512; i < 576; i++)\n        tiles[i] = 0;\n"
        .. "    __asm__ volatile(\".byte 0x48,0x0f,0xc7,0x21\" : : \"c\"(tiles), \"a\"(0x60000), \"d\"(0) : \"memory\");",
    give_tiles = "\n    __asm__ volatile(\".byte 0x48,0x0f,0xae,0x29\" : : \"c\"(tiles), \"a\"(0x60000), \"d\"(0) : \"memory\");",
    default_mode = "0x1f80",   -- of MXCSR: nearest even, subnormal numbers stay, exceptions are masked
}
