-- SPDX-License-Identifier: Apache-2.0
-- coordinate.lua - offsets as a reader thinks of them: A[12 * STRIDE + 2], in constants that the file defines.
--
-- A pointer may say of what lengths its offsets are made (see ir.lua): names of constants, the longest first, as in
-- "STRIDE LANES"; "MC*WIDTH" is a product. One that says nothing points to vectors. Names that a file lacks are passed over, so
-- the text is true whatever they are.
local coordinate = {}

local MOST <const> = 0x7fffffff   -- constants are ints, and so is what they add up to

-- The lengths that the constants {name, value} of a file name, for text(); prefix: of the names in C.
function coordinate.lengths(constants, prefix)
    local lengths = {}
    for _, row in ipairs(constants) do
        lengths[row[1]] = {value = row[2], text = prefix .. row[1]}
    end
    return lengths
end

-- Value and C text of a unit; nil if a name is unknown.
local function length(unit, lengths)
    local value, list = 1, {}
    for name in unit:gmatch("[^*]+") do
        local known = lengths[name]
        if not known then
            return nil
        end
        value, list[#list + 1] = value * known.value, known.text
    end
    return value, table.concat(list, " * ")
end

-- n elements from where `pointer` points, n >= 0, as C. lengths: nil: a number
function coordinate.text(pointer, n, lengths)
    local vectors = lengths and not pointer.units and lengths.LANES and n % lengths.LANES.value == 0 and (pointer.size or 8) < 8
    local out = {}
    for unit in (lengths and n <= MOST and pointer.units or vectors and "LANES" or ""):gmatch("%S+") do
        local value, text = length(unit, lengths)
        if value and n >= value and value > 1 then
            out[#out + 1] = n < 2 * value and text or ("%d * %s"):format(n // value, text)
            n = n % value
        end
    end
    if n ~= 0 or not out[1] then
        out[#out + 1] = ("%d"):format(n)
    end
    return table.concat(out, " + ")
end

-- What is between the brackets of an element.
function coordinate.index(mem, lengths)
    local n, index = mem.offset, mem.index and mem.index.name
    if n == 0 then
        return index or "0"
    end
    local text = coordinate.text(mem.base, math.abs(n), lengths)
    if n < 0 then
        return (index and index .. " - " or "-") .. (text:find(" ", 1, true) and "(" .. text .. ")" or text)
    end
    return index and index .. " + " .. text or text
end

-- The address of an element, as a sum without parentheses.
function coordinate.address(mem, lengths)
    local index = coordinate.index(mem, lengths)
    if index == "0" then
        return mem.base.name
    end
    return mem.base.name .. (mem.offset < 0 and not mem.index and " - " .. index:sub(2) or " + " .. index)
end

-- A pointer's move by n elements: "A += 4 * WIDTH".
function coordinate.move(pointer, n, lengths)
    return ("%s %s %s"):format(pointer.name, n < 0 and "-=" or "+=", coordinate.text(pointer, math.abs(n), lengths))
end

return coordinate
