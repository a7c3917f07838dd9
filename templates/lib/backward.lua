-- SPDX-License-Identifier: Apache-2.0
-- backward.lua - the plan of moe_backward, and the names that its template's holes refer to.
local dtype = require "dtype"
local types = require("schema").types
local epilogue = require "lib.epilogue"
local matrix = require "lib.matrix"
local quantise = require "lib.quantise"
local rows = require "lib.rows"

local backward = {}

local int = types.int

backward.plan_keys = {
    {"tile_rows", int(1, 64), optional = true, doc = "rows of a register tile"},
    {"unroll", int(1, 8), optional = true, doc = "k steps of a tile's loop body"},
    {"k_block", int(16, 65536), optional = true, doc = "products summed in a register before they are added to the sum"},
    {"slab", int(1, 4096), optional = true, doc = "rows of weights that a pass over the tokens uses"},
    {"fetch", int(1, 8), optional = true, doc = "cache lines of the next weights that a tile's step fetches"},
    {"pass_rows", int(16, 65536), optional = true, doc = "tokens of an expert that are worked on together"},
    {"block_bytes", int(1, 1 << 30), optional = true, doc = "of tokens' rows that a pass over a weight gradient's columns reads"},
}

local function round_up(x, n)
    return (x + n - 1) // n * n
end

