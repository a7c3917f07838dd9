-- SPDX-License-Identifier: Apache-2.0
-- heights.lua - of which heights the tiles of moe_forward are needed. Segments of few rows sweep, those of up to direct_rows are
-- multiplied with weights that are read where they lie, the others with packed ones.
local heights = {}

-- Rows of the tiles that sweep; what rounding lost of compensated sums is kept in as many rows behind them.
function heights.sweep(plan, compensated)
    local list = {}
    for _, m in ipairs{1, 2, 4} do
        if m <= (compensated and plan.direct_rows // 2 or plan.direct_rows) then
            list[#list + 1] = m
        end
    end
    return list[1] and list or false
end

-- With products of pairs: up to so many rows sweep, in f32.
function heights.swept(plan)
    local list = heights.sweep(plan)
    return list[#list]
end

-- Direct tiles. rows, pairs: heights of those that multiply in f32, and pairs: the former finish what was swept; tiles: {rows, name}
-- of both, ascending, each for segments of up to so many rows.
function heights.direct(plan)
    local set = {rows = {}, pairs = {}, tiles = {}}
    local swept = plan.group > 1 and heights.swept(plan) or plan.direct_rows
    local before = 0
    local function add(list, name, m, rows)
        list[#list + 1] = m
        set.tiles[#set.tiles + 1] = {rows = rows, name = ("%s_%d"):format(name, m)}
    end
    for m = 1, plan.direct_rows do
        if m % 4 == 0 or m % 2 == 0 and m > 4 and m < 20 or m == plan.direct_rows then
            if before < swept then
                add(set.rows, "direct", m, math.min(m, swept))
            end
            if m > swept then
                add(set.pairs, "direct_pairs", m, m)
            end
            before = m
        end
    end
    return set
end

return heights
