# How our own code is compiled: warnings are errors, sanitizers by MUSTER_SANITIZE, ccache when present.

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header changes with every build tree; the sloppiness lets ccache hit all the same.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()

add_library(muster_compile_options INTERFACE)
target_compile_options(muster_compile_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wunused -Werror
  -Wno-missing-field-initializers)  # designated initialisers leave the rest at its default, on purpose
if(MUSTER_SANITIZE)
  add_compile_options(-fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MUSTER_SANITIZE})
  if(MUSTER_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# Everywhere or nowhere: a precompiled header is rejected when it was made without.
add_compile_options(-pthread)

# A program that uses no tensor does not load libtorch.
add_link_options(LINKER:--as-needed)
