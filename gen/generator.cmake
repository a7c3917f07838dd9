# SPDX-License-Identifier: Apache-2.0
# generator.cmake - libmoegen, static and shared, and the program; included by the project's CMakeLists.txt.

include(gen/host/embed.cmake)  # moegen_embed(): gen/lua and templates as C arrays
include(gen/jit/libtcc.cmake) # object library moegen_tcc
# A room each: see tests/rooms.sh.
file(GLOB gen_sources CONFIGURE_DEPENDS
  gen/base/*.c gen/spec/*.c gen/arch/x86/*.c gen/host/*.c gen/jit/*.c gen/cache/*.c gen/api/*.c gen/trial/*.c gen/tune/*.c)
list(REMOVE_ITEM gen_sources ${CMAKE_CURRENT_SOURCE_DIR}/gen/host/embed.c) # a program of the build
file(GLOB program_sources CONFIGURE_DEPENDS gen/cli/*.c gen/cli/bench/*.c gen/cli/compare/*.c gen/cli/draw/*.c gen/cli/report/*.c gen/cli/tune/*.c
  gen/cli/quantize/*.c)

# runtime/moegen_rt.h as a C string, for compilers that run in a temporary directory.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS runtime/moegen_rt.h)
file(READ runtime/moegen_rt.h header)
string(REGEX REPLACE "([\\\"])" "\\\\\\1" header "${header}")
string(REPLACE "\n" "\\n\"\n    \"" header "${header}")
file(CONFIGURE OUTPUT moegen_rt_header.c @ONLY CONTENT
  "extern const char moegen_rt_header_text[];\nconst char moegen_rt_header_text[] =\n    \"@header@\";\n")

# specs/tuned/KIND.yaml as bytes: a string may be longer than C promises to take.
file(GLOB plans CONFIGURE_DEPENDS specs/tuned/*.yaml)
set(plan_bytes "")
set(plan_rows "")
foreach(plan IN LISTS plans)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${plan})
  cmake_path(GET plan STEM LAST_ONLY name)
  string(MAKE_C_IDENTIFIER "plan_${name}" id)
  file(READ ${plan} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND plan_bytes "static const unsigned char ${id}[] = {${bytes}0};\n")
  string(APPEND plan_rows "    {\"${name}\", (const char *)${id}},\n")
endforeach()
file(CONFIGURE OUTPUT moegen_shipped_plans.c @ONLY CONTENT
  "struct moegen_shipped {\n    const char *name, *text;\n};\nextern const struct moegen_shipped moegen_shipped_plans[];\n@plan_bytes@
const struct moegen_shipped moegen_shipped_plans[] = {\n@plan_rows@    {0, 0},\n};\n")

add_library(moegen_objects OBJECT ${gen_sources} ${CMAKE_CURRENT_BINARY_DIR}/moegen_rt_header.c
  ${CMAKE_CURRENT_BINARY_DIR}/moegen_shipped_plans.c)
moegen_embed(moegen_objects)
set_target_properties(moegen_objects PROPERTIES C_VISIBILITY_PRESET hidden)
target_include_directories(moegen_objects PRIVATE gen gen/api runtime)
target_link_libraries(moegen_objects PRIVATE $<BUILD_INTERFACE:moegen_flags> PkgConfig::LUA PkgConfig::YAML)

# ---- libraries -----------------------------------------------------------------------------------

set(parts $<TARGET_OBJECTS:moegen_objects> $<TARGET_OBJECTS:moegen_tcc>)
moegen_library(moegen_static STATIC static moegen ${parts})
target_link_libraries(moegen_static PUBLIC moegen_rt PRIVATE PkgConfig::LUA PkgConfig::YAML ${CMAKE_DL_LIBS})
if(MOEGEN_SHARED)
  moegen_library(moegen_shared SHARED moegen moegen ${parts})
  target_link_libraries(moegen_shared PRIVATE $<BUILD_INTERFACE:moegen_rt> PkgConfig::LUA PkgConfig::YAML
    ${CMAKE_DL_LIBS})
  target_link_options(moegen_shared PRIVATE LINKER:--exclude-libs,ALL LINKER:--no-undefined
    LINKER:--version-script=${PROJECT_SOURCE_DIR}/gen/api/moegen.map)
  set_target_properties(moegen_shared PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/gen/api/moegen.map)
  if(MOEGEN_SANITIZE)
    set_target_properties(moegen_shared PROPERTIES LINK_OPTIONS "${sanitizers}")
  endif()
endif()

# What the Python package needs beside: kernels on PyTorch's threads.
if(MOEGEN_SHARED)
  add_library(moegen_team MODULE gen/python/team.c)
  set_target_properties(moegen_team PROPERTIES C_VISIBILITY_PRESET hidden)
  target_include_directories(moegen_team PRIVATE runtime)
  target_link_libraries(moegen_team PRIVATE $<BUILD_INTERFACE:moegen_flags> Threads::Threads)
endif()

# ---- the program ----------------------------------------------------------------------------------

add_executable(moegen ${program_sources})
add_executable(moegen::tool ALIAS moegen)
set_target_properties(moegen PROPERTIES EXPORT_NAME tool)
target_include_directories(moegen PRIVATE gen gen/api runtime)
target_link_libraries(moegen PRIVATE moegen_flags moegen_static PkgConfig::YAML)

# ---- installing ----------------------------------------------------------------------------------

include(gen/cmake/moegen_add_kernels.cmake)
configure_file(gen/cmake/moegen.pc.in moegen.pc @ONLY)
install(TARGETS moegen EXPORT moegen COMPONENT moegen)
install(FILES gen/cmake/moegen_add_kernels.cmake DESTINATION ${package_dir} COMPONENT moegen)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/moegen.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT moegen)
install(FILES gen/api/moegen.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT moegen)

# In a wheel: what gen/python loads and runs, see pyproject.toml. No links: a wheel has none.
if(SKBUILD)
  install(FILES $<TARGET_FILE:moegen_shared> DESTINATION . RENAME libmoegen.so COMPONENT python)
  install(FILES $<TARGET_FILE:moegen_team> DESTINATION . COMPONENT python)
  install(PROGRAMS $<TARGET_FILE:moegen> DESTINATION bin COMPONENT python)
endif()
