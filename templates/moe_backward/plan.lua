-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the plan of moe_backward, and the names that its template's holes refer to.
local along = require "along.plan"
local dtype = require "dtype"
local back = require "tiles.back"
local codes = require "codes.plan"
local clamp = require "math.clamp"
local activation = require "math.activation"
local dot = require "product.dot"
local epilogue = require "tiles.epilogue"
local gradients = require "gradients.plan"
local norm = require "math.norm"
local panel_rows = require "tiles.panel_rows"
local packed = require "packed.form"
local packed_plan = require "packed.plan"
local panel_plan = require "product.panel_plan"
local panels = require "product.panels"
local plans = require "shared.plans"
local prequantised = require "codes.prequantised"
local post_norm = require "math.post_norm"
local quantised = require "codes.quantised"
local rows = require "tiles.rows"
local stored = require "shared.stored"
local tensors = require "shared.tensors"
local words = require "codes.words"
local work = require "moe_backward.work"

local backward = {}

local convert, round_up = plans.convert, plans.round_up

backward.plan_keys = {dot.key, table.unpack(panel_plan.keys)}

-- Why products may not be of pairs, or nil.
local function no_pairs(spec)
    return codes.no_pairs(spec) or panel_plan.no_pairs(spec)
end

function backward.uses(isa, spec, props)
    return dot.uses(isa, spec, props, no_pairs(spec), false, true)
end

function backward.plan(plan, spec, shape, info)
    dot.choose(plan, spec, info, no_pairs(spec), false, true)
    local crosses = not (quantised.is(spec) or codes.are(spec) or packed.are(spec) or spec.norm == "layer")   -- they change panels
    if spec.weight_grads == "all" then
        panel_plan.both(plan, spec, shape, info, {columns = true, crosses = crosses, step = quantised.rows(spec), pairs = true})
    else
        local are = codes.are(spec)
        panel_plan.forward(plan, spec, shape, info, {unit = are and spec.checkpoint == "recompute" and codes.unit, columns = not are,
            crosses = crosses, pairs = true, square = words.are(spec) and words.square(spec, plan.isa.lanes) or nil})
    end
    packed_plan.choose(plan, spec, true)
end

function backward.params(spec, plan)
    return plans.append(dot.params(spec, plan), packed.params(spec, plan, stored.matrices(spec)))
end

-- Which steps of the semantics this spec has.
local function steps(spec)
    local scale, on = spec.affinity.scale, spec.affinity.on
    local again = spec.checkpoint == "recompute"
    local post = scale == "post"
    local saved_down = post and on == "hidden" and not again
    local grads = spec.weight_grads == "all"
    return {
        again = again, post = post, pre = scale == "pre", saved_down = saved_down,
        affinity_sums = post and not saved_down, reads_dy = saved_down or spec.bias.down and post,
        norm = spec.norm == "layer", post_norm = spec.post_norm ~= nil,
        gradients = grads, bias_up = grads and spec.bias.gate_up, bias_down = grads and spec.bias.down,
        bias_up_value = spec.bias.gate_up and again, bias_down_value = spec.bias.down and post and not saved_down,
        add = spec.accumulate_grads,
        gate_up = {stored.gate_up(spec)}, transposed = spec.weights.layout ~= "plain" and not packed.are(spec),
        interleaved = stored.of(spec).interleaved, separate = stored.of(spec).separate,
        in_words = words.are(spec), words_gathered = words.are(spec) and (again or scale == "pre"),
    }
end

function backward.args(s, plan)
    local has = steps(s)
    return plans.append(prequantised.all_args(s, tensors.inputs(s, plan)), plans.list(
        not has.again and tensors.kept_gate_up(s, "gate_up_proj_act_checkpoint_T", "in", "N"),
        has.saved_down and tensors.kept_down(s, "down_proj_act_checkpoint", "in", "N")),
    tensors.blocks(s), prequantised.args(s, {"output_hidden_states_grad", s.dtype, "in", tensors.tokens(s), s.H,
        says = "gradient of output"}), tensors.read_again(s, tensors.biases(s)), {
        {"hidden_states_grad", s.hidden_grad_dtype, "out", tensors.tokens(s), s.H,
            says = "gradient of hidden_states, summed over the experts of each token"},
        tensors.affinity_gradients(s),
    }, has.gradients and tensors.gradients(s, tensors.parameters(s)) or {})
