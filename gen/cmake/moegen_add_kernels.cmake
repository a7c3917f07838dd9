# SPDX-License-Identifier: Apache-2.0
#[[
moegen_add_kernels(NAME
  SPECS FILE[:KERNEL]...   specs, relative to the current source directory; a model file needs :KERNEL
  [TARGET T]               instruction set (default: scalar, which runs on every CPU)
  [SPELLING S]             bytes, intrinsics or scalar (default: the generator's choice)
  [SET KEY=VALUE...]       overrides of the specs' keys
  [TYPE STATIC|SHARED|OBJECT])

Adds the library NAME with one kernel per spec. `#include "STEM.h"`, where STEM is FILE's stem, with _KERNEL if one is
named: olmoe-1b-7b.yaml:forward gives olmoe_1b_7b_forward.h. Kernels are generated again when their spec or the
generator changes; a bad spec fails the build with file:line:col.
]]
include_guard(GLOBAL)

function(moegen_add_kernels name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TARGET;SPELLING;TYPE" "SPECS;SET")
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "moegen_add_kernels(${name}): cannot read: "
      "${arg_UNPARSED_ARGUMENTS} ${arg_KEYWORDS_MISSING_VALUES}")
  endif()
  if(NOT arg_SPECS)
    message(FATAL_ERROR "moegen_add_kernels(${name}): SPECS is needed")
  endif()
  if(NOT arg_TARGET)
    set(arg_TARGET scalar)
  endif()
  if(NOT arg_TYPE)
    set(arg_TYPE STATIC)
  endif()
  set(options --quiet --target ${arg_TARGET})
  if(arg_SPELLING)
    list(APPEND options --spelling ${arg_SPELLING})
  endif()
  foreach(set IN LISTS arg_SET)
    list(APPEND options --set ${set})
  endforeach()

  set(dir ${CMAKE_CURRENT_BINARY_DIR}/${name}.kernels)
  file(MAKE_DIRECTORY ${dir})
  set(sources "")
  foreach(spec IN LISTS arg_SPECS)
    string(REGEX MATCH "^(.*\\.ya?ml)(:[A-Za-z0-9_]+)?$" ok "${spec}")
    if(NOT ok)
      message(FATAL_ERROR "moegen_add_kernels(${name}): '${spec}' is not FILE.yaml or FILE.yaml:KERNEL")
    endif()
    set(kernel "${CMAKE_MATCH_2}")
    cmake_path(ABSOLUTE_PATH CMAKE_MATCH_1 BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE OUTPUT_VARIABLE file)
    cmake_path(GET file STEM LAST_ONLY stem)
    string(MAKE_C_IDENTIFIER "${stem}${kernel}" stem)
    set(out ${dir}/${stem})
    add_custom_command(OUTPUT ${out}.c ${out}.h ${out}.flags
      COMMAND moegen::tool gen ${file}${kernel} -o ${dir} --stem ${stem} --depfile ${out}.d --cflags ${out}.flags
        ${options}
      DEPENDS ${file} moegen::tool
      DEPFILE ${out}.d
      COMMENT "Generating ${stem} (${arg_TARGET})"
      VERBATIM)
    set_source_files_properties(${out}.c PROPERTIES COMPILE_OPTIONS @${out}.flags OBJECT_DEPENDS ${out}.flags)
    list(APPEND sources ${out}.c ${out}.h)
  endforeach()

  add_library(${name} ${arg_TYPE} ${sources})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${dir}>)
  target_link_libraries(${name} PUBLIC moegen::rt)
  # Tiles are file-scope asm: link-time optimisation would drop what only they name.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF
    C_STANDARD 11 C_STANDARD_REQUIRED ON)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fno-lto>)
endfunction()
