-- SPDX-License-Identifier: Apache-2.0
-- registers.lua - the registers of x86-64, and the calling convention of System V.
return {
    general = {[0] = "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
               "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"},
    arguments = {7, 6, 2, 1, 8, 9},                  -- integers and addresses, in order; what does not fit is on the stack
    scratch = {0, 10, 11, 3, 5, 12, 13, 14, 15},     -- the others of a leaf function, those that need not be saved first
    must_save = {[3] = true, [5] = true, [12] = true, [13] = true, [14] = true, [15] = true},
    stack = 4,
    first = {k = 1},                                 -- of a register file, if not 0: k0 means "no mask"
}
