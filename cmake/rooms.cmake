# Rooms: one static library for each folder of lib/ and lab/, with the rooms it may use.
#
# Two things fail to build: an include from lib/ into lab/, for lab/ is on no include path there; and a call of a room that is not
# named, for links_ROOM links every object of a room with the rooms it names and no others. Within a layer includes are
# tests/imports_test.cpp's to check.

# Parsing these takes two thirds of the time of a file that includes them.
set(heed_parsed_once <fmt/format.h> <algorithm> <chrono> <filesystem> <functional> <map> <memory> <optional> <string> <vector>)
set(heed_lab_parsed_once ${heed_parsed_once} <nlohmann/json.hpp>)

file(WRITE ${CMAKE_BINARY_DIR}/links.cpp "int main() {}\n")

# heed_room(NAME [SOURCES FILES...] ROOMS TARGETS...): heed_NAME of the folder NAME below the current one, or of SOURCES.
# The first room of a layer parses the headers that its other rooms reuse; PARSED names it.
function(heed_room name)
  cmake_parse_arguments(arg "" "PARSED" "SOURCES;ROOMS" ${ARGN})
  set(sources ${arg_SOURCES})
  if(NOT sources)
    file(GLOB sources CONFIGURE_DEPENDS ${name}/*.cpp)
  endif()
  set(target heed_${name})
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC ${arg_ROOMS})
  if(arg_PARSED)
    target_precompile_headers(${target} REUSE_FROM ${arg_PARSED})
  endif()
  heed_warnings(${target})
  heed_links(${target})
endfunction()

# heed_links(TARGET): links everything of a static library with what it names. Where a program links all rooms, a room that calls
# another without naming it goes unseen.
function(heed_links target)
  if(HEED_TESTS)
    add_executable(links_${target} ${CMAKE_BINARY_DIR}/links.cpp)
    target_link_libraries(links_${target} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${target}>)
  endif()
endfunction()
