# SPDX-License-Identifier: Apache-2.0
# embed.cmake - moegen_embed(TARGET): builds the Lua modules, templates and fragments of templates into TARGET.
#
# Every file of the places below is found by its suffix; adding, changing or removing one is all it takes.

set(MOEGEN_EMBED_ROOT ${CMAKE_CURRENT_LIST_DIR}/../..)
get_filename_component(MOEGEN_EMBED_ROOT ${MOEGEN_EMBED_ROOT} ABSOLUTE)

# Lua as target moegen_lua, unless the project has made one already.
if(NOT TARGET moegen_lua)
  add_library(moegen_lua INTERFACE IMPORTED GLOBAL)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_search_module(MOEGEN_LUA QUIET lua5.4 lua-5.4 lua54)
  endif()
  if(MOEGEN_LUA_FOUND)
    target_include_directories(moegen_lua INTERFACE ${MOEGEN_LUA_INCLUDE_DIRS})
    target_link_libraries(moegen_lua INTERFACE ${MOEGEN_LUA_LINK_LIBRARIES})
  else()
    find_package(Lua 5.4 EXACT REQUIRED)
    target_include_directories(moegen_lua INTERFACE ${LUA_INCLUDE_DIR})
    target_link_libraries(moegen_lua INTERFACE ${LUA_LIBRARIES})
  endif()
endif()

function(moegen_embed target)
  set(out ${CMAKE_BINARY_DIR}/moegen_embedded.c)
  if(NOT TARGET moegen_embed_tool)
    add_executable(moegen_embed_tool
      ${MOEGEN_EMBED_ROOT}/gen/host/embed.c ${MOEGEN_EMBED_ROOT}/gen/base/error.c ${MOEGEN_EMBED_ROOT}/gen/base/digest.c)
    set_target_properties(moegen_embed_tool PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF)
    target_compile_definitions(moegen_embed_tool PRIVATE _GNU_SOURCE)
    target_include_directories(moegen_embed_tool PRIVATE
      ${MOEGEN_EMBED_ROOT}/gen ${MOEGEN_EMBED_ROOT}/gen/api ${MOEGEN_EMBED_ROOT}/runtime)
    target_link_libraries(moegen_embed_tool PRIVATE moegen_lua)

    file(GLOB sources RELATIVE ${MOEGEN_EMBED_ROOT} CONFIGURE_DEPENDS
      ${MOEGEN_EMBED_ROOT}/gen/lua/*.lua ${MOEGEN_EMBED_ROOT}/gen/lua/*/*.lua ${MOEGEN_EMBED_ROOT}/gen/lua/*/*/*.lua
      ${MOEGEN_EMBED_ROOT}/templates/*.c.in
      ${MOEGEN_EMBED_ROOT}/templates/*/*.lua ${MOEGEN_EMBED_ROOT}/templates/*/*.c.in)
    list(TRANSFORM sources PREPEND ${MOEGEN_EMBED_ROOT}/ OUTPUT_VARIABLE paths)
    # The list of files is an input too: a removed file changes nothing else. Rewritten only when it differs.
    string(REPLACE ";" "\n" listed "${sources}")
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/moegen_embedded.txt CONTENT "${listed}\n")
    add_custom_command(OUTPUT ${out}
      COMMAND moegen_embed_tool ${out} ${MOEGEN_EMBED_ROOT} ${sources}
      DEPENDS moegen_embed_tool ${paths} ${CMAKE_BINARY_DIR}/moegen_embedded.txt
      COMMENT "Embedding Lua modules and templates" VERBATIM)
    add_custom_target(moegen_embedded DEPENDS ${out})
  endif()
  # One custom command, many targets: the extra target keeps parallel makes from running it twice.
  set_source_files_properties(${out} PROPERTIES GENERATED TRUE)
  target_sources(${target} PRIVATE ${out})
  add_dependencies(${target} moegen_embedded)
endfunction()
