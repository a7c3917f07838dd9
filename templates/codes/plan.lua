-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the plan of products of rows of weights that are stored as codes, and the names that coded.c.in refers to.
--
-- In f32 numbers are codes times scales. So they are in pairs if scales are powers of two. Other scales make numbers that 16 bits do not
-- hold: codes are multiplied alone, and scales multiply sums, those of all K (`rows`) or of each run that shares one (`runs`); or two pairs
-- add up to them, where sums of runs leave matrix tiles too often.
local amx = require "tiles.amx"
local code_scales = require "tiles.code_scales"
local coded = require "tiles.coded"
local dtype = require "dtype"
local formats = require "tiles.formats"
local integers = require "codes.integers"
local panels = require "product.panels"
local plans = require "shared.plans"
local runs = require "codes.runs"
local stored = require "shared.stored"
local words = require "codes.words"

local codes = {}

local BLOCK <const> = 128   -- rows and elements of a row that share a scale

-- Are the weights of a spec codes, which tiles decode?
function codes.are(spec)
    return stored.format(spec) ~= nil and (not integers.are(spec) or integers.run(spec) ~= nil)
end

-- Has each column of the matrices as they are stored a scale? Their rows are then what products contract, or what they give.
local along = stored.by_columns

-- Elements of a row that share a scale, or nil: all, or none.
local function run_of(spec)
    local share = stored.scale(spec)
    return not along(spec) and (share == "group" and stored.group(spec) or share == "block" and BLOCK) or nil
end

local function c_type(name)
    return (dtype[name] or formats.rows[name] or {c = "uint8_t"}).c
end

-- What a family takes of the key `weights`, see stored.lua, whose products decode codes in these layouts beside `plain`.
function codes.takes(layouts)
    return {dtype = formats.names, scale = {"static", "block", "group"}, group = true, layout = layouts}
end

-- The same, and numbers of another dtype than tokens'.
function codes.takes_numbers(layouts)
    local takes = codes.takes(layouts)
    takes.dtype, takes.widened = plans.append({}, formats.numbers, formats.names), true
    return takes
end

-- Rules of the way back, and of families that quantise numbers.
codes.rules = {
    frozen = {"weights.dtype", function(s) return s.weight_grads == "none" or not codes.are(s) end,
        "{weights.dtype} has no gradients: it needs weight_grads = none, here {weight_grads}"},
    numbers = {"weights.dtype", function(s) return s.quantize == "none" or not stored.format(s) end,
        "{weights.dtype} is a format of codes, and {quantize} quantises weights that are numbers"},
    same = {"weights.dtype", function(s) return s.quantize == "none" or stored.format(s) or s.weights.dtype == s.dtype end,
        "{weights.dtype} is not supported yet beside {quantize}: weights are of {dtype}"},
}

-- Elements that are decoded at a time.
function codes.unit(spec, plan)
    return coded.unit(run_of(spec), coded.step(plan))
end

-- Why products of a spec's weights, as they are and as they are transposed, may not be of pairs, or nil.
function codes.no_pairs(spec)
    local format = stored.format(spec)
    return format and not format.powers and ("scales of %s make numbers that 16 bits do not hold"):format(spec.weights.dtype) or nil
end

-- Are numbers sums of two pairs, codes times scales? Where their products take less time than sums of as few products as a matrix tile
-- adds up, on their way through memory. Scales have no more digits than elements.
local function in_parts(spec, plan)
    local format, run = stored.format(spec), run_of(spec)
    if not plan.tiled or plan.group ~= 2 or not format or format.powers or format.second or not run or run // plan.group > amx.unit then
        return false
    end
    local scale = dtype[format.scales]
    return scale and scale.digits <= dtype[spec.dtype].digits and coded.has_parts(plan.isa, formats.rows[spec.weights.dtype], run)
end

-- Words of K that a block has, or nil: as elsewhere.
function codes.block(spec, plan)
    return integers.block(spec, plan) or in_parts(spec, plan) and amx.kc // 2 or nil
end

-- Which sums scales multiply, if they do: "rows" or "runs". Codes times the scales of nvfp4's groups are exact in pairs: its second
-- scale is what multiplies sums.
local function sums_of(spec, plan)
    local format, share = stored.format(spec), stored.scale(spec)
    if not format or integers.are(spec) or plan.group ~= 2 or format.powers or in_parts(spec, plan) then
        return false
    end
    return (share == "group" or share == "block") and not format.second and "runs" or "rows"
