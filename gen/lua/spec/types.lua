-- SPDX-License-Identifier: Apache-2.0
-- types: the value types of spec keys. The contract, with an example, is at the head of schema.lua.
--
-- A type is { kind=, kinds=, text=, check=function(self, node, at) }: `text` says what is expected ("an integer in
-- 1..8"), `kinds` which node kinds it can read. check returns the value, or nil after at:fail(node, message, hint).
-- `at` is where the value stands: at.path ("affinity.scale"), at.file, at.errors; at:enter(name) is a child's place.
local diag = require "diag"

local types = {}
local quote = diag.quote

local NULL <const> = { [""] = true, ["~"] = true, ["null"] = true, ["Null"] = true, ["NULL"] = true }

local function is_null(node)
    return node.kind == "scalar" and node.plain and NULL[node.value] or false
end
types.is_null = is_null

-- What a node is, in words.
local function words(node)
    return node.kind == "scalar" and quote(node.value) or "a " .. node.kind
end

local function expected(self, node, at, hint)
    if is_null(node) then return at:fail(node, "no value; expected " .. self.text) end
    at:fail(node, ("%s is not %s"):format(words(node), self.text), hint)
end

local SCALAR <const> = { scalar = true }
local LIST <const> = { list = true }
local MAP <const> = { map = true }

-- "in 1..8", "at least 1", "at most 8" or "".
local function bounds(lo, hi)
    if lo and hi then return (" in %s..%s"):format(lo, hi) end
    return lo and " of at least " .. lo or hi and " of at most " .. hi or ""
end

local function within(self, node, at, value)
    if (self.lo and value < self.lo) or (self.hi and value > self.hi) then
        local rule = self.lo and self.hi and ("in %s..%s"):format(self.lo, self.hi)
            or self.lo and "at least " .. self.lo or "at most " .. self.hi
        at:fail(node, ("%s is not %s"):format(node.value, rule))
        return nil
    end
    return value
end

-- The number a user may have meant by a text that is none in a spec, as a hint.
local function number_hint(node)
    local s = node.value
    if not node.plain and s:find "^%-?%d+%.?%d*$" then return "quoted values are text: remove the quotes" end
    if s:find "^%-?0%d+$" then return "a leading zero may mean octal: write " .. s:gsub("^(%-?)0+(%d)", "%1%2") end
    if s:find "^%-?%d[%d_]*_[%d_]*$" then return "write " .. s:gsub("_", "") end
    if s:find "^%-?%d%d?%d?,%d%d%d[%d,]*$" then return "write " .. s:gsub(",", "") end
    if s:find "^%-?%d+%.?%d*[eE]%+?%d+$" or s:find "^%-?%d+%.0*$" then
        local n = math.tointeger(tonumber(s))
        return n and "write " .. n
    end
    if s:find "^%+%d+$" then return "write " .. s:sub(2) end
    local digits, unit = s:match "^(%d+)%s*([kKmM])[iI]?[bB]?$"
    if digits and #digits < 6 then return ("write %d"):format(digits * (unit:lower() == "k" and 1024 or 1048576)) end
    return nil
end

local function check_int(self, node, at)
    local s = node.kind == "scalar" and node.plain and node.value or ""
    local hex = #s <= 17 and s:find "^0x%x+$"
    if not hex and not s:find "^%-?[1-9]%d*$" and s ~= "0" then
        return expected(self, node, at, node.kind == "scalar" and number_hint(node) or nil)
    end
    local value = math.tointeger(tonumber(s))
    if not value then
        at:fail(node, ("%s does not fit 64 bits; expected %s"):format(quote(s), self.text))
        return nil
    end
    return within(self, node, at, value)
end

-- An integer: decimal or 0x. Either bound may be nil.
function types.int(lo, hi)
    return { kind = "int", kinds = SCALAR, check = check_int, lo = lo, hi = hi, text = "an integer" .. bounds(lo, hi) }
end

local function check_num(self, node, at)
    local s = node.kind == "scalar" and node.plain and node.value or ""
    local mantissa = s:match "^%-?(.*)[eE][+-]?%d+$" or s:gsub("^%-", "")
    local whole = mantissa:match "^(%d+)%.?%d*$"
    if not (whole and (whole == "0" or whole:sub(1, 1) ~= "0")) and not mantissa:find "^%.%d+$" then
        return expected(self, node, at, node.kind == "scalar" and number_hint(node) or nil)
    end
    local value = tonumber(s) + 0.0
    if value ~= value or value == math.huge or value == -math.huge then
        at:fail(node, ("%s is not a finite number"):format(quote(s)))
        return nil
    end
    return within(self, node, at, value)
end

-- A finite number, always a float. Either bound may be nil.
function types.num(lo, hi)
    return { kind = "num", kinds = SCALAR, check = check_num, lo = lo, hi = hi, text = "a number" .. bounds(lo, hi) }
end

local TRUTH <const> = { ["true"] = true, ["false"] = false }
local LIKE_TRUTH <const> = { yes = "true", on = "true", y = "true", ["1"] = "true", ["true"] = "true",
    no = "false", off = "false", n = "false", ["0"] = "false", ["false"] = "false" }

local function check_bool(self, node, at)
    local s = node.kind == "scalar" and node.value or ""
    if node.kind == "scalar" and node.plain and TRUTH[s] ~= nil then return TRUTH[s] end
    local meant = LIKE_TRUTH[s:lower()]
    return expected(self, node, at, meant and "write " .. meant .. (TRUTH[s] ~= nil and ", without quotes" or ""))
end

function types.bool()
    return { kind = "bool", kinds = SCALAR, check = check_bool, text = "true or false" }
end

local function check_enum(self, node, at)
    if node.kind ~= "scalar" then return expected(self, node, at) end
    for _, name in ipairs(self.names) do
        if node.value == name then return name end
    end
    local meant = self.names.also and self.names.also[node.value:lower()]
    return expected(self, node, at, meant and "write " .. meant or diag.near(node.value, self.shown))
end

-- One of the given names. options.what: the `moegen list` topic that shows them, for long lists. Of the list `names`: also[word]
-- is the name that is meant by a word that others use; hidden[name]: a later step refuses it as yet, so nobody is told of it.
function types.enum(names, options)
    local shown = {}
    for _, name in ipairs(names) do
        if not (names.hidden and names.hidden[name]) then shown[#shown + 1] = name end
    end
    local text = #shown <= 12 and "one of " .. table.concat(shown, ", ")
        or "a known name; see `moegen list " .. (options and options.what or "keys") .. "`"
    if #shown == 1 then text = shown[1] end
    return { kind = "enum", kinds = SCALAR, check = check_enum, names = names, shown = shown, text = text }
end

local function check_str(self, node, at)
    if node.kind ~= "scalar" or is_null(node) or (self.pattern and not node.value:find(self.pattern))
        or node.value:find "%c" then
        return expected(self, node, at)
    end
    return node.value
end

-- Text that matches a Lua pattern; rule says in words what the pattern wants ("a name of letters and digits").
function types.str(pattern, rule)
    return { kind = "str", kinds = SCALAR, check = check_str, pattern = pattern, text = rule or "text" }
end

local function check_range(self, node, at)
    if node.kind ~= "list" or #node.items ~= 2 then return expected(self, node, at, "null leaves a side open") end
    local side, sound = { types.num(), types.num() }, true
    local value = {}
    for i, name in ipairs { "lo", "hi" } do
        if not is_null(node.items[i]) then
            value[name] = side[i]:check(node.items[i], at)
            sound = sound and value[name] ~= nil
        end
    end
    if not sound then return nil end
    if value.lo and value.hi and value.lo > value.hi then
        at:fail(node, ("the lower end %.17g is above the upper end %.17g"):format(value.lo, value.hi))
        return nil
    end
    return value
end

-- [lo, hi] -> { lo = float or nil, hi = float or nil }; null is an open side.
function types.range()
    return { kind = "range", kinds = LIST, check = check_range, text = "a range [lo, hi]" }
end

local function check_list(self, node, at)
    if node.kind ~= "list" then return expected(self, node, at) end
    local n = #node.items
    if n < (self.lo or 0) or (self.hi and n > self.hi) then
        at:fail(node, ("a list of %d is not %s"):format(n, self.text))
        return nil
    end
    local value, sound = {}, true
    for i, item in ipairs(node.items) do
        value[i] = self.of:check(item, at:enter(i))
        sound = sound and value[i] ~= nil
    end
    return sound and value or nil
end

-- A list of `of`; lo and hi bound its length and may be nil.
function types.list(of, lo, hi)
    local text = ((lo or hi) and "a list (length" .. bounds(lo, hi) .. ") of " or "a list of ") .. of.text
    return { kind = "list", kinds = LIST, check = check_list, of = of, lo = lo, hi = hi, text = text }
end

-- Names of a map's rows, in order.
function types.names(rows)
    local names = {}
    for i, row in ipairs(rows) do names[i] = row[1] end
    return names
end

local function check_map(self, node, at)
    if node.kind ~= "map" then
        return expected(self, node, at, "write {" .. self.rows[1][1] .. ": ...}")
    end
    return at.fill(self.rows, node, at)
end

-- A map with the given rows (see schema.lua). Absent keys get their defaults.
function types.map(rows)
    return { kind = "map", kinds = MAP, check = check_map, rows = rows,
           text = "a map of " .. table.concat(types.names(rows), ", ") }
end

local function check_either(self, node, at)
    local able = {}
    for _, type in ipairs(self.types) do
        if type.kinds[node.kind] then able[#able + 1] = type end
    end
    if #able == 1 and node.kind ~= "scalar" then return able[1]:check(node, at) end
    local near
    for _, type in ipairs(able) do
        local trial = at:trial()
        local value = type:check(node, trial)
        if value ~= nil then return value end
        near = near or trial.errors[#trial.errors].hint
    end
    return expected(self, node, at, near)
end

-- The first of several types that fits. Lists and maps go to the one alternative that reads them.
function types.either(...)
    local self = { types = { ... }, kind = "either", kinds = {}, check = check_either }
    local texts = {}
    for i, type in ipairs(self.types) do
        texts[i] = type.text
        for _, kind in ipairs { "scalar", "list", "map" } do self.kinds[kind] = self.kinds[kind] or type.kinds[kind] end
    end
    self.text = table.concat(texts, ", or ")
    return self
end

return types
