# An installed libheed, and an unpacked Debian package of it: the examples are built against each and run on the CPU where no compiler
# is found.
#
#   cmake -DBUILD=build/release -DSOURCE=. -DHEED=heed -DFOLDER=scratch -DGENERATOR=Ninja -DCPACK=cpack -P installed.cmake

include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)

function(run_examples folder)
  run_bare(HEED_PROGRAMS=${programs} ${folder}/attention_c cpu)
  run_bare(HEED_PROGRAMS=${programs} ${folder}/attention_cpp)
  run_bare(HEED_PROGRAMS=${programs} ${folder}/long_context)
  if(EXISTS ${folder}/cuda_graph)
    run_bare(CUDA_VISIBLE_DEVICES= ${folder}/cuda_graph)
    if(NOT output MATCHES "skipped: there is no GPU")
      message(FATAL_ERROR "cuda_graph does not say what it skips:\n${output}")
    endif()
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
set(programs ${FOLDER}/small.programs)
run(${HEED} programs build --arch cpu --dtypes fp32 --dims 64 --masks none --samples 3 --most 1 --precision none --cache ${FOLDER}/cache -o ${programs})

# ---- cmake --install
install_to(${FOLDER}/prefix)
run(${FOLDER}/prefix/bin/heed --version)
build_examples(${FOLDER}/prefix ${FOLDER}/examples)
run_examples(${FOLDER}/examples)
file(COPY_FILE ${programs} ${library_folder}/heed.programs)  # beside the library, where it is looked for
run_bare("" ${FOLDER}/examples/attention_cpp)
if(NOT output MATCHES "${library_folder}/heed.programs")
  message(FATAL_ERROR "heed.programs beside the library was not taken:\n${output}")
endif()

# ---- the code of docs/library.md against the installed header
file(READ ${SOURCE}/docs/library.md document)
string(REGEX MATCH "    heed_problem problem;.*\n    heed_plan_destroy[(]plan[)];" five "${document}")
string(REGEX MATCH "    static void pool.*options.parallel_for = pool;" pool "${document}")
string(REPLACE "    options.parallel_for" "static void use(heed_options options) { options.parallel_for" pool "${pool}")
file(WRITE ${FOLDER}/document.c
     "#include <heed/heed.h>\n#include <stdio.h>\n${pool} (void)options; }\n"
     "void five_calls(void* workspace, void* stream, heed_tensors tensors) {\n  use((heed_options){0});\n${five}\n}\n")
if(five STREQUAL "" OR pool STREQUAL "")
  message(FATAL_ERROR "docs/library.md has no five calls, or no pool of the caller's")
endif()
run(cc -std=c11 -Wall -Wextra -Werror -Wno-unknown-pragmas -fsyntax-only -I${FOLDER}/prefix/include ${FOLDER}/document.c)

find_program(pkg_config pkg-config)
if(pkg_config)
  set(ENV{PKG_CONFIG_PATH} ${library_folder}/pkgconfig)
  run(${pkg_config} --cflags --libs heed)
  string(STRIP "${output}" flags)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(cc -std=c11 ${SOURCE}/examples/library/attention.c -o ${FOLDER}/by_pkg_config ${flags} -Wl,-rpath,${library_folder})
  run_bare(HEED_PROGRAMS=${programs} ${FOLDER}/by_pkg_config cpu)
else()
  message(STATUS "pkg-config is not installed: heed.pc was not tried")
endif()

# ---- cpack -G DEB
find_program(dpkg_deb dpkg-deb)
find_program(shlibdeps dpkg-shlibdeps)
find_program(file file)
if(NOT dpkg_deb OR NOT shlibdeps OR NOT file)
  message(STATUS "dpkg-deb, dpkg-shlibdeps or file is not installed: the Debian package was not made")
  return()
endif()
run(${CPACK} -G DEB --config ${BUILD}/CPackConfig.cmake -B ${FOLDER}/package)
file(GLOB package ${FOLDER}/package/*.deb)
run(${dpkg_deb} --info ${package})
message(STATUS "${output}")
if(NOT output MATCHES "Depends: [^\n]*libc6" OR output MATCHES "(Depends|Recommends): [^\n]*(g\\+\\+|gcc-[0-9]+ |nvidia)")
  message(FATAL_ERROR "the package depends on the wrong packages:\n${output}")
endif()
run(${dpkg_deb} -x ${package} ${FOLDER}/unpacked)
build_examples(${FOLDER}/unpacked/usr ${FOLDER}/packaged_examples)
run_examples(${FOLDER}/packaged_examples)
