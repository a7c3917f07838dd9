-- SPDX-License-Identifier: Apache-2.0
-- form.lua - weights in the order in which products of rows read them: weights.layout = packed, see `moegen pack`.
--
-- [expert][HEADER bytes, then panel of K][row][run]: a row's `run` elements of a panel lie together, and rows follow each other. Where
-- tiles multiply elements as they lie, a run is a row of a panel of A; otherwise it is what tiles copy of a row at a time. Zeros: past K,
-- and the rows that each panel has more, which tiles of whole units may read. Products of the way back (plan.back) contract what forward's
-- have as rows: a tensor is packed for one of the two.
local dtype = require "dtype"
local plans = require "shared.plans"

local packed = {}

local HEADER <const>, LINE <const>, UNIT <const> = 64, 128, 16
local IN_TURN <const>, BACK <const> = 1, 2   -- flags of the header's `order`
local MANY <const>, APART <const> = 2048, 16   -- rows of panels whose addresses would be alike in the bits that choose sets of caches

function packed.are(s)
    return s.weights ~= nil and s.weights.layout == "packed"
end

-- The contraction and the rows of a matrix [K][C] as products of a plan see it, and what they find in its header.
local function seen(s, plan, m)
    local back = plan and plan.back
    local in_turn = m.parts > 1 and s.weights.gate_up_order == "interleaved"
    return back and m.C or m.K, back and m.K or m.C, (in_turn and IN_TURN or 0) | (back and BACK or 0)
end

-- How a matrix [K][C] lies, in elements. header: before the panels; pitch: of a panel; each: of an expert
function packed.form(s, plan, m)
    local size, run = dtype[s.dtype].size, plan and plan.run or 1
    local K, C, order = seen(s, plan, m)
    local unit = math.max(run, LINE // size)
    local deep = plans.round_up(K, unit)
    local rows = plans.round_up(C, UNIT) + UNIT + (C >= MANY and APART or 0)
    return {header = HEADER // size, run = run, rows = rows, pitch = rows * run, each = HEADER // size + rows * deep,
        text = ("<c8 c4 I4 i8 i8 i8 i8 i8 i8"):pack("moegenPK", s.dtype:sub(-4), 1, K, C, rows, run, m.parts, order)}
end

-- What the float64 reference has to know of the plan, and moegen_pack of each tensor. m.rows: it has one layout, of rows that forward
-- contracts
function packed.params(s, plan, matrices)
    local list = packed.are(s) and {"weights.run " .. plan.run, plan.back and "weights.back true" or nil} or {}
    for _, m in ipairs(#list > 0 and matrices or {}) do
        local K, C, order = seen(s, plan, m)
        list[#list + 1] = ("packed.%s %d %d %d %d %d %d"):format(m.name, K, C, plan.run, m.parts, order, m.rows and 1 or 0)
    end
    return list
end

-- What a kernel says of others.
function packed.status(s)
    return packed.are(s)
        and "packed weights are not those of this plan; `moegen pack SPEC --in W.safetensors --out P.safetensors` makes them"
end

return packed