end

-- Words of K whose sums a scale multiplies, or nil.
function codes.run(spec, plan)
    return (sums_of(spec, plan) == "runs" or integers.are(spec)) and run_of(spec) and run_of(spec) // plan.group or nil
end

-- May panels be of one vector? Numbers are copied there; codes are decoded to rows. Tokens that become integers have two.
function codes.may_be_narrow(spec)
    return not codes.are(spec) or not (integers.are(spec) or words.are(spec))
end

-- Elements of K that panels have a multiple of: whole runs.
function codes.rows(spec, plan)
    return sums_of(spec, plan) == "runs" and codes.unit(spec, plan) or 1
end

-- cfg of products of weights; that of everything else is cfg.
function codes.cfg(cfg, spec, plan)
    if sums_of(spec, plan) ~= "runs" then
        return cfg
    end
    local how = runs.how(cfg.product, plan, run_of(spec), false, stored.format(spec).bits)
    how.tile = cfg.dtype.tiles
    return setmetatable({product = how}, {__index = cfg})
end

-- The tiles that blocks and columns want: names.coded.whole takes whole runs of a scale; names.coded.part has one for each row, and is for
-- columns, which may begin anywhere, if runs are much longer than a panel. unit: elements, unit_c: C
local function choose_tiles(names, depth)
    local c, phases = names.coded, names.phases
    if c.unscaled or c.integers then
        c.whole, c.part = false, false
        return
    end
    local cuts = phases.transposes and c.run and c.run > 2 * depth
    local unit = coded.unit(c.run, depth)
    local scales = c.along and unit or c.run and unit // c.run
    c.whole = (phases.contiguous or not cuts) and {name = "decode", run = c.run, unit = unit, unit_c = "UNIT", scales = scales or 1,
        passed = scales and " - units * SCALES" or ""} or false
    c.part = cuts and {name = "decode_part", unit = depth, unit_c = "PART", passed = ""} or false
end

-- What a rank keeps: rows of workspace.lua.
local function space(names, plan)
    local widened = names.coded.widened
    return names.runs and runs.space(plan) or plans.list(
        names.coded.sums and {"row_scales", "float", {"MC"}, "of rows of sums", own = true},
        widened and {"block_scales", "float", {"MC > BLOCK_ROWS ? MC : BLOCK_ROWS", "BLOCK_SCALES"}, "of a block of codes, in f32:",
            own = true},
        widened and {"scales_row", "int64_t", nil, "from this row on,"},
        widened and {"scales_from", "int64_t", nil, "and this element of it"},
        names.transposes and {"image", names.panel_c, {"K_PANELS", names.depth, "IMAGE"}, "a block of columns before they become rows",
            own = true},
        names.coded.shared_columns and {"scales", "float", {"H > GATES * I ? H : GATES * I"}, "of columns, if those of a part share one,",
            own = true},
        names.coded.shared_columns and {"scales_of", "const float *", nil, "and where they come from", starts = "(const float *)0"})
end

-- Tables of the tile that decodes, as C text, or false.
local function tables_of(names, f, isa)
    local by = names.coded.unscaled or names.coded.scaled
    local list = not names.integers and (by and by.tables or not by and f.number and formats.tables(isa.lanes, f))
    return list and table.concat(list, ", ")
end

-- C: how many matrices a tensor of an expert holds, by its name; is it more than one in some?
local function parts_of(matrices)
    local list, some = {}, false
    for _, m in ipairs(matrices) do
        list[m.name] = m.parts > 1 and "GATES" or "1"
        some = some or m.parts > 1
    end
    return list, some
end

