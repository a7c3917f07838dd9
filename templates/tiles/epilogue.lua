-- SPDX-License-Identifier: Apache-2.0
-- epilogue.lua - what happens to a panel of sums before it is stored: bias, clamp, activation, gate * up, affinity,
-- checkpoint, combination with what other experts gave. The way back: back.lua. Each tile is a loop over the rows of a panel S[n][width].
local ir = require "ir"
local clamp = require "math.clamp"
local dtype = require "dtype"
local micro = require "tiles.micro"
local over_rows = require "tiles.over_rows"
local panel_rows = require "tiles.panel_rows"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"

local epilogue = {}

-- Gate or up as the activation sees it, of its sum x: clamped, and up with its offset.
local function seen(p, spec, x, is_gate, name)
    local range = (spec.clamp or {})[is_gate and "gate" or "up"]
    x = clamp.apply(p, x, clamp.constants(p, range, name), name)
    if not is_gate and spec.up_offset ~= 0 then
        x = p:op("add", name .. "_offset", x, p:const("offset", spec.up_offset + 0.0))
    end
    return x
end

-- Every other lane of two vectors: the even ones, and the odd ones.
local function unzip(p, x, y)
    local even, odd = p:op("groups_even", "even", x, y), p:op("groups_odd", "odd", x, y)   -- groups of 4 lanes
    local low, high = p:op("unpack_low", "low", even, odd), p:op("unpack_high", "high", even, odd)
    return p:op("unpack_low", "gate_of_both", low, high), p:op("unpack_high", "up_of_both", low, high)
end