end

-- Rows of panels over H, over gate and up, and of these over one: full panels of k.
local function deep(spec, plan)
    local depth = panels.depth(plan)
    local one = round_up(spec.I_TP, depth)
    local both = stored.of(spec).separate and 2 * one or round_up(stored.gates(spec) * spec.I_TP, depth)
    return round_up(spec.H, depth), both, one
end

-- Words of the widest rows that become panels.
local function widest(spec, plan)
    return math.max(deep(spec, plan)) // plan.group
end

local function constants(spec, plan)
    local lanes, gates = plan.isa.lanes, stored.gates(spec)
    local hk, gk, ik = deep(spec, plan)
    local prows = round_up(math.max(spec.I_TP + 1, round_up(spec.I_TP, plan.vectors * lanes)), plan.tiled and lanes or 1)
    local xrows, partials = math.max(hk, round_up(spec.H + 1, lanes)), (math.max(spec.I_TP, spec.H) + lanes - 1) // lanes
    return plans.append(tensors.constants(spec), {
        {"H_DEEP", hk, "rows of a panel over H, full panels of k"}, {"G_DEEP", gk, "rows of a panel over gate and up"},
        {"HK", panels.apart(plan, hk), "rows from a panel over H to the next one"},
        {"GK", panels.apart(plan, gk), "from one over gate and up"},
        {"UP", stored.of(spec).separate and ik or (gates - 1) * spec.I_TP, "row of up in it, unless it follows its gate"},
        {"XROWS", panels.apart(plan, xrows), "from one of X, which has one row more than H, of ones"},
        {"PROWS", panels.apart(plan, prows), "from one of p, which has one row more than I, of affinities"},
        {"PARTIALS", partials, "parts of the affinity's gradient"},
    }, panels.constants(plan, widest(spec, plan), spec.weight_grads == "all" and dtype[spec.output_dtype].size),
        quantised.is(spec) and quantised.constants(math.max(spec.H, gates * spec.I_TP)) or {})
end

-- of_weights: cfg of those at work
local function tiles(spec, plan, names, cfg, of_weights)
    local has, io, bias, dx = names.has, dtype[spec.dtype], dtype[spec.bias_dtype], dtype[spec.hidden_grad_dtype]
    local lanes, whole, f32 = cfg.isa.lanes, spec.H >= cfg.isa.lanes, dtype.f32
    local width, stage = plan.vectors * lanes, panels.stage(widest(spec, plan))
    local through = {scaled = has.post, affinity_sums = has.affinity_sums, apart = names.dots and has.again,
        step = has.interleaved and 2 or 1, stores = names.quantised}
    local step = has.in_words and words.WORD or nil   -- rows of sums from an element of a token to the next one
    local held = has.again and not names.quantised and f32 or io   -- what limits are of
    local list = plans.append(panels.tiles(names, of_weights, plan), codes.tiles(names, cfg, spec),
        names.quantised and quantised.tiles(names, of_weights, spec) or {}, prequantised.tiles(names, cfg, spec))
    return plans.append(list, plans.list(
        has.again and epilogue.bounded(cfg, through.step),
        not has.again and spec.block_size >= lanes and rows.column(cfg, io, "column", names.load_step * width, names.dots),
        names.dots and names.widens and rows.words(cfg, io, "words"),
        names.moves and rows.move(cfg, "move", {}),
        names.dots and panel_rows.split(cfg, "split"),
        panels.transposes(cfg, "transpose", stage, names.dots and plan.pair_width),
        has.words_gathered and panels.transposes(cfg, names.transpose_words, stage,
            words.apart(plan) * (names.dots and plan.pair_width or width)),
        whole and rows.scatter(cfg, "scatter", {scaled = has.pre, step = step}),
        whole and rows.scatter(cfg, "scatter_add", {scaled = has.pre, add = true, step = step}),
        has.norm and norm.through(cfg, activation[spec.activation].both, through)
            or back.through(cfg, spec, clamp.limits(spec, held), through),
        has.norm and norm.sum(cfg, "norm_sum"),
        has.norm and norm.column_squares(cfg, "norm_squares"),
        has.norm and norm.hat(cfg, "norm_hat"),
        has.norm and norm.back(cfg, "norm_back"),
        has.post_norm and whole and post_norm.squares(cfg, io, bias),
        has.post_norm and whole and post_norm.back(cfg, names.dots and io or f32, io, bias),
        has.post_norm and has.gradients and whole and post_norm.weight(cfg, io, bias),
        has.pre and back.column_sums(cfg, "column_sums"),
        has.pre and rows.scale(cfg, "scale"),
        (has.affinity_sums or has.pre or has.norm or whole) and rows.move(cfg, "add", {add = true}),
        (has.saved_down and not has.post_norm or has.bias_down_value) and whole
            and rows.dot(cfg, "dot", names.dy.to, has.saved_down and io or bias),
        dx.narrow and whole and rows.move(cfg, "narrow_dx", {to = dx})))
