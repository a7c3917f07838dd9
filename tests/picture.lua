-- SPDX-License-Identifier: Apache-2.0
-- picture.lua FILE... - what is wrong with an SVG that `moegen` drew; require("picture")(text) gives a list of complaints.
-- It must be well-formed, and every text, line, rectangle and dot of it inside of the view box; letters are counted as 0.6 of
-- their size.

-- Elements that are not closed, or by another name; attributes without quotes; a bare & or <.
local function form(svg, complain)
    local open, at = {}, 1
    while true do
        local from, to, close, name, rest, empty = svg:find("<(/?)([%a]+)([^<>]-)(/?)>", at)
        local text = svg:sub(at, (from or #svg + 1) - 1)
        if text:find("[<>]") or text:gsub("&#?%w+;", ""):find("&", 1, true) then complain("a bare < or & in '%s'", text) end
        if not from then break end
        if close == "/" then
            if table.remove(open) ~= name then complain("</%s> closes another element", name) end
        else
            if rest:gsub('%s[%w:-]+="[^"&]*"', ""):find("%S") then complain("bad attributes: <%s%s>", name, rest) end
            if empty == "" then open[#open + 1] = name end
        end
        at = to + 1
    end
    if #open > 0 then complain("<%s> is not closed", open[#open]) end
end

local function picture(svg)
    local complaints = {}
    local function complain(...)
        complaints[#complaints + 1] = string.format(...)
    end
    form(svg, complain)
    local width, height = svg:match('<svg[^>]* viewBox="0 0 (%d+) (%d+)"')
    width, height = tonumber(width) or 0, tonumber(height) or 0
    local function inside(what, x1, y1, x2, y2)
        for _, v in ipairs{x1, x2} do
            if not (v >= -0.05 and v <= width + 0.05) then complain("%s is cut off: x %g of %d", what, v, width) end
        end
        for _, v in ipairs{y1, y2} do
            if not (v >= -0.05 and v <= height + 0.05) then complain("%s is cut off: y %g of %d", what, v, height) end
        end
    end
    local texts = 0
    local label = '<text x="([^"]+)" y="([^"]+)" text%-anchor="(%a+)" font%-size="(%d+)"[^>]*>(.-)</text>'
    for x, y, anchor, size, text in svg:gmatch(label) do
        local long = utf8.len((text:gsub("&#%d+;", "x"))) * size * 0.6
        local from = tonumber(x) and x - (anchor == "end" and long or anchor == "middle" and long / 2 or 0)
        if from and tonumber(y) then
            inside("'" .. text .. "'", from, y - size, from + long, y + 3)
        else
            complain("no place for '%s'", text)
        end
        texts = texts + 1
    end
    for x1, y1, x2, y2 in svg:gmatch('<line x1="([^"]+)" y1="([^"]+)" x2="([^"]+)" y2="([^"]+)"') do
        inside("a line", tonumber(x1) or -1, tonumber(y1) or -1, tonumber(x2) or -1, tonumber(y2) or -1)
    end
    for x, y, w, h in svg:gmatch('<rect x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)"') do
        x, y, w, h = tonumber(x) or -1, tonumber(y) or -1, tonumber(w) or -1e9, tonumber(h) or -1e9
        inside("a rectangle", x, y, x + w, y + h)
    end
    for x, y in svg:gmatch('<circle cx="([^"]+)" cy="([^"]+)"') do
        inside("a dot", tonumber(x) or -1, tonumber(y) or -1, tonumber(x) or -1, tonumber(y) or -1)
    end
    local _, ticks = svg:gsub('text%-anchor="middle"[^>]*>[%d.e+-]+</text>', "")
    if ticks < 2 then complain("%d ticks", ticks) end
    if texts < 5 then complain("%d texts", texts) end
    if not svg:find("@media(prefers-color-scheme:dark)", 1, true) then complain("no colours for dark pages") end
    return complaints
end

if ... == "picture" then return picture end
local failed = false
for _, name in ipairs(arg) do
    for _, complaint in ipairs(picture(assert(io.open(name)):read("a"))) do
        print("FAIL " .. name .. ": " .. complaint)
        failed = true
    end
end
os.exit(not failed)
