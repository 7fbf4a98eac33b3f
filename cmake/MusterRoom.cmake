# muster_room(name SOURCES ... [DEPENDS rooms...] [LIBRARIES third party...])
#   One static library a room: muster_<name>, exported as muster::<name>.
#   scripts/check-layers holds DEPENDS and the includes against the design's table.
# muster_engine(name SOURCES ... LIBRARIES third party...), muster_no_engine(name packages)
#   An engine over another library: a module that is loaded when it is asked for, muster_engine_<name>.
# muster_kernels(result prefix)
#   The sources <prefix>_{portable,avx2,avx512}.cc, each to be compiled for its instruction set (base/cpu.h).
# muster_room_test(name SOURCES ... [LIBRARIES ...] [SHARDS n])
#   One GoogleTest program a room: muster_<name>_test. Each of its tests runs in a process of its own; with SHARDS they run
#   in n processes, for programs that take long to start, as those with libtorch do.
# muster_room_bench(name SOURCES ...)
#   The same with Google Benchmark: muster_<name>_bench.

set_property(GLOBAL PROPERTY MUSTER_ROOMS "")

function(muster_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  set(target muster_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(muster::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  list(TRANSFORM ARG_DEPENDS PREPEND muster_)
  target_link_libraries(${target} PUBLIC ${ARG_DEPENDS} ${ARG_LIBRARIES}
    PRIVATE $<BUILD_INTERFACE:muster_compile_options>)
  set_property(GLOBAL APPEND PROPERTY MUSTER_ROOMS ${target})
endfunction()

function(muster_kernels result prefix)
  set(sources ${prefix}_portable.cc)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    list(APPEND sources ${prefix}_avx2.cc ${prefix}_avx512.cc)
  endif()
  # Integers wrap; a fused multiply-add must not give one instruction set other bits than another; a root that sets errno is
  # a call.
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "-O3;-fwrapv;-ffp-contract=off;-fno-math-errno")
  set_property(SOURCE ${prefix}_avx2.cc APPEND PROPERTY COMPILE_OPTIONS "-mavx2;-mf16c")
  set_property(SOURCE ${prefix}_avx512.cc APPEND PROPERTY COMPILE_OPTIONS
    "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mf16c;-mprefer-vector-width=512")
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

function(muster_engine name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  set(target muster_engine_${name})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE muster_collective ${ARG_LIBRARIES} muster_compile_options)
  target_compile_definitions(${target} PRIVATE MUSTER_VERSION="${PROJECT_VERSION}")
  # It has rooms of its own in it, which must not mix with the program's.
  target_link_options(${target} PRIVATE LINKER:--exclude-libs,ALL)
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

function(muster_no_engine name packages)
  if(MUSTER_SANITIZE)
    message(STATUS "no engine ${name}: its library was not made for sanitizers")
  else()
    message(STATUS "no engine ${name}, for want of ${packages} (scripts/bootstrap)")
  endif()
endfunction()

function(muster_room_test name)
  if(NOT MUSTER_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "SHARDS" "SOURCES;LIBRARIES" ${ARGN})
  set(target muster_${name}_test)
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE
    muster_${name} ${ARG_LIBRARIES} muster_test_options GTest::gtest_main GTest::gmock)
  if(ARG_SHARDS)
    muster_shards(${target} ${ARG_SHARDS})
  else()
    muster_discover_tests(${target} TIMEOUT 120)
  endif()
endfunction()

function(muster_shards target shards)
  math(EXPR last "${shards} - 1")
  foreach(index RANGE ${last})
    add_test(NAME ${target}.${index} COMMAND ${target})
    set_tests_properties(${target}.${index} PROPERTIES TIMEOUT 300 COST 100
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# A test a case, found when ctest runs: a build starts none of them. What else is given are properties of each test.
function(muster_discover_tests target)
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES ${ARGN})
endfunction()

function(muster_room_bench name)
  if(NOT MUSTER_BUILD_TESTS OR MUSTER_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_executable(muster_${name}_bench ${ARG_SOURCES})
  target_link_libraries(muster_${name}_bench PRIVATE muster_${name} muster_compile_options benchmark::benchmark_main)
endfunction()
