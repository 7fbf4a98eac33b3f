# How our own code is compiled: warnings are errors, sanitizers by MUSTER_SANITIZE, ccache when present.

# What was compiled in one clone serves another: no path in an object depends on where the clone is.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true ${CCACHE})
endif()
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

add_library(muster_compile_options INTERFACE)
target_compile_options(muster_compile_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wunused -Werror
  -Wno-missing-field-initializers)  # designated initialisers leave the rest at its default, on purpose
if(CMAKE_UNITY_BUILD)
  # In a joined source the files of a room look like headers, in which an unnamed namespace would be a mistake.
  target_compile_options(muster_compile_options INTERFACE -Wno-subobject-linkage)
endif()
# Tests are compiled once and run for seconds: what they test is optimised, they are not, but for those that set the
# property MUSTER_OPTIMISE.
add_library(muster_test_options INTERFACE)
target_link_libraries(muster_test_options INTERFACE muster_compile_options)
target_compile_options(muster_test_options INTERFACE $<IF:$<BOOL:$<TARGET_PROPERTY:MUSTER_OPTIMISE>>,-O1,-O0>)

if(MUSTER_SANITIZE)
  add_compile_options(-fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MUSTER_SANITIZE})
  if(MUSTER_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

add_compile_options(-pthread)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects its own garbage less often: a source that includes libtorch takes a fifth less time (33 to 27 s
  # for examples/mnist.cc), for 80 MB more.
  add_compile_options(--param=ggc-min-expand=100 --param=ggc-min-heapsize=262144)
endif()

# A program that uses no tensor does not load libtorch.
add_link_options(LINKER:--as-needed)
