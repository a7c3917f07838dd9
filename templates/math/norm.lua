-- SPDX-License-Identifier: Apache-2.0
-- norm.lua - tiles of a layer normalisation: over rows as they lie (forward), and over columns of panels of tokens (backward),
-- where each column is a token: hat = (x - mean) * factor, y = hat * weight + bias.
local ir = require "ir"
local over_rows = require "tiles.over_rows"

local norm = {}

-- Sums over n rows of a panel's width, column by column: sums[width]. A long row is n such rows.
function norm.sum(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Sums over rows, column by column."})
    local sums, src, n = p:pointer("sums", "float"), p:pointer("src", "const float"), p:integer("n")
    local one = p:const("one", 1.0)
    over_rows.sum(p, cfg, sums, n, {src}, function(tag, at)
        return one, p:op("load", "x" .. tag, p:at(src, at))
    end)
    return p
end

-- The same of squares of (x - mean) * mask.
function norm.squares(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Sums of squared deviations over a row, lane by lane."})
    local sums, src, n = p:pointer("sums", "float"), p:pointer("src", "const float"), p:integer("n")
    local mask, mean = p:pointer("mask", "const float"), p:op("bcast", "mean_all", p:at(p:pointer("mean", "const float"), 0))
    over_rows.sum(p, cfg, sums, n, {src, mask}, function(tag, at)
        local d = p:op("sub", "d" .. tag, p:op("load", "x" .. tag, p:at(src, at)), mean)
        d = p:op("mul", "masked" .. tag, d, p:op("load", "mask" .. tag, p:at(mask, at)))
        return d, d
    end)
    return p
end

-- x = [a *] act((x - mean) * factor * weight + bias), in place, for a row of n panels' width.
function norm.normalise(cfg, name, act, scaled)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"A row, normalised and activated."})
    local x, n = p:pointer("x", "float"), p:integer("n")
    local weight, bias = p:pointer("weight", "const float"), p:pointer("bias", "const float")
    local stat = p:pointer("stat", "const float")
    local a = scaled and p:op("bcast", "scale", p:at(p:pointer("a", "const float"), 0))
    local mean, factor = p:op("bcast", "mean", p:at(stat, 0)), p:op("bcast", "factor", p:at(stat, 1))
    over_rows.each(p, cfg, n, {x, weight, bias}, function(tag, at)
        local hat = p:op("sub", "d" .. tag, p:op("load", "x" .. tag, p:at(x, at)), mean)
        hat = p:op("mul", "hat" .. tag, hat, factor)
        local y = p:op("load", "y" .. tag, p:at(bias, at))
        p:op("fma", y, hat, p:op("load", "weight" .. tag, p:at(weight, at)))
        y = act(p, "act" .. tag, y)
        p:op("store", p:at(x, at), a and p:op("mul", "scaled" .. tag, y, a) or y)
    end, "of a row")
    return p
end

-- The tiles of a panel -----------------------------------------------------------------------------------------------

-- Sums of squares of x - mean, column by column.
function norm.column_squares(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Sums of squared deviations over rows, column by column."})
    local sums, x, n = p:pointer("sums", "float"), p:pointer("x", "const float"), p:integer("n")
    local mean = over_rows.load(p, cfg, "mean_", p:pointer("means", "const float"))
    over_rows.sum(p, cfg, sums, n, {x}, function(tag, at, v)
        local d = p:op("sub", "d" .. tag, p:op("load", "x" .. tag, p:at(x, at)), mean[v])
        return d, d
    end)
    return p
end

-- x = (x - mean) * factor, in place.
function norm.hat(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Rows of a panel, normalised."})
    local x, n, means = p:pointer("x", "float"), p:integer("n"), p:pointer("means", "const float")
    local factors = p:pointer("factors", "const float")
    local mean, factor = over_rows.load(p, cfg, "mean_", means), over_rows.load(p, cfg, "factor_", factors)
    over_rows.each(p, cfg, n, {x}, function(tag, at, v)
        local d = p:op("sub", "d" .. tag, p:op("load", "x" .. tag, p:at(x, at)), mean[v])
        p:op("store", p:at(x, at), p:op("mul", "hat" .. tag, d, factor[v]))
    end)
    return p
end

-- Back through p = act(y) for n rows of I: S holds dO Wd^T without the affinity; dY becomes the gradient of y, P p itself.
-- scales[n][2]: weight and bias. Added to: back[2][width], sums over the rows of dy * weight and of that times hat; and, row by
-- row, row_sums[n][2][width] by dy and dy * hat.
-- act: of activation.lua; has: scaled (p and its gradient carry the affinity a), affinity_sums (sums of S * p)
function norm.through(cfg, act, has)
    local width = cfg.vectors * cfg.isa.lanes
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
    over_rows.each(p, cfg, n, {S, hats, P, {row_sums, 2 * width}, dY, {scales, 2}}, function(tag, at)
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
    end, "rows of I")
    return p
end

-- x = factor * (dy * weight - mean - x * along): from the normalised rows and the gradients of y, those of the rows.
-- scales[n][2]: weight and bias; stats[3][width]: factor, mean, along
function norm.back(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Gradients of rows that were normalised."})
    local x, dy, n = p:pointer("x", "float"), p:pointer("dy", "const float"), p:integer("n")
    local scales, stats = p:pointer("scales", "const float"), p:pointer("stats", "const float")
    local factor, mean = over_rows.load(p, cfg, "factor_", stats, 0), over_rows.load(p, cfg, "mean_", stats, 1)
    local along = over_rows.load(p, cfg, "along_", stats, 2)
    over_rows.each(p, cfg, n, {x, dy, {scales, 2}}, function(tag, at, v)
        local weight = p:op("bcast", "weight" .. tag, p:at(scales, 0))
        local d = p:op("mul", "dhat" .. tag, p:op("load", "dy" .. tag, p:at(dy, at)), weight)
        d = p:op("sub", "centred" .. tag, d, mean[v])
        local hat = p:op("load", "hat" .. tag, p:at(x, at))
        d = p:op("sub", "through" .. tag, d, p:op("mul", "part" .. tag, hat, along[v]))
        p:op("store", p:at(x, at), p:op("mul", "dx" .. tag, d, factor[v]))
    end)
    return p
end

return norm