end

-- Adds which `gather` makes panels of a tensor of tokens, if not that of numbers. Behind the experts' norm, panels of output gradients hold
-- what post_norm.c.in makes of these.
local function gather_before_norm(names, has)
    names.norms_rows, names.gathered_as = has.post_norm, {}
    for tensor in pairs(names.given) do
        names.gathered_as[tensor] = tensor
    end
    if has.post_norm then
        names.gathered_as.output_hidden_states_grad = "before_norm"
        names.given.before_norm = {K = "H", decode = "before_norm", row = "routed_row", to = {c = names.panel_c}}
        names.gathers = has.in_words and not has.words_gathered and {"before_norm"} or {"", "before_norm"}
    end
end

-- Adds the names of operands that are codes; returns the cfg of weights at work. names.dy: how gradients of the output are read again for
-- those of affinities
local function given_operands(names, cfg, spec, has)
    local first, second = stored.gate_up(spec)
    local narrow = names.scalars[1]
    local of_weights = prequantised.names(names, cfg, spec, {"hidden_states", "output_hidden_states_grad"},
        plans.list(first, "down_proj_weight", second), false)
    names.scalars[1] = names.scalars[1] or not has.again and narrow   -- of checkpoints
    local dy = names.given.output_hidden_states_grad
    names.dy = {to = dy and dy.to or cfg.dtype, widen = dy and convert(dy.to, "widen") or names.widen_tensor,
        decode = dy and has.reads_dy and dy.decode or false}
    return of_weights
end

-- Adds how the products of the two ways see weights, and whether those of columns may be crossed.
local function layouts(names, plan, has)
    names.forth, names.back = has.transposed and "k" or "n", has.transposed and "n" or "k"
    names.crosses = (has.again or has.transposed) and plan.crosses or false
end