-- Adds the names of decoding, once those of phases are there. how: cfg.product, of products of weights; matrices: as stored.matrices has
-- them
function codes.names(names, spec, plan, matrices, how)
    names.weights_c = names.io
    if not codes.are(spec) then
        return
    end
    local format, f, depth, step = stored.format(spec), formats.rows[spec.weights.dtype], panels.depth(plan), coded.step(plan)
    local share, run, scaled = stored.scale(spec), run_of(spec), along(spec)
    local sums = sums_of(spec, plan)
    local in_pairs = plan.group == 2 and not integers.are(spec) and share == "group" and sums ~= "runs"   -- are codes times scales exact?
    local parts = in_parts(spec, plan)
    local scaled_by = parts and coded.in_parts(f) or in_pairs and coded.scaled_by(plan.isa, f, run)
    local widened = share == "group" and (format.second or not formats.scales[format.scales] or scaled_by) and true or false
    local set = {group = "%s * ((M.ld + %d) / %d)", block = "(%s + %d) / %d * ((M.ld + 127) / 128)", row = scaled and "M.ld" or "%s",
        static = "M.parts"}
    names.weights_c, names.across = "uint8_t", false
    names.coded = {format = f, scale = format.scales, scale_c = c_type(format.scales), share = share, run = run, bits = format.bits,
        second = format.second or false, widened = widened, scale_of = widened and "wide_scale_of" or "scale_of",
        read = widened and {scale = "f32", c = "float"} or {scale = format.scales, c = c_type(format.scales)},
        blocked = format.blocked, zero = f.zero or 0, interleaved = stored.of(spec).interleaved, along = scaled,
        shared_columns = scaled and share == "static", words = false, integers = names.integers or false, sums = sums,
        terms = parts and 2 or 1,
        unscaled = sums and not format.second and coded.unscaled_by(plan.isa, f),
        scaled = scaled_by}
    names.coded.parts, names.coded.parted = parts_of(matrices)
    names.coded.tables = tables_of(names, f, plan.isa)
    names.coded.unit = (names.runs or names.coded.unscaled) and coded.unit(run, step)
    choose_tiles(names, step)
    if names.transposes then
        local unit, list = (names.coded.part or names.coded.whole).unit, names.constants
        names.transposes_whole = true
        list[#list + 1] = {"IMAGE", plans.round_up(plan.mc, unit) + unit, "columns of codes that are decoded to be transposed, at most"}
    end
    if widened then
        local long = math.max(panels.block(plan) * depth, names.transposes and plan.mc + 2 * coded.unit(run, step) or 0)
        plans.append(names.constants, {
            {"BLOCK_ROWS", panels.block(plan) * depth, "rows of codes that are decoded to be transposed, at most;"},
            {"BLOCK_SCALES", plans.round_up((long + run - 1) // run, plan.isa.lanes), "scales of a row of a block, at most"}})
    end
    if sums == "runs" then
        names.runs = how
        plans.append(names.constants, runs.constants(plan, how, run))
    end
    names.coded.space = space(names, plan)
    if words.are(spec) then
        words.names(names, spec, plan, format.bits, coded.unit(run, step))
        plans.append(names.coded.space, words.space(names))
        set.group = "%s * ((words_of(M.ld) + 7) / 8)"
    end
    -- Elements of an expert's tensor of codes, which has so many rows of ld elements: C.
    function names.coded.elements(all, ld)
        return ("%s * %s(%s)"):format(all, names.coded.words and "words_of" or "row_bytes", ld)
    end
    -- The scales of a matrix which has so many rows. member: of the matrix: "m->" or "matrix."
    function names.coded.scales(weights, expert, all, member)
        local each = set[share]:format(all, (run or 1) - 1, run or 1):gsub("M%.", member)
        return stored.factors(spec, weights, "_scale", expert, each)
    end
    -- Are rows of scales of groups made f32, by tile scale_rows?
    function names.coded.widens()
        local along_runs = names.along and not names.along.halves and not names.coded.words
        return share == "group" and (widened or names.runs or along_runs)
    end
    -- What multiplies all of them, for each of its parts.
    function names.coded.seconds(weights, expert, member)
        return stored.factors(spec, weights, "_scale_2", expert, member .. "parts")
    end
end

-- The tiles.
function codes.tiles(names, cfg, spec)
    local c, list = names.coded, {}
    for _, tile in ipairs(c and plans.list(c.whole, c.part) or {}) do
        list[#list + 1] = coded.rows(cfg, tile.name, c, tile.run)
    end
    if c and c.unscaled then
        list[#list + 1] = coded.unscaled(cfg, "decode", c)
    end
    if c and c.sums == "rows" then
        list[#list + 1] = code_scales.of_sums(cfg)
    end
    if c and (names.runs or c.widens()) then
        list[#list + 1] = code_scales.rows(cfg, c)
    end
    return plans.append(list, c and c.words and words.tiles(names, cfg, spec) or {})
end

return codes
