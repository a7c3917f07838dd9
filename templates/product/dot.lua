-- SPDX-License-Identifier: Apache-2.0
-- dot.lua - products of 16-bit pairs by a dot instruction, in place of widening to f32: when it pays. How it multiplies: micro.lua.
--
-- A lane of 32 bits holds a pair: of a packed panel, elements of rows 2 k and 2 k + 1 of one column; of A, neighbours 2 k
-- and 2 k + 1 of a row. So a panel, and a row of A, is half as long as in f32. Pairs move as floats that nobody computes
-- with. Weights that are read where they lie are joined to pairs on their way to the instruction; where these are codes, the rows of a
-- segment that sweeps (see sweep.lua) stay f32: they wait for memory, whatever multiplies them. The instruction gives 2 products per lane,
-- but on some CPUs at a quarter of the rate of FMA: a property of the CPU, measured once (see gen/api/property.c), decides.
local dtype = require "dtype"
local formats = require "tiles.formats"
local schema = require "schema"

local dot = {}

-- The key of plans.
dot.key = {"product", schema.types.enum{"widen", "dot", "tiles"}, optional = true,
    doc = "of 16-bit elements: widened to f32, in pairs by a dot instruction, or on matrix tiles"}

-- Has a target tiles for what a spec multiplies?
local function has_tiles(spec, isa)
    return isa.rows[dtype[spec.dtype].tiles or ""] ~= nil
end

-- May the products of this spec be dot products on this target? Else false and why not. A spec's outputs must be as coarse as what
-- is rounded on the way to them, or (rows of tokens) become so later. why_not: what else forbids it, or nil; exact: nothing is rounded
-- on the way. Where they are legal, so are products on matrix tiles, if the target has some and the kernel's plan has a use for them
-- (tiled).
local function allowed(spec, isa, why_not, exact)
    local dt, weights = dtype[spec.dtype], formats.of(spec)
    if not dt.dot then
        return false, ("no instruction multiplies pairs of %s"):format(dt.name)
    elseif not isa.rows[dt.dot] then
        return false, ("target %s has no dot product of %s"):format(isa.name, dt.name)
    elseif not formats.fits(weights, dt) then
        return false, ("weights of %s have digits that %s has not"):format(weights.name, dt.name)
    elseif spec.norm == "layer" then
        return false, "normalisation wants its rows in f32"
    elseif spec.affinity and spec.affinity.scale == "pre" then
        return false, ("affinity scaling `pre` makes f32 of the %s rows"):format(dt.name)
    elseif spec.H == 1 then
        return false, "a row is one number, which loses digits where a sum of rounded intermediates cancels"
    elseif why_not then
        return false, why_not
    end
    local later = spec.rounded_later and (spec.hidden_grad_dtype and "hidden_grad_dtype" or "output_dtype")
    for _, key in ipairs{"output_dtype", "hidden_grad_dtype"} do
        if not exact and key ~= later and (spec[key] or spec.dtype) ~= spec.dtype then
            return false, ("rounding intermediates to %s costs digits of an output in %s"):format(dt.name, spec[key])
        end
    end
    return true
end

-- Shall a plan take a target for its dot products? The answer and a reason, or nil, nil and the property of the CPU (see
-- gen/api/property.c) that has to be known first. props: name -> value; 0: cannot be measured; nil: the CPU does not matter.
function dot.uses(isa, spec, props, why_not, exact, tiled)
    local legal, why = allowed(spec, isa, why_not, exact)
    local given = spec.plan and spec.plan.product
    if not legal then
        return false, why
    elseif has_tiles(spec, isa) then
        return tiled and (given or "tiles") == "tiles",
            not tiled and "its tiles make nothing of this kernel faster, as far as its spec says" or given and "given"
            or props and "matrix tiles multiply 16 x 16 x 32 elements at once" or "the target was asked for"
    elseif given then
        return given == "dot", "given"
    elseif not props then
        return true, "the target was asked for"
    end
    local op = dtype[spec.dtype].dot
    local mnemonic, name = isa.rows[op][2], isa.name .. "." .. op
    local rate = props[name]
    if not rate then
        return nil, nil, name
    elseif rate == 0 then
        return false, ("how fast %s is here cannot be measured"):format(mnemonic)
    end
    return rate > 1, ("%s runs at %.2f of the FMA rate here"):format(mnemonic, rate)
end

-- The plan's choice `product`, for dtypes whose pairs some instruction multiplies.
function dot.choose(plan, spec, info, why_not, exact, tiled)
    local legal, why = allowed(spec, plan.isa, why_not, exact)
    local given, tiles = spec.plan and spec.plan.product, legal and tiled and has_tiles(spec, plan.isa)
    if given == "dot" and not legal or given == "tiles" and not tiles then   -- what keeps it from a target that has them says more
        schema.complain(info, "plan.product", plan.used and plan.used ~= "given" and plan.used or why
            or ("target %s has no tiles for this kernel"):format(plan.isa.name))
    end
    if dtype[spec.dtype].dot or given then   -- `widen` is always so
        plan:choose("product", legal and plan.pays ~= false and (tiles and "tiles" or "dot") or "widen", plan.used or why)
    end
    plan.group = legal and plan.product ~= "widen" and 2 or 1   -- rows of K to a row of a packed panel
    plan.tiled = tiles and plan.product == "tiles" or false
end

-- The op of the products, when it is not FMA.
function dot.params(spec, plan)
    return plan.group > 1 and {"product.op " .. dtype[spec.dtype][plan.tiled and "tiles" or "dot"]} or {}
end

return dot