function backward.names(spec, plan, job)
    local isa, io, out, dx = plan.isa, dtype[spec.dtype], dtype[spec.output_dtype], dtype[spec.hidden_grad_dtype]
    local has = steps(spec)
    local gates = stored.gates(spec)
    local cfg = panels.cfg(spec, plan, job)
    local bias, affinity, slots = dtype[spec.bias_dtype], dtype[spec.affinity_dtype], spec.affinities == "slots"
    local totals = {spec.H, spec.I_TP, 1, spec.H, has.again and gates * spec.I_TP or nil}
    local names = {
        spec = spec, plan = plan, isa = isa, has = has, p = cfg.prefix,
        bias_c = bias.c, affinity_c = affinity.c, slots = slots,
        narrow_dx = dx.narrow ~= nil, routed_rows = "w->args->N * B", enters = true,
        quantised = quantised.is(spec), padded = quantised.is(spec) and has.gradients,
        sums = {apart = true, row = "H", is_long = spec.H >= isa.lanes,
            rounded = plans.rounded("hidden_states_grad", dx, "narrow_dx", "tokens(w->args->T)")},
        clears = true, listed = stored.of(spec).listed,
        transposes_whole = spec.H >= isa.lanes and gates * spec.I_TP >= isa.lanes and (has.again or has.transposed),
        -- gate and up as rows of a panel: that of up of column i, and its gate
        up_of = function(i) return has.interleaved and ("2 * (%s) + 1"):format(i) or "UP + " .. i end,
        gate_of = function(up) return up .. (has.interleaved and " - WIDTH" or " - UP * WIDTH") end,
        eps = plans.number(has.post_norm and spec.post_norm.eps or spec.norm_eps),
        scattered = {scaled = has.pre, adds = "!apart(w)", step = has.in_words and "WORD"},
        affinity_of = function(row)
            return convert(affinity, "widen")((slots and "w->args->slot_affinities[w->slot[%s]]"
                or "w->args->expert_affinities_masked[w->id[%s] * (int64_t)E + w->expert]"):format(row))
        end,
        widen_bias = convert(bias, "widen"), widen_affinity = convert(affinity, "widen"), narrow_io = convert(io, "narrow"),
        narrow_affinity = convert(affinity, "narrow"),
        bound = clamp.bound, number = plans.number,
        bounds = {spec.clamp and spec.clamp.gate or {}, spec.clamp and spec.clamp.up or {}},
        constants = constants(spec, plan),
        scalars = {(plan.group == 1 or has.reads_dy) and {io, "widen"} or false, {dx, "narrow"}, {affinity, "widen"}, {affinity, "narrow"},
            (has.bias_up_value or has.bias_down_value or has.norm or has.post_norm) and {bias, "widen"} or false,
            (has.norm or has.post_norm) and has.gradients and {out, "narrow"} or false,
            (has.norm or has.post_norm) and has.add and {out, "widen"} or false,
            plan.group > 1 and (has.post_norm or has.bias_up or has.bias_down) and {io, "narrow"} or false},
    }
    layouts(names, plan, has)
    panels.products(names, cfg, plan, totals)
    local of_weights = given_operands(names, cfg, spec, has)
    names.gathered = has.in_words and "(WORD * LANES)" or names.dots and "DEPTH" or "LANES"
    gather_before_norm(names, has)
    names.gathers_words, names.transpose_words = has.words_gathered, "transpose_words"
    names.load_step = has.in_words and words.WORD or has.interleaved and 2 or 1
    if has.gradients then
        local both, one = has.separate and spec.I_TP or gates * spec.I_TP, (has.bias_up or has.bias_down) and 1 or nil
        gradients.names(names, cfg, plan, out, {add = has.add,
            columns = has.transposed and {spec.H, spec.I_TP, has.bias_up and both or spec.H} or {both, spec.H},
            rows = has.transposed and {both, spec.H, one} or {spec.H, spec.I_TP, one}})
    end
    if names.quantised then
        quantised.names(names, cfg, spec, has.gradients)
    end
    if names.padded then
        names.block_rows = quantised.rows(spec)
        names.routed_rows = "w->args->N * B + least(E, w->args->N * B) * (MX_BLOCK - 1)"
    end
    packed_plan.names(names, cfg, spec, plan, stored.matrices(spec))
    work.phases(names, has, spec)
    codes.names(names, spec, plan, stored.matrices(spec))
    if names.phases.contiguous then
        along.names(names, of_weights, plan, {spec.H, gates * spec.I_TP})
    end
    work.space(names, has)
    names.tiles = function()
        return tiles(spec, plan, names, cfg, of_weights)
    end
    return names
end

return backward
