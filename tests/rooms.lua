-- SPDX-License-Identifier: Apache-2.0
-- rooms.lua ROOT - the Lua of gen/lua and templates lies in rooms: a room requires those above it in this table only. A module of
-- gen/lua itself is a room of its own; all of templates is one. Also: every module that is required is there, has one file, and
-- is not of a room without a row; no room has more than 24 files. Run by rooms.sh.
local root = arg[1]
local most <const> = 24

-- Room, and what it requires of other rooms and of the modules in C that sandbox.c gives.
local rows = {
    {"prelude"},
    {"dtype"},
    {"diag"},
    {"isa"},                                                            -- data
    {"arch.x86",  "encode"},
    {"target",    "isa", "arch.x86", "source"},
    {"ir",        "isa"},
    {"c",         "words"},
    {"vector",    "dtype", "isa", "ir", "native", "tape"},
    {"spec",      "diag", "c"},
    {"schema",    "diag", "spec"},
    {"planner",   "dtype", "schema", "target"},
    {"templates", "dtype", "isa", "target", "ir", "schema", "planner"}, -- these names are what templates are written in
    {"render",    "source"},
    {"kernel",    "dtype", "diag", "c", "vector", "schema", "planner", "render", "words"},
    {"tuned",     "diag", "schema"},
    {"space",     "schema", "tuned"},
    {"moegen",    "dtype", "diag", "c", "vector", "schema", "planner", "templates", "render", "kernel", "tuned", "space", "source"},
    {"index",     "prelude", "render", "moegen"},                       -- of the build
}

local failed, arrows = false, 0
local function bad(...)
    print((...):format(select(2, ...)))
    failed = true
end

local function read(path)
    local file <close> = assert(io.open(root .. "/" .. path))
    return file:read("a")
end

-- Files: their rooms, by module; how many each folder has.
local rank, room_of, files, count = {}, {}, {}, {}
for i, row in ipairs(rows) do
    rank[row[1]] = i
end
local list = io.popen(("cd '%s' && find gen/lua templates -name '*.lua' -o -name '*.c.in' | sort"):format(root))
for path in list:lines() do
    local folder, stem = path:match("^(.*)/([%w_]+)%.[%w.]+$")
    local inside = folder:match("^gen/lua/?(.*)$")
    local room = inside == nil and "templates" or inside == "" and stem or inside:gsub("/", ".")
    local module = path:match("%.lua$") and path:gsub("^gen/lua/", ""):gsub("^templates/", ""):gsub("%.lua$", ""):gsub("/", ".")
    files[#files + 1] = {path = path, room = room}
    count[folder] = (count[folder] or 0) + 1
    if count[folder] == most + 1 then
        bad("%s: more than %d files: split it where it has two subjects", folder, most)
    end
    if not rank[room] then
        bad("%s: tests/rooms.lua has no row for room %s", path, room)
    end
    if module and room_of[module] then
        bad("%s: another file is module %s too", path, module)
    elseif module then
        room_of[module] = room
    end
end
list:close()

-- Modules in C.
for name in read("gen/host/sandbox.c"):gmatch('_open%(L%);\n%s*lua_setfield%(L, %-2, "(%w+)"%)') do
    assert(not room_of[name], name)
    room_of[name], rank[name] = name, 0
end

local may, held = {}, {}
for _, file in ipairs(files) do
    held[file.room] = true
end
for i, row in ipairs(rows) do
    if not held[row[1]] then
        bad("tests/rooms.lua: there is nothing in %s", row[1])
    end
    may[row[1]] = {[row[1]] = true}
    for k = 2, #row do
        may[row[1]][row[k]] = true
        if not rank[row[k]] then
            bad("tests/rooms.lua: %s: there is no %s", row[1], row[k])
        elseif rank[row[k]] >= i then
            bad("tests/rooms.lua: %s: %s does not stand above it", row[1], row[k])
        end
    end
end

-- Rooms of what is required: of a module one; of "isa." .. name, or "arch." .. name, all that it may lie in.
local function rooms_of(name)
    local list, prefix = {room_of[name]}, name:match("^(.*)%.$")
    for _, row in ipairs(prefix and rows or {}) do
        list[#list + 1] = (row[1] == prefix or row[1]:sub(1, #name) == name) and row[1] or nil
    end
    return list
end

for _, file in ipairs(files) do
    for line in read(file.path):gsub("%-%-[^\n]*", ""):gmatch("%f[%w_]require%f[^%w_][^\n]*") do
        local name = line:match("^require%s*%(?%s*[\"']([%w_.]+)[\"']")
        local list = name and rooms_of(name) or {}
        if not list[1] then
            bad("%s: %s: no module that there is", file.path, line)
        end
        for _, room in ipairs(list) do
            arrows = arrows + (room ~= file.room and 1 or 0)
            if not may[file.room] or not may[file.room][room] then
                bad("%s: %s is not for room %s: see the table in tests/rooms.lua", file.path, name, file.room)
            end
        end
    end
end
print(("%d rooms of Lua, %d arrows between them"):format(#rows, arrows))
os.exit(not failed and arrows >= 40)