function backward.plan(plan, spec)
    local isa = plan.isa
    plan.vectors = 2
    plan:choose("shard", "hidden", "rows of weights and of their gradients: no sums across ranks")
    plan:choose("tile_rows", isa.tile.rows, ("%d x 2 accumulators, 2 columns and a row value fill %d registers"):format(
        isa.tile.rows, isa.registers.v))
    plan:choose("unroll", 4, "k steps of a loop body")
    local size = dtype[spec.dtype].size
    if dtype[spec.dtype].narrow then
        plan:choose("k_block", 128, "products per partial sum, and a block of tokens in L1")
    else
        plan:choose("k_block", 96, "products per partial sum: keeps f32 sums of long K accurate, and a block of tokens in L1")
    end
    plan:choose("slab", round_up(8 * isa.tile.rows, isa.lanes), "rows of weights that pass over the tokens together")
    plan.slab = round_up(plan.slab, isa.lanes)
    local steps = plan.vectors * isa.lanes // plan.unroll
    plan:choose("fetch", math.max(1, (plan.k_block * size // 64 + steps - 1) // steps),
        "lines of a row of the next weights per step: a row's block while a panel passes")
    plan:choose("pass_rows", 1024, "tokens of an expert per pass: bounds the workspace")
    plan:choose("block_bytes", 1 << 20, "of the tokens' rows stay in L2 while the columns of a weight gradient pass")
end

-- Which steps of the semantics this spec has.
local function steps(spec)
    local scale, on = spec.affinity.scale, spec.affinity.on
    local again = spec.checkpoint == "recompute"
    local post = scale == "post"
    local saved_down = post and on == "hidden" and not again
    return {
        again = again, post = post, pre = scale == "pre", saved_down = saved_down,
        affinity_sums = post and not saved_down,
        bias_up = spec.bias.gate_up, bias_down = spec.bias.down,
        bias_up_value = spec.bias.gate_up and again, bias_down_value = spec.bias.down and post and not saved_down,
        add = spec.accumulate_grads,
    }
end

function backward.args(s)
    local has = steps(s)
    local rows = s.skip_token and "T" or "T+1"
    local flat = s.skip_token and ("%d*T"):format(s.E) or ("%d*T+%d"):format(s.E, s.E)
    local gates = s.gated and 2 or 1
    local grad = s.accumulate_grads and "inout" or "out"
    local list = {
        {"hidden_states", s.dtype, "in", rows, s.H, says = "rows of tokens" .. (s.skip_token and "" or "; row T is padding")},
        {"expert_affinities_masked", s.affinity_dtype, "in", flat, 1, says = "of token id and expert e at id * E + e"},
        {"gate_up_proj_weight", s.dtype, "in", s.E, s.H, gates, s.I_TP, says = s.gated and "0 = gate, 1 = up" or "up"},
        {"down_proj_weight", s.dtype, "in", s.E, s.I_TP, s.H},
    }
    local function add(row)
        list[#list + 1] = row
    end
    if not has.again then
        add{"gate_up_proj_act_checkpoint_T", s.dtype, "in", "N", gates, s.I_TP, s.block_size, says = "gate and up as the activation saw them"}
    end
    if has.saved_down then
        add{"down_proj_act_checkpoint", s.dtype, "in", "N", s.block_size, s.H, says = "what the expert gave, before the affinity"}
    end
    add{"token_position_to_id", "i32", "in", ("%d*N"):format(s.block_size), says = "token of each slot; padding is " .. (s.skip_token and "-1" or "T")}
    add{"block_to_expert", "i32", s.dropping and "in?" or "in", "N"}
    add{"conditions", "i32", "in?", "N+1", says = "1 for each block that ran, a prefix; absent: all"}
    add{"output_hidden_states_grad", s.dtype, "in", rows, s.H}
    if has.bias_up_value then
        add{"gate_and_up_proj_bias", s.bias_dtype, "in", s.E, gates, s.I_TP}
    end
    if has.bias_down_value then
        add{"down_proj_bias", s.bias_dtype, "in", s.E, s.H}
    end
    add{"hidden_states_grad", s.hidden_grad_dtype, "out", rows, s.H, says = "summed over the experts of each token"}
    add{"expert_affinities_masked_grad", s.affinity_dtype, "out", flat, 1, says = "0 where no block holds the pair"}
    add{"gate_up_proj_weight_grad", s.output_dtype, grad, s.E, s.H, gates, s.I_TP}
    add{"down_proj_weight_grad", s.output_dtype, grad, s.E, s.I_TP, s.H}
    if s.bias.gate_up then
        add{"gate_and_up_proj_bias_grad", s.output_dtype, grad, s.E, gates, s.I_TP}
    end
    if s.bias.down then
        add{"down_proj_bias_grad", s.output_dtype, grad, s.E, s.H}
    end
    return list
end

-- A limit as C: a number, or the largest one.
local function bound(x, sign)
    return x and ("%.9gf"):format(x):gsub("^(-?%d+)f$", "%1.0f") or sign .. "3.40282347e+38f"
end

-- x rounded to the significand of a dtype.
local function rounded(x, dt)
    if x == 0 then
        return x
    end
    local _, e = string.format("%a", x):match("(.*)p([-+]%d+)")
    local unit = 2.0 ^ (e - dt.digits + 1)
    local q = x / unit
    local low = math.floor(q)
    local rest = q - low
    if rest > 0.5 or rest == 0.5 and low % 2 == 1 then
        low = low + 1
    end
    return low * unit
end

-- Limits as the values that were clamped hold them.
local function limits(spec, held)
    local function side(range, offset)
        local out = {}
        for name, x in pairs(range or {}) do
            out[name] = rounded(x + offset, held)
        end
        return out
    end
    local clamp = spec.clamp or {}
    return {gate = side(clamp.gate, 0), up = side(clamp.up, spec.up_offset)}
end

local function least_multiple(a, b)
    local n = a
    while n % b ~= 0 do
        n = n + a
    end
    return n
end

local function constants(spec, plan)
    local lanes = plan.isa.lanes
    local width = plan.vectors * lanes
    local gates = spec.gated and 2 or 1
    local hk, gk = round_up(spec.H, width), round_up(gates * spec.I_TP, width)
    local wide = math.max(hk, gk)
    return {
        {"H", spec.H, "hidden size"}, {"I", spec.I_TP, "intermediate size"}, {"E", spec.E, "experts"},
        {"B", spec.block_size, "slots of a block"}, {"GATES", gates, "gate and up, or up alone"},
        {"LANES", lanes, "f32 lanes of a vector"}, {"VECTORS", plan.vectors, "of a panel's row"},
        {"WIDTH", width, "columns of a panel"},
        {"HK", hk, "rows of a panel over H, full panels of k"}, {"GK", gk, "rows of a panel over gate and up"},
        {"XROWS", math.max(hk, round_up(spec.H + 1, lanes)), "rows of a panel of X: one more than H, of ones"},
        {"PROWS", spec.I_TP + 1, "rows of a panel of p: one more, of affinities"},
        {"TILE_ROWS", plan.tile_rows, "rows of the tallest tile"}, {"UNROLL", plan.unroll, "k steps of a tile's loop"},
        {"STEPS", width // plan.unroll, "loops over a full panel"},
        {"GROUP_ROWS", least_multiple(plan.tile_rows, lanes), "rows of whole tiles and whole vectors"},
        {"K_PANELS", math.max(1, plan.k_block // width), "panels of k that a slab of weights holds"},
        {"SLAB", plan.slab, "rows of such a slab"},
        {"FETCH", plan.fetch * 64 // dtype[spec.dtype].size, "elements that a step fetches"},
        {"PASS_ROWS", plan.pass_rows, "tokens of an expert that are worked on together"},
        {"PASS_PANELS", (plan.pass_rows + width - 1) // width, "panels of them"},
        {"BLOCK", plan.block_bytes // 4, "floats of A that a pass over a weight gradient's columns reads"},
        {"STAGE", round_up(wide, 16) + 16, "floats between rows on their way into panels: an odd number of cache lines"},
        {"PARTIALS", (math.max(spec.I_TP, spec.H) + lanes - 1) // lanes, "parts of the affinity's gradient"},
    }
end

-- f(expression) that widens or narrows one element in C.
local function convert(dt, how)
    return function(x)
        return dt[how] and ("%s(%s)"):format(dt[how], x) or x
    end
end

function backward.names(spec, plan, job)
    local isa, io, out, dx = plan.isa, dtype[spec.dtype], dtype[spec.output_dtype], dtype[spec.hidden_grad_dtype]
    local has = steps(spec)
    local gates = spec.gated and 2 or 1
    local width = plan.vectors * isa.lanes
    local cfg = {isa = isa, prefix = job.name .. "_", dtype = io, vectors = plan.vectors, unroll = plan.unroll, fetch = plan.fetch}
    cfg.pairs = quantise.pairs(out) and not has.add
    local streams = (cfg.pairs or not out.narrow) and not has.add
    local aligned = cfg.pairs and width or isa.lanes   -- elements of a store
    local bias, affinity = dtype[spec.bias_dtype], dtype[spec.affinity_dtype]
    local totals = {spec.H, spec.I_TP, (has.bias_up or has.bias_down) and 1 or spec.H, spec.H, has.again and gates * spec.I_TP or nil}
    local c = {}
    for _, row in ipairs(constants(spec, plan)) do
        c[row[1]] = row[2]
    end
    local function remainders()
        local set, list = {[plan.tile_rows] = true}, {}
        for _, total in ipairs{spec.H, spec.I_TP} do
            set[total % plan.tile_rows] = true
        end
        set[1] = set[1] or has.bias_up or has.bias_down or nil
        for m = 1, plan.tile_rows do
            list[#list + 1] = set[m] and m or nil
        end
        return list
    end
    local product_rows, product_first = matrix.heights(plan.tile_rows, isa.lanes, plan.slab, totals)
    local narrow_rows, narrow_first = matrix.heights(2 * plan.tile_rows, isa.lanes, plan.slab, totals)
    local names = {
        spec = spec, plan = plan, isa = isa, has = has, p = cfg.prefix,
        io = io.c, out_c = out.c, bias_c = bias.c, affinity_c = affinity.c,
        dx = dx.c, narrow_dx = dx.narrow ~= nil, narrow_out = out.narrow ~= nil,
        streams = streams and (gates * spec.I_TP % aligned == 0 or spec.H % aligned == 0), adds = has.add,
        aligned = aligned, aligned_bytes = aligned * out.size, wide_streams = isa.lanes // 8, narrow_streams = isa.lanes // 4, pairs = cfg.pairs,
        edges = gates * spec.I_TP % width ~= 0 or spec.H % width ~= 0,
        turns = has.again, turns_whole = spec.H >= isa.lanes and gates * spec.I_TP >= isa.lanes,
        product_rows = product_rows, product_first = table.concat(product_first, ", "),
        narrow_rows = narrow_rows, narrow_first = table.concat(narrow_first, ", "),
        gradient_rows = remainders(),
        widen_io = convert(io, "widen"), narrow_x = convert(dx, "narrow"),
        widen_bias = convert(bias, "widen"), widen_affinity = convert(affinity, "widen"),
        narrow_affinity = convert(affinity, "narrow"),
        widen_out = convert(out, "widen"), narrow_o = convert(out, "narrow"),
        rows_ahead = function(n)
            local list = {"ahead"}
            for i = 1, n - 1 do
                list[i + 1] = ("ahead + %d * ld"):format(2 * i)
            end
            return table.concat(list, ", ")
        end,
        bound = bound, float = function(x) return bound(x + 0.0, "") end,
        bounds = {spec.clamp and spec.clamp.gate or {}, spec.clamp and spec.clamp.up or {}},
        constants = constants(spec, plan),
        scalars = {{io, "widen"}, {dx, "narrow"}, {affinity, "widen"}, {affinity, "narrow"},
            (has.bias_up_value or has.bias_down_value) and {bias, "widen"} or false,
            {out, "narrow"}, has.add and {out, "widen"} or false},
    }
    names.tiles = function()
        local list = {}
        local function add(tile)
            list[#list + 1] = tile
        end
        for _, set in ipairs{{names.product_rows, plan.vectors, names.wide_streams}, {names.narrow_rows, 1, names.narrow_streams}} do
            local most = set[1][#set[1]]
            local tallest = matrix.product(cfg, most, set[2], set[3])
            for i = #set[1], 1, -1 do
                local m = set[1][i]
                add(m == most and tallest or matrix.shorter(tallest, m))
            end
        end
        for _, m in ipairs(names.gradient_rows) do
            add(matrix.gradient(cfg, m, {name = "gradient", dtype = out, add = has.add}))
            if streams and m > 1 then
                add(matrix.gradient(cfg, m, {name = "stream", dtype = out, stream = true}))
            end
        end
        add(matrix.put(cfg, {name = "put", dtype = out, add = has.add}))
        add(matrix.copy(cfg, c.SLAB * width))
        if has.again then
            add(rows.turn(cfg, "turn_weights", {dtype = io, stride = gates * spec.I_TP, pitch = width, along = 0, step = 0}))
            add(epilogue.bounded(cfg))
        else
            add(rows.column(cfg, io, "column", width))
        end
        local f32 = dtype.f32
        add(rows.turn(cfg, "turn", {dtype = f32, stride = c.STAGE, pitch = width, along = isa.lanes, step = isa.lanes * width}))
        add(rows.turn(cfg, "turn_back", {dtype = f32, stride = width, pitch = width, step = isa.lanes, apart = cfg.pairs,
            along = (cfg.pairs and 4 or isa.lanes) * width}))
        add(rows.widen(cfg, io, "widen"))
        add(rows.zero(cfg, "zero"))
        add(rows.scatter(cfg, "scatter", has.pre))
        add(epilogue.through(cfg, spec, limits(spec, has.again and f32 or io), {scaled = has.post, affinity_sums = has.affinity_sums}))
        if has.pre then
            add(epilogue.column_sums(cfg, "column_sums"))
            add(rows.scale(cfg, "scale"))
        end
        if has.affinity_sums or has.pre then
            add(rows.add(cfg, "add", {add = true}))
        end
        if has.saved_down then
            add(rows.dot(cfg, "dot", io, io))
        elseif has.bias_down_value then
            add(rows.dot(cfg, "dot", io, bias))
        end
        if dx.narrow then
            add(rows.narrow(cfg, dx, "narrow_dx"))
        end
        return list
    end
    return names
end

return backward
