/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moegen_dtype.h - the element types of tensors, one row each. Both interfaces make their names of
 * this list, the runtime its tables and conversions; values are never given to another type.
 *
 *     NAME         MOEGEN_NAME and MOEGEN_RT_NAME
 *     text         as specs spell it
 *     file         as safetensors spells it
 *     stored       C type that an element is passed as
 *     digits       significand bits with the hidden one; 0 for integers
 *     l2_limit     relative L2 error that a kernel's output of this type may have
 *     kind         NATIVE: what C makes of `stored`: a float or an integer
 *                  IEEE: sign, exponent, mantissa as IEEE 754 has them; up to 16 bits
 *                  FINITE: likewise without infinities: they and what overflows become the largest
 *                  number, and only a code of all ones is NaN (OCP e4m3fn: largest 448)
 */
#ifndef MOEGEN_DTYPE_H
#define MOEGEN_DTYPE_H

/* clang-format off */
#define MOEGEN_DTYPES(X)                                                                           \
    /*  NAME      value  text        file       stored    digits  l2_limit  kind */                \
    X(  F32,         0,  "f32",      "F32",     float,        24, 2e-6,     NATIVE)                \
    X(  BF16,        1,  "bf16",     "BF16",    uint16_t,      8, 4e-3,     IEEE)                  \
    X(  F16,         2,  "f16",      "F16",     uint16_t,     11, 6e-4,     IEEE)                  \
    X(  FP8_E4M3,    3,  "fp8_e4m3", "F8_E4M3", uint8_t,       4, 6.25e-2,  FINITE)                \
    X(  FP8_E5M2,    4,  "fp8_e5m2", "F8_E5M2", uint8_t,       3, 1.25e-1,  IEEE)                  \
    X(  U8,          5,  "u8",       "U8",      uint8_t,       0, 0,        NATIVE)                \
    X(  I32,         6,  "i32",      "I32",     int32_t,       0, 0,        NATIVE)                \
    X(  I64,         7,  "i64",      "I64",     int64_t,       0, 0,        NATIVE)                \
    X(  F64,         8,  "f64",      "F64",     double,       53, 1e-13,    NATIVE)                \
    X(  U16,         9,  "u16",      "U16",     uint16_t,      0, 0,        NATIVE)                \
    X(  U32,        10,  "u32",      "U32",     uint32_t,      0, 0,        NATIVE)
/* clang-format on */

#endif
