-- SPDX-License-Identifier: Apache-2.0
-- norm.lua - tiles of a layer normalisation: over rows as they lie (forward), and over columns of panels of tokens (backward),
-- where each column is a token: hat = (x - mean) * factor, y = hat * weight + bias.
local ir = require "ir"

local norm = {}

-- Sums over n rows of a panel's width, column by column: sums[width]. A long row is n such rows.
function norm.sum(cfg, name)
    local lanes, acc = cfg.isa.lanes, {}
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Sums over rows, column by column."})
    local sums, src, n = p:pointer("sums", "float"), p:pointer("src", "const float"), p:integer("n")
    local one = p:const("one", 1.0)
    for v = 0, cfg.vectors - 1 do
        acc[v] = p:op("zero", "sum_" .. v)
    end
    p:loop(n, function()
        for v = 0, cfg.vectors - 1 do
            p:op("fma", acc[v], one, p:op("load", "x_" .. v, p:at(src, v * lanes)))
        end
        p:advance(src, cfg.vectors * lanes)
    end, "rows")
    for v = 0, cfg.vectors - 1 do
        p:op("store", p:at(sums, v * lanes), acc[v])
    end
    return p
end

-- The same of squares of (x - mean) * mask.
function norm.squares(cfg, name)
    local lanes, acc = cfg.isa.lanes, {}
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Sums of squared deviations over a row, lane by lane."})
    local sums, src, n = p:pointer("sums", "float"), p:pointer("src", "const float"), p:integer("n")
    local mask, mean = p:pointer("mask", "const float"), p:op("bcast", "mean_all", p:at(p:pointer("mean", "const float"), 0))
    for v = 0, cfg.vectors - 1 do
        acc[v] = p:op("zero", "sum_" .. v)
    end
    p:loop(n, function()
        for v = 0, cfg.vectors - 1 do
            local d = p:op("sub", "d_" .. v, p:op("load", "x_" .. v, p:at(src, v * lanes)), mean)
            d = p:op("mul", "masked_" .. v, d, p:op("load", "mask_" .. v, p:at(mask, v * lanes)))
            p:op("fma", acc[v], d, d)
        end
        p:advance(src, cfg.vectors * lanes)
        p:advance(mask, cfg.vectors * lanes)
    end, "rows")
    for v = 0, cfg.vectors - 1 do
        p:op("store", p:at(sums, v * lanes), acc[v])
    end
    return p
end

-- x = [a *] act((x - mean) * factor * weight + bias), in place, for a row of n panels' width.
function norm.normalise(cfg, name, act, scaled)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"A row, normalised and activated."})
    local x, n = p:pointer("x", "float"), p:integer("n")
    local weight, bias = p:pointer("weight", "const float"), p:pointer("bias", "const float")
    local stat = p:pointer("stat", "const float")
    local a = scaled and p:op("bcast", "scale", p:at(p:pointer("a", "const float"), 0))
    local mean, factor = p:op("bcast", "mean", p:at(stat, 0)), p:op("bcast", "factor", p:at(stat, 1))
    p:loop(n, function()
        for v = 0, cfg.vectors - 1 do
            local tag, at = "_" .. v, v * lanes
            local hat = p:op("sub", "d" .. tag, p:op("load", "x" .. tag, p:at(x, at)), mean)
            hat = p:op("mul", "hat" .. tag, hat, factor)
            local y = p:op("load", "y" .. tag, p:at(bias, at))
            p:op("fma", y, hat, p:op("load", "weight" .. tag, p:at(weight, at)))
            y = act(p, "act" .. tag, y)
            p:op("store", p:at(x, at), a and p:op("mul", "scaled" .. tag, y, a) or y)
        end
        for _, pointer in ipairs{x, weight, bias} do
            p:advance(pointer, cfg.vectors * lanes)
        end
    end, "of a row")
    return p
end

-- The tiles of a panel -----------------------------------------------------------------------------------------------

-- Runs body for each of n rows of panels, which the pointers follow; scales: a pair per row, or nil.
local function over_rows(p, cfg, n, panels, scales, body)
    p:loop(n, function()
        body()
        for _, pointer in ipairs(panels) do
            p:advance(pointer, cfg.vectors * cfg.isa.lanes)
        end
        if scales then
            p:advance(scales, 2)
        end
    end, "rows")
end

-- Sums of squares of x - mean, column by column.
function norm.column_squares(cfg, name)
    local lanes, acc, mean = cfg.isa.lanes, {}, {}
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Sums of squared deviations over rows, column by column."})
    local sums, x, n = p:pointer("sums", "float"), p:pointer("x", "const float"), p:integer("n")
    local means = p:pointer("means", "const float")
    for v = 0, cfg.vectors - 1 do
        acc[v], mean[v] = p:op("zero", "sum_" .. v), p:op("load", "mean_" .. v, p:at(means, v * lanes))
    end
    over_rows(p, cfg, n, {x}, nil, function()
        for v = 0, cfg.vectors - 1 do
            local d = p:op("sub", "d_" .. v, p:op("load", "x_" .. v, p:at(x, v * lanes)), mean[v])
            p:op("fma", acc[v], d, d)
        end
    end)
    for v = 0, cfg.vectors - 1 do
        p:op("store", p:at(sums, v * lanes), acc[v])
    end
    return p
end

