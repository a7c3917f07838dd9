std = "lua54"
max_line_length = 140
files["gen/lua/isa"] = { max_line_length = false }
