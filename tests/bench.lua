-- SPDX-License-Identifier: Apache-2.0
-- bench.lua TABLE JSON PLOT EMPTY TILES TILES_JSON - checks what bench.sh made: 4 contenders, of 1 and 3 threads; a plot without bars;
-- a contender on tiles and one without.
package.path = arg[0]:gsub("[^/]*$", "?.lua;") .. package.path
local picture = require("picture")
local failed = false

local function check(holds, ...)
    if not holds then
        print("FAIL " .. string.format(...))
        failed = true
    end
end

local function read(path)
    local file = assert(io.open(path))
    local text = file:read("a")
    file:close()
    return text
end

-- Flat objects of an array, as tables.
local function objects(text, key)
    local list = {}
    for body in text:match('"' .. key .. '": (%b[])'):gmatch("%b{}") do
        local one = {}
        for name, value in body:gmatch('"([%w_]+)": "?([^",}]*)') do
            one[name] = tonumber(value) or value
        end
        list[#list + 1] = one
    end
    return list
end

local function close(a, b)
    return math.abs(a - b) <= 1e-5 * math.abs(b)
end

local table_text, json, plot, empty = read(arg[1]), read(arg[2]), read(arg[3]), read(arg[4])
local limits, results = objects(json, "limits"), objects(json, "results")

-- Limits: of one thread and of three, positive, and shown.
local limit_of = {}
for _, l in ipairs(limits) do
    check(l.op == "fma" and l.peak_gflops > 0 and l.read_gbps > 0, "a limit of %s is not positive", l.target)
    limit_of[l.target .. l.threads] = l
end
check(table_text:find("one core, [%w_]+: peak [%d.]+ GFLOP/s, reads [%d.]+ GB/s"), "one core's limits are not shown")
check(table_text:find("3 threads at once, [%w_]+: peak"), "the limits of all threads are not shown")
check(table_text:find("of roof", 1, true), "no share of the roof in the table")

-- Shares: what the numbers say.
check(#results == 4, "%d results", #results)
for _, r in ipairs(results) do
    local one, all = limit_of[r.target .. 1], limit_of[r.target .. r.threads]
    if not one or not all then
        check(false, "no limits of %s with 1 and %s threads", r.target, r.threads)
    else
        local roof = math.max(r.gflops / all.peak_gflops, r.gbps / all.read_gbps)
        check(close(r.share_of_peak, r.gflops / one.peak_gflops / r.threads), "share of the peak: %s", r.share_of_peak)
        check(close(r.share_of_roof, roof), "share of the roof: %s, not %s", r.share_of_roof, roof)
    end
end

-- Pictures: see picture.lua.
local function count(svg, what)
    return select(2, svg:gsub(what, ""))
end

for name, svg in pairs{plot = plot, ["empty plot"] = empty} do
    for _, complaint in ipairs(picture(svg)) do
        check(false, "%s: %s", name, complaint)
    end
    check(svg:find("<title>moegen bench: ", 1, true), "%s: no title", name)
    check(svg:find("GFLOP/s</text>", 1, true), "%s: no unit", name)
end
check(count(plot, 'class="bar"') == 4 + 1, "not 4 bars and the legend's")
check(count(plot, 'class="roof"') == 4 + 1, "not 4 roofs and the legend's")
check(count(plot, 'class="peak"') == 4 + 1, "not 4 peaks and the legend's")
check(plot:find("threads=3 spelling=scalar", 1, true), "a variant is not named")
check(plot:find(">Roofline", 1, true) and plot:find("flop/B</text>", 1, true), "no roofline")
check(count(plot, 'class="c0 dot"') >= 4 and count(plot, 'class="ceiling"') == 2 * 2, "not 4 points under the ceilings of 1 and 3 threads")
check(plot:find(">Speed over threads<", 1, true) and count(plot, 'class="line c') == 2, "not 2 lines over threads")
check(not plot:find(">Speed over the number of tokens<", 1, true), "lines over T, of which there is one")
check(empty:find("no kernel here has floating-point operations", 1, true), "nothing says why no bar is there")
check(not empty:find("Roofline", 1, true), "a roofline without points")

-- States: of what runs on tiles, and of nothing else. Nobody knows in which state this machine is; emulated tiles are slow.
check(not table_text:find("fast", 1, true) and not json:find("fast", 1, true), "a kernel without tiles has states")
local tiles_text, tiles_json = read(arg[5]), read(arg[6])
local results, emulated = objects(tiles_json, "results"), tiles_json:find('"emulated": true', 1, true)
check(tiles_text:find("%f[%w]fast%s+slow%s+runs fast%s"), "no columns of states")
for threads, who in ipairs{"one core", "2 threads at once"} do
    check(tiles_text:find(who .. ", amx tile_dot[ %a]*: peak [%d.e+]+ GFLOP/s, reads [%d.]+ GB/s; tiles took %d+%.%d%.%.%d+%.%d times"),
        "%d threads: paces are not shown", threads)
end
for _, l in ipairs(objects(tiles_json, "limits")) do
    check((l.op == "tile_dot") == (l.fast_pace ~= nil), "states of %s", l.op)
    check(l.peak_gflops > 0, "%s: no peak", l.op)
    check(not l.fast_pace or l.least_pace > 0 and l.least_pace <= l.most_pace, "paces %s to %s", l.least_pace, l.most_pace)
    check(not l.fast_pace or not emulated or l.least_pace > l.fast_pace, "emulated tiles are fast: %s", l.least_pace)
end
for _, r in ipairs(results) do
    if r.variant:find("plan.product=tiles", 1, true) then
        local share, fast, slow = r.fast_share, r.fast_median_s, r.slow_median_s
        check(share >= 0 and share <= 1 and (share == 0 or not emulated), "%s of the runs are fast", share)
        check((share > 0) == (type(fast) == "number") and (share < 1) == (type(slow) == "number"), "a median of no run, or none of some")
        check(share < 1 or fast == r.median_s, "all runs are fast, and their medians differ")
        check(share > 0 or slow == r.median_s, "all runs are slow, and their medians differ")
        check(r.share_of_peak > 0, "no share of the peak of tiles")
    else
        check(not r.fast_share and not r.fast_median_s and not r.slow_median_s, "a kernel without tiles has states")
    end
end
check(#results == 4, "%d results on tiles and without", #results)
os.exit(not failed)
