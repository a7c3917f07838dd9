-- SPDX-License-Identifier: Apache-2.0
-- conversions.lua ROOT - for each target, into the current directory: how each dtype is widened and narrowed, alone and in pairs
-- (templates/tiles/quantise.lua), and how each format of weights is decoded (templates/tiles/formats.lua), in the three spellings, for
-- conversions/driver.c. Run by tests/meanings.sh.
--
-- A program is void (void *out, const void *in, int64_t n), n times: a vector of elements of one type becomes as many of the other,
-- or two vectors at a time.
local root = arg[1]
dofile(root .. "/tests/generator.lua")(root)
local dtype = require "dtype"
local formats = require "tiles.formats"
local ir = require "ir"
local micro = require "tiles.micro"
local quantise = require "tiles.quantise"
local spellings = dofile(root .. "/tests/spellings.lua")
local target = require "target"

local f32 = dtype.f32

local function program(isa, symbol, from, to, vectors, body)
    local p = ir.program(isa, symbol, {from.name .. " to " .. to.name})
    local out, x, n = p:pointer("out", to.c), p:pointer("x", "const " .. from.c), p:integer("n")
    p:loop(n, function()
        body(p, out, x)
        p:advance(out, vectors * isa.lanes)
        p:advance(x, vectors * isa.lanes)
    end)
    return p
end

-- Of codes: to f32, and two vectors joined to pairs as dot products read them.
local function decodings(isa, row)
    local list, bf16 = {}, dtype.bf16
    local function add(kind, to, vectors, order, body)
        list[#list + 1] = {kind = kind, from = row, to = to, order = order, unit = row.unit, print = function(symbol)
            return program(isa, symbol, row, to, vectors, body)
        end}
    end
    add("decode", f32, 1, "", function(p, out, x)
        quantise.hoist(p, row)
        p:op("store", p:at(out, 0), quantise.load(p, row, "given", p:at(x, 0)))
    end)
    if formats.fits(row, bf16) then
        local how = micro.decoded_pairs(bf16)
        add("pairs", bf16, 2, "joined", function(p, out, x)
            local low = how.load(p, row, "low", p:at(x, 0))
            p:op("store_bits", p:at(out, 0), how.join(p, "pair", low, how.load(p, row, "high", p:at(x, isa.lanes))))
        end)
    end
    return list
end

-- Whose elements alternate in a pair: "groups", of 4 lanes; "lanes"; "joined", two vectors' to lanes; else "".
local function programs(isa, dt)
    local list, lanes = {}, isa.lanes
    local function add(kind, from, to, vectors, order, body)
        list[#list + 1] = {kind = kind, from = from, to = to, order = order, print = function(symbol)
            return program(isa, symbol, from, to, vectors, body)
        end}
    end
    add("load", dt, f32, 1, "", function(p, out, x)
        p:op("store", p:at(out, 0), quantise.load(p, dt, "given", p:at(x, 0)))
    end)
    if quantise.per_lane(dt) > 1 then
        add("split", dt, f32, 2, "lanes", function(p, out, x)
            local low, high = quantise.split(p, dt)("given", p:op("load_bits", "given", p:at(x, 0)))
            p:op("store", p:at(out, 0), low)
            p:op("store", p:at(out, lanes), high)
        end)
    end
    add("store", f32, dt, 1, "", function(p, out, x)
        quantise.store(p, dt, p:at(out, 0), p:op("load", "given", p:at(x, 0)))
    end)
    local pairs, alternate = quantise.pairs(dt, isa)
    for _, op in ipairs(pairs and {"store_bits", "stream_bits"} or {}) do
        add(op, f32, dt, 2, alternate and "groups" or "", function(p, out, x)
            quantise.store_pair(p, dt, p:at(out, 0), p:op("load", "first", p:at(x, 0)), p:op("load", "second", p:at(x, lanes)), op)
        end)
    end
    return list
end

-- The C functions of single elements, as programs.
local function elements(isa, dt)
    local out, list = {}, {}
    for _, way in ipairs{{dt, f32, dt.widen}, {f32, dt, dt.narrow}} do
        local symbol = ("element_%s_%s"):format(isa.name, way[3])
        out[#out + 1] = dt.scalar[way[3]]
        out[#out + 1] = ("static void %s(%s *out, const %s *x, int64_t n)\n{\n    for (int64_t i = 0; i < n * LANES; i++)\n"
            .. "        out[i] = %s(x[i]);\n}\n"):format(symbol, way[2].c, way[1].c, way[3])
        list[#list + 1] = {kind = "element", from = way[1], to = way[2], order = "", symbol = symbol}
    end
    return list, table.concat(out)
end

for _, isa in ipairs(target.all()) do
    local list, facts, helpers, extra = {}, {}, {}, {}
    for _, row in pairs(formats.rows) do
        for _, one in ipairs(row.decode and decodings(isa, row) or {}) do
            list[#list + 1] = one
        end
    end
    for _, dt in pairs(dtype) do
        for _, one in ipairs(dt.narrow and programs(isa, dt) or {}) do
            list[#list + 1] = one
        end
        if dt.scalar then
            local more, text = elements(isa, dt)
            table.move(more, 1, #more, #extra + 1, extra)
            helpers[#helpers + 1] = text
        end
    end
    local all = table.move(extra, 1, #extra, #list + 1, table.move(list, 1, #list, 1, {}))
    for i, one in ipairs(all) do
        -- an instruction that rounds may take subnormal numbers as zeros
        facts[i] = ("\"%s\", \"%s\", \"%s\", \"%s\", %d, %.17g"):format(one.kind, one.from.name, one.to.name, one.order,
            not one.symbol and one.to.round and isa.rows[one.to.round] and 1 or 0, one.unit or 1)
    end
    spellings.write(isa, #list, function(i, prefix)
        local one = list[i]
        return one.print(("%s%s_%s_%s_%s"):format(prefix, isa.name, one.kind, one.from.name, one.to.name))
    end, "struct op {\n    const char *kind, *from, *to, *order;\n    int flushes;\n    double unit;\n}", facts,
        table.concat(helpers), extra)
end