-- x = (x - mean) * factor, in place.
function norm.hat(cfg, name)
    local lanes, mean, factor = cfg.isa.lanes, {}, {}
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Rows of a panel, normalised."})
    local x, n, means = p:pointer("x", "float"), p:integer("n"), p:pointer("means", "const float")
    local factors = p:pointer("factors", "const float")
    for v = 0, cfg.vectors - 1 do
        mean[v] = p:op("load", "mean_" .. v, p:at(means, v * lanes))
        factor[v] = p:op("load", "factor_" .. v, p:at(factors, v * lanes))
    end
    over_rows(p, cfg, n, {x}, nil, function()
        for v = 0, cfg.vectors - 1 do
            local d = p:op("sub", "d_" .. v, p:op("load", "x_" .. v, p:at(x, v * lanes)), mean[v])
            p:op("store", p:at(x, v * lanes), p:op("mul", "hat_" .. v, d, factor[v]))
        end
    end)
    return p
end

-- Back through p = act(y) for n rows of I: S holds dO Wd^T without the affinity; dY becomes the gradient of y, P p itself.
-- scales[n][2]: weight and bias. Added to: back[2][width], sums over the rows of dy * weight and of that times hat; and, row by
-- row, row_sums[n][2][width] by dy and dy * hat.
-- act: of activation.lua; has: scaled (p and its gradient carry the affinity a), affinity_sums (sums of S * p)
function norm.through(cfg, act, has)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "through", {"Gradients of normalised rows of I, and p."})
    local S, hats, P = p:pointer("S", "const float"), p:pointer("hats", "const float"), p:pointer("P", "float")
    local dY, n, scales = p:pointer("dY", "float"), p:integer("n"), p:pointer("scales", "const float")
    local back, row_sums = p:pointer("back", "float"), p:pointer("row_sums", "float")
    local a = has.scaled and p:pointer("a", "const float")
    local sums = has.affinity_sums and p:pointer("sums", "float")
    local function add(tag, name, at, x, y)
        local sum = p:op("load", name .. tag, at)
        p:op("fma", sum, x, y)
        p:op("store", at, sum)
    end
    p:loop(n, function()
        for v = 0, cfg.vectors - 1 do
            local tag, at = "_" .. v, v * lanes
            local hat = p:op("load", "hat" .. tag, p:at(hats, at))
            local weight = p:op("bcast", "weight" .. tag, p:at(scales, 0))
            local y = p:op("bcast", "y" .. tag, p:at(scales, 1))
            p:op("fma", y, hat, weight)
            local value, slope = act(p, "act" .. tag, y)
            local dp = p:op("load", "dp" .. tag, p:at(S, at))
            if sums then
                add(tag, "affinity_sum", p:at(sums, at), dp, value)
            end
            if a then
                local scale = p:op("load", "a" .. tag, p:at(a, at))
                dp = p:op("mul", "dp_scaled" .. tag, dp, scale)
                value = p:op("mul", "p_scaled" .. tag, value, scale)
            end
            p:op("store", p:at(P, at), value)
            local dy = p:op("mul", "dy" .. tag, dp, slope)
            p:op("store", p:at(dY, at), dy)
            local row_sum = p:op("add", "row_sum" .. tag, dy, p:op("load", "row_before" .. tag, p:at(row_sums, at)))
            p:op("store", p:at(row_sums, at), row_sum)
            add(tag, "row_along", p:at(row_sums, width + at), dy, hat)
            add(tag, "mean", p:at(back, at), dy, weight)
            add(tag, "along", p:at(back, width + at), p:op("mul", "dhat" .. tag, dy, weight), hat)
        end
        p:advance(S, width)
        p:advance(hats, width)
        p:advance(P, width)
        p:advance(row_sums, 2 * width)
        p:advance(dY, width)
        p:advance(scales, 2)
    end, "rows of I")
    return p
end

-- x = factor * (dy * weight - mean - x * along): from the normalised rows and the gradients of y, those of the rows.
-- scales[n][2]: weight and bias; stats[3][width]: factor, mean, along
function norm.back(cfg, name)
    local lanes, stat = cfg.isa.lanes, {{}, {}, {}}
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Gradients of rows that were normalised."})
    local x, dy, n = p:pointer("x", "float"), p:pointer("dy", "const float"), p:integer("n")
    local scales, stats = p:pointer("scales", "const float"), p:pointer("stats", "const float")
    for i, what in ipairs{"factor_", "mean_", "along_"} do
        for v = 0, cfg.vectors - 1 do
            stat[i][v] = p:op("load", what .. v, p:at(stats, (i - 1) * width + v * lanes))
        end
    end
    over_rows(p, cfg, n, {x, dy}, scales, function()
        for v = 0, cfg.vectors - 1 do
            local tag, at = "_" .. v, v * lanes
            local weight = p:op("bcast", "weight" .. tag, p:at(scales, 0))
            local d = p:op("mul", "dhat" .. tag, p:op("load", "dy" .. tag, p:at(dy, at)), weight)
            d = p:op("sub", "centred" .. tag, d, stat[2][v])
            local hat = p:op("load", "hat" .. tag, p:at(x, at))
            d = p:op("sub", "transposed" .. tag, d, p:op("mul", "part" .. tag, hat, stat[3][v]))
            p:op("store", p:at(x, at), p:op("mul", "dx" .. tag, d, stat[1][v]))
        end
    end)
    return p
end

return norm
