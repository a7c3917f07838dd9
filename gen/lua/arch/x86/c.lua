-- SPDX-License-Identifier: Apache-2.0
-- c.lua - what x86-64 has in C.
return {
    -- what stands above tiles of intrinsics
    intrinsics = "\n#include <immintrin.h>\n"
        .. "\n// Some of gcc's intrinsics are macros when it does not optimise, and convert signs.\n"
        .. "#pragma GCC diagnostic ignored \"-Wsign-conversion\"\n",
    default_mode = "0x1f80",   -- of MXCSR: nearest even, subnormal numbers stay, exceptions are masked
}
