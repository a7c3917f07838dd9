# SPDX-License-Identifier: Apache-2.0
# libtcc.cmake - makes libtcc fit to live inside a library.
#
# Distributions ship libtcc.a only: code for executables (PIE), with some 900 global names, that opens
# files, prints, maps writable code and calls exit(). One partial link turns it into one object,
# moegen_tcc.o, in which
#   - all names are local but the API below, which is hidden and called moegen_tcc_*: it links into
#     shared libraries, and beside a host's own libtcc;
#   - everything it wants from libc that is not a pure function is called moegen_tcc_* too, and
#     gen/jit/tcc_shim.c decides what that is;
#   - labels enclose its variables, so that the shim can put back the state of program start.
#
# Gives the imported object library moegen_tcc. Put $<TARGET_OBJECTS:moegen_tcc> among the sources of
# each library that contains gen/jit/jit.c. Runs at configure time, and again when the archive changes.

set(tcc_api tcc_new tcc_set_error_func tcc_set_options tcc_set_output_type tcc_compile_string
  tcc_relocate tcc_get_symbol)
set(tcc_labels tcc_data_start tcc_data_stop tcc_bss_start tcc_bss_stop)

# What libtcc may have from libc as it is: functions of their arguments alone.
set(tcc_pure memcmp memcpy memmove memset strchr strcmp strcpy strlen strncmp strrchr strstr strtol
  strtoul strtoull sprintf snprintf vsnprintf sscanf qsort ldexp setjmp _setjmp __sigsetjmp longjmp
  _longjmp __longjmp_chk __errno_location __stack_chk_fail __memcpy_chk __memmove_chk __memset_chk
  __strcpy_chk __sprintf_chk __snprintf_chk __vsnprintf_chk __isoc99_sscanf __isoc23_sscanf
  __isoc23_strtol __isoc23_strtoul __isoc23_strtoull _GLOBAL_OFFSET_TABLE_)

# What gen/jit/tcc_shim.c defines instead.
set(tcc_hooked stdout stderr environ exit abort __assert_fail malloc calloc realloc free mprotect
  open close read lseek unlink getcwd getenv dlopen dlsym dlclose sem_init sem_wait sem_post
  sigaction sigemptyset time localtime strtod strtof strtold fclose fdopen fflush fputc fputs fwrite
  putchar puts fprintf printf vfprintf __fprintf_chk __printf_chk __vfprintf_chk)

function(moegen_tcc_run what)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work} RESULT_VARIABLE code
    OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "libtcc: ${what} failed:\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

