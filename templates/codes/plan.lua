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
local packed = require "packed.form"
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

-- Elements of a row that share a scale, or nil: all, or none.
local function run_of(spec)
    local share = stored.scale(spec)
    return not stored.by_columns(spec) and (share == "group" and stored.group(spec) or share == "block" and BLOCK) or nil
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
    unpacked = {"weights.layout", function(s) return s.quantize == "none" or not packed.are(s) end,
        "{weights.layout} is of numbers that products read as they are, here {quantize}"},
    -- blocks: does an order of gate and up undo what shares a scale?
    apart = function(blocks)
        return {"weights.gate_up_order", function(s) return not (stored.of(s).interleaved and blocks(s)) end,
            "{weights.gate_up_order} is not supported yet beside {quantize}: gate and up have blocks of their own"}
    end,
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
    return plans.with(cfg, {product = how})
end

-- The tiles that blocks and columns want: names.coded.whole takes whole runs of a scale; names.coded.part has one for each row, and is for
-- columns, which may begin anywhere, if runs are much longer than a panel. unit: elements, unit_c: C
local function choose_tiles(names, depth)
    local c, phases = names.coded, names.phases
    if c.unscaled or names.integers then
        c.whole, c.part = false, false
        return
    end
    local cuts = phases.transposes and c.run and c.run > 2 * depth
    local unit = coded.unit(c.run, depth)
    local scales = c.by_columns and unit or c.run and unit // c.run
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

-- What a spec's codes are, and how they become numbers:
--     format, bits, zero      row of formats.lua; bits of a code; a byte of zeros
--     share, run              what shares a scale, see stored.lua; elements of a row that do, or nil
--     scale, scale_c, second  dtype of scales, and in C; is there another one of a whole matrix?
--     widened, read, scale_of do tiles read scales in f32; their dtype then; C function that finds them
--     by_columns              each column of a matrix as it is stored has a scale; shared_columns: those of a part the same
--     blocked, interleaved    codes that share a scale are an extent of their own; gate and up come in turn
--     words                   false, or what words.lua says of codes in words
--     sums                    what scales multiply later: "rows" or "runs" of sums, or false
--     unscaled, scaled        how codes become pairs, without scales and times them, see tiles/coded.lua, or false or nil
--     terms                   pairs that add up to a number
local function coded_of(spec, plan)
    local format, f, share, run = stored.format(spec), formats.rows[spec.weights.dtype], stored.scale(spec), run_of(spec)
    local sums, parts, by_columns = sums_of(spec, plan), in_parts(spec, plan), stored.by_columns(spec)
    local exact = plan.group == 2 and not integers.are(spec) and share == "group" and sums ~= "runs"   -- in pairs, codes times scales?
    local scaled = parts and coded.in_parts(f) or exact and coded.scaled_by(plan.isa, f, run)
    local scale_c = (dtype[format.scales] or formats.rows[format.scales] or {c = "uint8_t"}).c
    local widened = share == "group" and (format.second or not formats.scales[format.scales] or scaled) and true or false
    return {format = f, bits = format.bits, zero = f.zero or 0, share = share, run = run,
        scale = format.scales, scale_c = scale_c, second = format.second or false,
        widened = widened, read = widened and {scale = "f32", c = "float"} or {scale = format.scales, c = scale_c},
        scale_of = widened and "wide_scale_of" or "scale_of",
        by_columns = by_columns, shared_columns = by_columns and share == "static",
        blocked = format.blocked, interleaved = stored.of(spec).interleaved, words = false, sums = sums,
        unscaled = sums and not format.second and coded.unscaled_by(plan.isa, f), scaled = scaled, terms = parts and 2 or 1}
end

-- Constants of what is decoded at a time.
local function constants(names, plan)
    local c, list, step, rows = names.coded, names.constants, coded.step(plan), panels.block(plan) * panels.depth(plan)
    if names.transposes then
        local unit = (c.part or c.whole).unit
        list[#list + 1] = {"IMAGE", plans.round_up(plan.mc, unit) + unit, "columns of codes that are decoded to be transposed, at most"}
    end
    if c.widened then
        local long = math.max(rows, names.transposes and plan.mc + 2 * coded.unit(c.run, step) or 0)
        plans.append(list, {
            {"BLOCK_ROWS", rows, "rows of codes that are decoded to be transposed, at most;"},
            {"BLOCK_SCALES", plans.round_up((long + c.run - 1) // c.run, plan.isa.lanes), "scales of a row of a block, at most"}})
    end
    plans.append(list, c.sums == "runs" and runs.constants(plan, names.runs, c.run) or {})
end

-- Adds functions that give C.
local function add_places(names, spec)
    local c = names.coded
    local share, run = c.share, c.run or 1
    -- scales of a matrix M of so many rows, by what shares one
    local count = {group = c.words and "%s * ((words_of(M.ld) + 7) / 8)" or "%s * ((M.ld + %d) / %d)",
        block = ("(%%s + %%d) / %%d * ((M.ld + %d) / %d)"):format(BLOCK - 1, BLOCK), row = c.by_columns and "M.ld" or "%s",
        static = "M.parts"}
    -- Elements of an expert's tensor of codes, which has so many rows of ld elements.
    function c.elements(all, ld)
        return ("%s * %s(%s)"):format(all, c.words and "words_of" or "row_bytes", ld)
    end
    -- The scales of a matrix which has so many rows. member: of the matrix: "m->" or "matrix."
    function c.scales(weights, expert, all, member)
        local each = count[share]:format(all, run - 1, run):gsub("M%.", member)
        return stored.factors(spec, weights, "_scale", expert, each)
    end
    -- What multiplies all of them, for each of its parts.
    function c.seconds(weights, expert, member)
        return stored.factors(spec, weights, "_scale_2", expert, member .. "parts")
    end
    -- Are rows of scales of groups made f32, by tile scale_rows?
    function c.widens()
        local along_runs = names.along and not names.along.halves and not c.words
        return share == "group" and (c.widened or names.runs or along_runs)
    end
end

-- Adds the names of decoding, once those of phases are there: coded, as above, and
--     parts, parted           matrices of a tensor, by its name; does some have more than one?
--     tables, space           of tiles that decode, C text; what a rank keeps
--     unit, whole, part       elements that are decoded together without scales; tiles with scales, see choose_tiles
-- how: cfg.product, of products of weights; matrices: as stored.matrices has them
function codes.names(names, spec, plan, matrices, how)
    names.weights_c = names.io
    if not codes.are(spec) then
        return
    end
    local c, step = coded_of(spec, plan), coded.step(plan)
    names.coded, names.weights_c, names.across = c, "uint8_t", false
    c.parts, c.parted = parts_of(matrices)
    c.tables = tables_of(names, c.format, plan.isa)
    c.unit = (names.runs or c.unscaled) and coded.unit(c.run, step)
    choose_tiles(names, step)
    if names.transposes then
        names.transposes_whole = true
    end
    if c.sums == "runs" then
        names.runs = how
    end
    constants(names, plan)
    c.space = space(names, plan)
    if words.are(spec) then
        words.names(names, spec, plan, c.bits, coded.unit(c.run, step))
        plans.append(c.space, words.space(names))
    end
    add_places(names, spec)
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
