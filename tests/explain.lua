-- SPDX-License-Identifier: Apache-2.0
-- explain.lua EXPLAINED DIR - what `moegen explain` says of the products of kernels against the tiles that their C in DIR has.
local failed, kernels = false, 0

local function fail(...)
    print("FAIL " .. (...):format(select(2, ...)))
    failed = true
end

-- Tiles that a kind is made of, by what their names have before the number of rows.
local tiles_of = {
    sweep = {"sweep", "direct"},   -- which finish what was swept
    direct = {"direct", "direct_pairs"}, lines = {"lines"}, streams = {"streams"}, eights = {"eights"}, packed = {"gemm"}, along = {"along"},
    words = {"words"}, quarters = {"quarters"}, decoded = {"decoded"}, across = {"across"},
    product = {"product", "narrow"}, crossed = {"crossed_product", "crossed_narrow"}, gradient = {"gradient", "part", "stream"},
}
local intrinsics = {tile_dot = "_tile_dpbf16ps", tile_dot_i8 = "_tile_dpbssd", dot_bf16 = "_dpbf16_ps", dot_bytes = "_dpbusd_epi32"}

local tokens = {"to %d+", "%d+%.%.%d+", "more", "others", "all"}

-- The kinds and ops of a kernel's section `products`; kinds[kind] is the number of tokens that is said, if there is one.
local function parse(text)
    local kinds, ops = {}, {}
    for line in text:gmatch("[^\n]+") do
        local kind, op
        for _, some in ipairs(tokens) do
            if not kind then
                kind, op = line:match("%s" .. some .. "%s+(%S+)%s+(%S+)%s+%S")
            end
        end
        if not tiles_of[kind or ""] then
            fail("what kind is this? %s", line)
        else
            kinds[kind], ops[op] = tonumber(line:match("%sto (%d+)%s")) or true, true
        end
    end
    return kinds, ops
end

-- Streams are for passes of as many tokens as their largest tile has, and passes of those of codes are of ALONG_TOKENS at most, two of them if
-- rows are decoded for more tokens; numbers have none if there are more tokens.
local function compare_streams(name, said, c)
    local most = 0
    for tokens in c:gmatch("\nstatic void " .. name .. "_quarters_(%d+)%(") do
        most = math.max(most, tonumber(tokens))
    end
    local pass, all = c:match("\n +ALONG_TOKENS = (%d+),"), c:match("\n +ALONG = (%d+),")
    if most > 0 and c:find("const uint8_t *W;", 1, true) and tonumber(pass) <= most then
        most = c:find("\n +DECODED_TOKENS = ") and math.min(2 * tonumber(pass), tonumber(all)) or tonumber(all)
    end
    if (said or 0) ~= most then
        fail("%s: streams multiply up to %d tokens, not %s", name, most, said)
    end
end

local function compare(name, kinds, ops, c)
    compare_streams(name, kinds.quarters, c)
    local made, wanted = {}, {}
    for tile in c:gmatch("\nstatic void " .. name .. "_([a-z_]-)_%d+[_set]*%(") do
        made[tile] = true
    end
    for kind in pairs(kinds) do
        local some = false
        for _, tile in ipairs(tiles_of[kind]) do
            wanted[tile], some = true, some or made[tile]
        end
        if not some then
            fail("%s: no tile of kind %s", name, kind)
        end
    end
    for _, list in pairs(tiles_of) do
        for _, tile in ipairs(list) do
            if made[tile] and not wanted[tile] then
                fail("%s: nothing is said of tiles %s", name, tile)
            end
        end
    end
    for op, intrinsic in pairs(intrinsics) do
        if (c:find(intrinsic .. "(", 1, true) ~= nil) ~= (ops[op] or false) then
            fail("%s: %s is %s", name, op, ops[op] and "said, and not there" or "there, and not said")
        end
    end
end

local explained, at = "\n" .. assert(io.open(arg[1])):read("a"), 1
while true do
    local _, last, name, section = explained:find("\n([%w_]+)  %([%w_]+%)\n.-\nproducts\n(.-)\n%f[^ \n]", at)
    if not last then
        break
    end
    local file = assert(io.open(("%s/%s.c"):format(arg[2], name)))
    local kinds, ops = parse(section)
    compare(name, kinds, ops, file:read("a"))
    file:close()
    kernels, at = kernels + 1, last   -- the line feed before the next one
end
if kernels < 4 then
    fail("%d kernels are too few", kernels)
end
print(kernels .. " kernels")
os.exit(not failed)