-- P = act(g) * u, with the weights' scale, bias, clamps and offset before and the affinity after as the spec says.
-- has.interleaved: sums are of gate and up in turn. With a checkpoint, S is overwritten by g and u as the activation saw them.
-- raw: P = u, for another tile to finish.
-- cfg: isa, prefix, vectors, stride (of P, floats); spec: activation, gated, clamp, up_offset; has: scale, bias, affinity, checkpoint
-- pairs: P is rounded to this row of dtype.lua (nil: it is f32)
function epilogue.intermediate(cfg, spec, has, pairs)
    local lanes = cfg.isa.lanes
    local to = pairs or dtype.f32
    local p = ir.program(cfg.isa, cfg.prefix .. (pairs and "activate_pairs" or "activate"), {"Rows of P from rows of sums."})
    local S, P, n = p:pointer("S", "float", "WIDTH LANES"), p:pointer("P", to.c, "STRIDE LANES"), p:integer("n")
    local scale = has.scale and p:pointer("scale", "const float")
    local bias = has.bias and p:pointer("bias", "const float")
    local affinity = has.affinity and p:pointer("affinity", "const float")
    local act = clamp.activation(spec).forward
    local pointers = plans.list({S, cfg.vectors * lanes}, {P, cfg.stride * 4 // to.size}, affinity and {affinity, 1})
    over_rows.vectors(p, n, pointers, function()
        local x, sum = {}, {}
        local function name_of(v)
            return spec.gated and (has.interleaved and "both_" .. v or v == 0 and "gate" or "up") or "up_" .. v
        end
        for v = 0, cfg.vectors - 1 do
            local name = name_of(v)
            sum[v] = p:op("load", name .. "_sum", p:at(S, v * lanes))
            x[v] = sum[v]
            if scale then
                x[v] = p:op("mul", name .. "_whole", x[v], p:op("load", name .. "_scale", p:at(scale, v * lanes)))
            end
            if has.bias then
                x[v] = p:op("add", name .. "_biased", x[v], p:op("load", name .. "_bias", p:at(bias, v * lanes)))
            end
        end
        if has.interleaved then
            x[0], x[1] = unzip(p, x[0], x[1])
        end
        for v = 0, cfg.vectors - 1 do
            local gate = spec.gated and v == 0
            x[v] = seen(p, spec, x[v], gate, spec.gated and (gate and "gate" or "up") or "up_" .. v)
            if has.checkpoint and x[v] ~= sum[v] then
                p:op("store", p:at(S, v * lanes), x[v])
            end
        end
        local a = has.affinity and p:op("bcast", "a", p:at(affinity, 0))
        local function put(v, value, name)
            if a then
                value = p:op("mul", name .. "_scaled", value, a)
            end
            quantise.store(p, to, p:at(P, v * lanes), value)
        end
        if spec.gated then
            put(0, p:op("mul", "p", act(p, "act", x[0]), x[1]), "p")
        else
            for v = 0, cfg.vectors - 1 do
                put(v, has.raw and x[v] or act(p, p:named("act_%d", v), x[v]), p:named("p_%d", v))
            end
        end
    end, "rows")
    return p
end

-- P = act(G) * S, or act(S) without a gate, for rows of I of panels of tokens; G and S hold sums, see seen(). has:
--     bias            of each row, of up and of gate
--     scaled          P carries the affinities of the columns
--     checkpoint      G and S become gate and up as the activation saw them
--     intermediates   so they do, A becomes what the activation gave, and of pairs P_0 is P in f32
--     step            rows from a gate to the next one, and from an up (none: 1)
--     stores          gate, up, what the activation gave and P are numbers of the dtype, as if each had been stored
--     narrow          only of the last vector of a panel
--     words           n pairs of rows of P, which are B of the second product, become a row of words each: in the order at `order`,
--                     see micro.words
function epilogue.hidden(cfg, spec, has)
    local tile = has.narrow and "hidden_last" or "hidden"
    local p = ir.program(cfg.isa, cfg.prefix .. tile, {has.words and "What the second product sees, for pairs of rows of I."
        or "What the second product sees, for rows of I."})
    local rows, width, step, count = "WIDTH LANES", cfg.vectors * cfg.isa.lanes, has.step or 1, has.words and 2 or 1
    local panel = has.words and micro.words(cfg) or panel_rows.column(cfg)
    local S, P, n = p:pointer("S", "float", rows), p:pointer("P", panel.dtype.c, rows), p:integer("n")
    local G = spec.gated and p:pointer("G", "float", rows)
    local A = spec.gated and has.intermediates and p:pointer("A", "float", rows)
    local P_0 = has.intermediates and cfg.product.group > 1 and p:pointer("P_0", "float", rows)
    local of_up = has.bias and p:pointer("up_bias", "const float")
    local of_gate = has.bias and G and p:pointer("gate_bias", "const float")
    local a = has.scaled and p:pointer("a", "const float")
    local order = has.words and p:op("load", "word_order", p:at(p:pointer("order", "const float"), 0))
    local act = clamp.activation(spec).forward
    local keep = has.intermediates or has.checkpoint
    local function keeps(to, at, x)
        if to and keep then
            p:op("store", p:at(to, at), x)
        end
    end
    local function stored(x)
        return has.stores and quantise.round(p, cfg.dtype, x) or x
    end
    -- Vector `at` of row i of those at hand.
    local function value_of(tag, at, i)
        local function entered(from, bias, is_gate, name)
            local sum = p:op("load", name .. "_sum" .. tag, p:at(from, i * step * width + at))
            if bias then
                sum = p:op("add", name .. "_biased" .. tag, sum, p:op("bcast", name .. "_bias" .. tag, p:at(bias, i)))
            end
            return stored(seen(p, spec, sum, is_gate, name .. tag))
        end
        local up = entered(S, of_up, false, "up")
        keeps(S, i * step * width + at, up)
        local gate = G and entered(G, of_gate, true, "gate") or up
        keeps(G, i * step * width + at, gate)
        local value = stored(act(p, "act" .. tag, gate))
        keeps(A, i * width + at, value)
        value = G and stored(p:op("mul", "p" .. tag, value, up)) or value
        if a then
            value = p:op("mul", "p_scaled" .. tag, value, p:op("load", "a" .. tag, p:at(a, at)))
        end
        keeps(P_0, i * width + at, value)
        return value
    end
    local pointers = plans.list({S, count * step * width}, P, G and {G, count * step * width}, A and {A, count * width},
        P_0 and {P_0, count * width}, of_up and {of_up, count}, of_gate and {of_gate, count})
    over_rows.each(p, cfg, n, pointers, function(tag, at, v)
        if has.words then
            panel.put(p, P, v, value_of("_0" .. tag, at, 0), value_of("_1" .. tag, at, 1), order)
        else
            panel.put(p, P, v, value_of(tag, at, 0))
        end
    end, has.words and "pairs of rows of I" or "rows of I", has.narrow and cfg.vectors - 1)
    return p
end

-- out[row][column ..] += a * (S + bias), S times the weights' scale, or a plain store; out is a list of row pointers (16 valid
-- entries follow its end).
-- With a checkpoint, S is overwritten by S + bias.
-- has: scale, bias, bias_scaled (the bias times a), affinity (the sum times a), checkpoint, add
function epilogue.output(cfg, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. (has.add and "add_up" or "finish"), {"Rows of the output from rows of sums."})
    local S, out, column = p:pointer("S", "float", "WIDTH LANES"), p:pointer("out", "float *const"), p:integer("column")
    local n = p:integer("n")
    local scale = has.scale and p:pointer("scale", "const float")
    local bias = has.bias and p:pointer("bias", "const float")
    local affinity = (has.affinity or has.bias_scaled) and p:pointer("affinity", "const float")
    over_rows.vectors(p, n, plans.list({S, cfg.vectors * lanes}, {out, 1}, affinity and {affinity, 1}), function()
        local soon = p:op("load_pointer", "soon", p:at(out, 8))
        p:op("prefetch_0", p:at(soon, 0, column))
        p:op("prefetch_0", p:at(soon, (cfg.vectors - 1) * lanes, column))
        local row = p:op("load_pointer", "row", p:at(out, 0))
        local a = affinity and p:op("bcast", "a", p:at(affinity, 0))
        for v = 0, cfg.vectors - 1 do
            local name = p:named("y_%d", v)
            local sum = p:op("load", name .. "_sum", p:at(S, v * lanes))
            local y = sum
            if scale then
                y = p:op("mul", name .. "_whole", y, p:op("load", name .. "_scale", p:at(scale, v * lanes)))
            end
            if has.bias_scaled then
                p:op("fma", y, a, p:op("load", name .. "_bias", p:at(bias, v * lanes)))
            elseif has.bias then
                y = p:op("add", name .. "_biased", y, p:op("load", name .. "_bias", p:at(bias, v * lanes)))
            end
            if has.checkpoint and (has.bias_scaled or y ~= sum) then   -- fma changes the sum itself
                p:op("store", p:at(S, v * lanes), y)
            end
            if has.affinity then
                y = p:op("mul", name .. "_scaled", y, a)
            end
            if has.add then
                y = p:op("add", name, y, p:op("load", name .. "_before", p:at(row, v * lanes, column)))
            end
            p:op("store", p:at(row, v * lanes, column), y)
        end
    end, "rows")
    return p
end

-- Rows of gate or up from sums: Y = max(lo, min(hi, S + bias)) + offset, each row with its own bias. step: every so manieth row
function epilogue.bounded(cfg, step)
    local p = ir.program(cfg.isa, cfg.prefix .. "bounded", {"Gate or up, for rows of I: bounds = lo, hi, offset."})
    local Y, S, bias = p:pointer("Y", "float"), p:pointer("S", "const float"), p:pointer("bias", "const float")
    local n, bounds = p:integer("n"), p:pointer("bounds", "const float")
    local lo, hi = p:op("bcast", "lo", p:at(bounds, 0)), p:op("bcast", "hi", p:at(bounds, 1))
    local offset = p:op("bcast", "offset", p:at(bounds, 2))
    local b, row = nil, step * cfg.vectors * cfg.isa.lanes
    over_rows.each(p, cfg, n, {{Y, row}, {S, row}, {bias, step}}, function(tag, at, v)
        b = v > 0 and b or p:op("bcast", "b", p:at(bias, 0))
        local y = p:op("add", "y" .. tag, b, p:op("load", "s" .. tag, p:at(S, at)))
        y = p:op("max", "clamped" .. tag, lo, p:op("min", "capped" .. tag, hi, y))
        p:op("store", p:at(Y, at), p:op("add", "offset" .. tag, y, offset))
    end, "rows of I")
    return p
end

-- S += bias, for n rows of a panel, each with its own; scaled: times the affinities of the columns.
function epilogue.biased(cfg, scaled)
    local p = ir.program(cfg.isa, cfg.prefix .. "biased", {"Rows of sums with their biases."})
    local S, bias, n = p:pointer("S", "float", "WIDTH LANES"), p:pointer("bias", "const float"), p:integer("n")
    local a = scaled and over_rows.load(p, cfg, "a_", p:pointer("a", "const float"))
    over_rows.each(p, cfg, n, {S, {bias, 1}}, function(tag, at, v)
        local b, sum = p:op("bcast", "b" .. tag, p:at(bias, 0)), p:op("load", "sum" .. tag, p:at(S, at))
        if a then
            p:op("fma", sum, b, a[v])
        else
            sum = p:op("add", "biased" .. tag, sum, b)
        end
        p:op("store", p:at(S, at), sum)
    end, "rows")
    return p
end

-- The same and what follows, of sums that are a row of n vectors: dst = [dst +] [a *] (src + bias). has: bias, bias_scaled (times a),
-- scaled, add
function epilogue.row(cfg, name, has)
    local does = has.add and "added to" or "put into"
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("A row of sums is %s one of the output."):format(does)})
    local dst, src, n = p:pointer("dst", "float"), p:pointer("src", "const float"), p:integer("n")
    local bias = has.bias and p:pointer("bias", "const float")
    local a = (has.scaled or has.bias_scaled) and p:op("bcast", "scale", p:at(p:pointer("a", "const float"), 0))
    over_rows.vectors(p, n, plans.list(dst, src, bias), function()
        local x, b = p:op("load", "x", p:at(src, 0)), bias and p:op("load", "b", p:at(bias, 0))
        if b and has.bias_scaled then
            p:op("fma", x, b, a)
        elseif b then
            x = p:op("add", "biased", x, b)
        end
        x = has.scaled and p:op("mul", "scaled", x, a) or x
        x = has.add and p:op("add", "sum", x, p:op("load", "before", p:at(dst, 0))) or x
        p:op("store", p:at(dst, 0), x)
    end)
    return p
end

return epilogue
