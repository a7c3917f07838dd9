-- SPDX-License-Identifier: Apache-2.0
-- code_scales.lua - tiles of the scales of codes: rows of them become f32, and rows of sums are multiplied by them.
local formats = require "tiles.formats"
local ir = require "ir"
local over_rows = require "tiles.over_rows"

local code_scales = {}

-- Rows of sums times a scale each.
function code_scales.of_sums(cfg)
    local p = ir.program(cfg.isa, cfg.prefix .. "scale_sums", {"Rows of sums times each row's scale."})
    local S, scale, n = p:pointer("S", "float", "WIDTH LANES"), p:pointer("scale", "const float"), p:integer("n")
    over_rows.each(p, cfg, n, {S, {scale, 1}}, function(tag, at)
        local by = p:op("bcast", "scale" .. tag, p:at(scale, 0))
        p:op("store", p:at(S, at), p:op("mul", "scaled" .. tag, p:op("load", "sum" .. tag, p:at(S, at)), by))
    end)
    return p
end

-- The scales of some rows, in f32: n vectors, and if there is more the last one, from `last` on after them; `over` leads to the next
-- row, and `back` to its place. Those that come `ahead` are fetched. has: scale, scale_c: key of formats.scale_rows and C type;
-- second: all are multiplied by one more. to: what they become instead: name of the tile, C type, how many are loaded and stored at a time,
-- and how: load: (program) -> function of name and memory
function code_scales.rows(cfg, has, to)
    to = to or {name = "scale_rows", c = "float", store = "store", each = cfg.isa.lanes, load = function(p)
        return function(...) return formats.scale_rows[has.scale](p, ...) end
    end}
    local p = ir.program(cfg.isa, cfg.prefix .. to.name, {"Scales of some rows: n vectors of each, and the last one."})
    local dst, src, n, count = p:pointer("dst", to.c), p:pointer("src", "const " .. has.scale_c), p:integer("n"), p:integer("rows")
    local last, over, back, ahead = p:integer("last"), p:integer("over"), p:integer("back"), p:integer("ahead")
    local more = p:integer("more")
    local load = to.load(p)
    local by = has.second and p:op("bcast", "by", p:at(p:pointer("second", "const float"), 0))
    local function move(name, ...)
        local x = load(name, p:at(src, ...))
        p:op(to.store, p:at(dst, ...), by and p:op("mul", name .. "_both", x, by) or x)
    end
    p:loop(count, function()
        p:loop(p:count_from("left", n), function()
            p:op("prefetch_1", p:at(src, 0, ahead))
            move("x", 0)
            p:advance(dst, to.each)
            p:advance(src, to.each)
        end, "vectors")
        p:loop(p:count_from("one", more), function()
            move("y", 0, last)
        end, "the last one", true)
        p:advance(dst, back)
        p:advance(src, over)
    end, "rows")
    return p
end

return code_scales
