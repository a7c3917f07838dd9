-- SPDX-License-Identifier: Apache-2.0
-- fragments.lua ROOT - every complaint of gen/lua/render/fragments.lua: a small tree that is right, and the same with one thing wrong.
local root = ...
dofile(root .. "/tests/generator.lua")(root)
local check = require "render.fragments"

-- What is right: a family, its own fragment, one that it shares, and one that continues a function.
local right = {
    ["templates/fam.c.in"] = {
        '@ return {family = "fam"}', "@ ----", '$(include "base")', "struct work {", "    int64_t n;", "};", '$(include "top")',
        '$(include "top_more")', "static void on_rank(void)", "{", "    run(0);", "    aim(twice(N), OTHER);", "}"},
    ["templates/shared/base.c.in"] = {
        '@ return {gives = {"N", "OTHER", "twice"}}', "@ ----", 'enum { N = 2$(more and ", OTHER" or "") };   // not NOTE',
        "static int64_t own(int64_t n)", "{", "    return n;", "}", "static $(io) *twice(int64_t n)", "{", "    return own(n);", "}"},
    ["templates/fam/top.c.in"] = {
        "@ return {", '@     gives = {"run"},', '@     needs = {"base", "work"},', '@     later = {"aim"},', "@ }", "@ ----",
        "static void aim(struct work *w);", "@ if x then", "static void run(struct work *w)", "{", "    aim(w, twice(N));",
        '$(include "middle")', "}", "@ end"},
    ["templates/fam/middle.c.in"] = {'@ return {gives = {"m"}, needs = {"base"}}', "@ ----", "    int64_t m = own;"},
    ["templates/fam/top_more.c.in"] = {'@ return {gives = {"aim"}, may = {"top"}}', "@ ----", "static void aim(void)", "{", "    run(0);", "}"},
}

local fam, base, top = "templates/fam.c.in", "templates/shared/base.c.in", "templates/fam/top.c.in"
local middle, more = "templates/fam/middle.c.in", "templates/fam/top_more.c.in"

-- file, line, what becomes of it, and the complaints
local wrong = {
    {base, 2, "", base .. ":1: error: no table of what the fragment gives and needs above `@ ----`"},
    {base, 1, "@ return 7", base .. ":1: error: no table of what the fragment gives and needs above `@ ----`"},
    {base, 1, '@ return {gives = {"N", "OTHER", "twice", "thrice"}}', base .. ":1: error: gives 'thrice', but does not define it"},
    {middle, 1, '@ return {gives = {"k"}, needs = {"base"}}', middle .. ":1: error: gives 'k', but does not define it"},
    {base, 1, '@ return {gives = {"N", "OTHER", "twice", "own"}}', base .. ":1: error: gives 'own', which nobody uses"},
    {base, 1, '@ return {gives = {"N", "twice"}}', fam .. ":12: error: uses 'OTHER', which templates/shared/base.c.in does not give"},
    {fam, 11, "    run(own(0));", fam .. ":11: error: uses 'own', which templates/shared/base.c.in does not give"},
    {top, 11, "    aim(own(N));", top .. ":11: error: uses 'own', which templates/shared/base.c.in does not give"},
    {top, 3, '@     needs = {"work", "N"},', top .. ":11: error: uses 'twice' of templates/shared/base.c.in, which its head does not say it needs"},
    {top, 3, '@     needs = {"base"},', top .. ":7: error: uses 'work' of templates/fam.c.in, which its head does not say it needs"},
    {more, 1, '@ return {gives = {"aim"}}', more .. ":5: error: uses 'run' of templates/fam/top.c.in, which its head does not say it needs"},
    {top, 3, '@     needs = {"base", "work", "none"},',
        top .. ":3: error: needs 'none', which templates/fam.c.in neither includes nor defines before it"},
    {top, 3, '@     needs = {"base", "work", "top_more"},',
        top .. ":3: error: needs 'top_more', which templates/fam.c.in neither includes nor defines before it"},
    {top, 3, '@     needs = {"base", "work"}, may = {"on_rank"},', top .. ":3: error: may names 'on_rank', but nothing of it is used"},
    {more, 1, '@ return {gives = {"aim"}, needs = {"top", "base"}}', more .. ":1: error: needs names 'base', but nothing of it is used"},
    {top, 4, '@     later = {"aim", "fire"},', top .. ":4: error: says 'fire' comes later, but does not declare it"},
    {top, 4, '@     later = {"aim"}, called = {"jump"},', top .. ":4: error: says 'jump' is called, but does not define it"},
    {top, 4, "@", top .. ":7: error: declares 'aim', which `later` does not name"},
    {more, 3, "static void fire(void)", top .. ":4: error: says 'aim' comes later, but templates/fam.c.in neither includes nor defines it"},
    {fam, 7, '$(include "tip")', fam .. ":7: error: no fragment 'tip'"},
    {middle, 3, '$(include "top")', middle .. ":3: error: includes itself"},
    {fam, 1, "return {}", fam .. ":1: error: a line above `@ ----` that does not start with @"},
    {top, 3, "     needs = {},", top .. ":3: error: a line above `@ ----` that does not start with @"},
    {fam, 8, "", more .. ":1: error: no family includes it"},
}

local function complaints(tree)
    local paths = {}
    for path in pairs(tree) do
        paths[#paths + 1] = path
    end
    local function read(path) return table.concat(tree[path], "\n") .. "\n" end
    return table.concat(check(paths, read, function(_, name)
        for _, room in ipairs{"fam", "shared"} do
            if tree[("templates/%s/%s.c.in"):format(room, name)] then
                return room .. "." .. name
            end
        end
        return nil, ("no fragment '%s'"):format(name)
    end), "\n")
end

local failed = 0
local function expect(holds, ...)
    if not holds then
        failed = failed + 1
        print(...)
    end
end
expect(complaints(right) == "", "where nothing is wrong:\n" .. complaints(right))
for _, case in ipairs(wrong) do
    local path, line, text, sentence = table.unpack(case)
    local lines = table.move(right[path], 1, #right[path], 1, {})
    lines[line] = text
    local tree = {}
    for name, same in pairs(right) do
        tree[name] = name == path and lines or same
    end
    local said = complaints(tree)
    expect(("\n" .. said .. "\n"):find("\n" .. sentence .. "\n", 1, true), ("not said: %s\nbut: %s"):format(sentence, said))
end
os.exit(failed == 0 and #wrong > 0)