function(moegen_tcc_prepare)
  find_library(MOEGEN_LIBTCC NAMES libtcc.a DOC "Static libtcc (Debian: package libtcc-dev)")
  find_path(MOEGEN_LIBTCC_INCLUDE libtcc.h DOC "Directory of libtcc.h")
  if(NOT MOEGEN_LIBTCC OR NOT MOEGEN_LIBTCC_INCLUDE)
    message(FATAL_ERROR
      "libtcc.a and libtcc.h are needed (Debian, Ubuntu: apt-get install libtcc-dev)")
  endif()
  file(READ ${MOEGEN_LIBTCC_INCLUDE}/libtcc.h header)
  if(NOT header MATCHES "tcc_relocate\\(TCCState \\*[a-z0-9]+, void \\*[a-z]+\\)")
    message(FATAL_ERROR "${MOEGEN_LIBTCC_INCLUDE}/libtcc.h: tcc_relocate() has no second argument; "
      "gen/jit/jit.c needs libtcc 0.9.27")
  endif()
  set(work ${CMAKE_CURRENT_BINARY_DIR}/libtcc)
  file(REMOVE_RECURSE ${work})
  file(MAKE_DIRECTORY ${work}/objects)

  moegen_tcc_run("ar" ${CMAKE_COMMAND} -E chdir objects ${CMAKE_AR} x ${MOEGEN_LIBTCC})
  file(GLOB objects ${work}/objects/*.o)
  moegen_tcc_run("nm" ${CMAKE_NM} -A ${objects})
  string(REGEX MATCHALL " [TDBRVWC] [A-Za-z0-9_.]+" defined "${out}")
  list(TRANSFORM defined REPLACE " . " "")
  string(REGEX MATCHALL " [Uw] [A-Za-z0-9_.]+" wanted "${out}")
  list(TRANSFORM wanted REPLACE " . " "")
  list(REMOVE_DUPLICATES wanted)
  list(SORT wanted)
  list(REMOVE_ITEM wanted ${defined} ${tcc_pure})

  set(unknown ${wanted})
  list(REMOVE_ITEM unknown ${tcc_hooked})
  if(unknown)
    message(FATAL_ERROR
      "${MOEGEN_LIBTCC} wants names from libc that nobody has looked at: ${unknown}. "
      "Add each to tcc_pure, or to tcc_hooked and gen/jit/tcc_shim.c, in gen/jit/libtcc.cmake.")
  endif()

  # Hidden references make the linker hide what they name, here and in the final link.
  set(hide ".section .note.GNU-stack,\"\",@progbits\n.section .drop,\"\",@progbits\n")
  set(rename "")
  foreach(name IN LISTS tcc_api tcc_labels wanted)
    string(APPEND hide ".hidden ${name}\n.reloc ., R_X86_64_NONE, ${name}\n")
  endforeach()
  foreach(name IN LISTS tcc_api tcc_labels)
    string(APPEND rename "${name} moegen_${name}\n")
  endforeach()
  foreach(name IN LISTS wanted)
    string(APPEND rename "${name} moegen_tcc_${name}\n")
  endforeach()
  set(keep ${tcc_api} ${tcc_labels})
  list(TRANSFORM keep PREPEND "moegen_")
  list(JOIN keep "\n" keep_lines)
  file(WRITE ${work}/hide.s "${hide}")
  file(WRITE ${work}/rename.txt "${rename}")
  file(WRITE ${work}/keep.txt "${keep_lines}\n")
  file(WRITE ${work}/link.ld "SECTIONS {
  .data : { tcc_data_start = .; *(.data .data.rel .data.rel.local) tcc_data_stop = .; }
  .bss : { tcc_bss_start = .; *(.bss .bss.* COMMON) tcc_bss_stop = .; }
  /DISCARD/ : { *(.drop) *(.comment) }
}\n")
  moegen_tcc_run("the assembler" ${CMAKE_C_COMPILER} -c hide.s -o hide.o)
  moegen_tcc_run("the partial link" ${CMAKE_LINKER} -r -T link.ld -o linked.o ${objects} hide.o)
  # Two steps: GNU's objcopy keeps by the new name, LLVM's by the old.
  moegen_tcc_run("objcopy" ${CMAKE_OBJCOPY} --strip-debug
    --redefine-syms=rename.txt linked.o renamed.o)
  moegen_tcc_run("objcopy" ${CMAKE_OBJCOPY} --keep-global-symbols=keep.txt
    renamed.o moegen_tcc.o)

  # Witness: what the object asks of the world now, and what it shows.
  moegen_tcc_run("nm" ${CMAKE_NM} moegen_tcc.o)
  string(REGEX MATCHALL " [A-TV-Z] [A-Za-z0-9_.]+" shown "${out}")
  string(REGEX MATCHALL " [Uw] [A-Za-z0-9_.]+" asked "${out}")
  list(TRANSFORM shown REPLACE " . " "")
  list(TRANSFORM asked REPLACE " . " "")
  list(FILTER asked EXCLUDE REGEX "^moegen_tcc_")
  list(REMOVE_ITEM asked ${tcc_pure})
  list(SORT shown)
  list(SORT keep)
  if(asked OR NOT shown STREQUAL keep)
    message(FATAL_ERROR
      "libtcc: moegen_tcc.o is not as it must be (it shows: ${shown}; it wants: ${asked})")
  endif()

  file(SHA256 ${MOEGEN_LIBTCC} identity)
  message(STATUS "libtcc: ${MOEGEN_LIBTCC} -> moegen_tcc.o")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MOEGEN_LIBTCC})
  set_property(SOURCE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/jit.c APPEND PROPERTY
    COMPILE_DEFINITIONS MOEGEN_TCC_ID="${identity}")
  set_property(SOURCE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/jit.c APPEND PROPERTY
    INCLUDE_DIRECTORIES ${MOEGEN_LIBTCC_INCLUDE})
  add_library(moegen_tcc OBJECT IMPORTED GLOBAL)
  set_target_properties(moegen_tcc PROPERTIES IMPORTED_OBJECTS ${work}/moegen_tcc.o)
endfunction()

moegen_tcc_prepare()
