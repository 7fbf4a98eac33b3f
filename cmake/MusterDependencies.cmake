# What Muster needs from the system; scripts/bootstrap installs it. The installed package reads the same file.

include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(spdlog)
find_dependency(nlohmann_json)
find_dependency(CLI11)
find_dependency(OpenSSL)
find_dependency(Protobuf)
find_dependency(gRPC)
find_dependency(ZLIB)
if(MUSTER_WITH_TORCH)
  # TorchConfig wants these before it, and says a great deal.
  list(APPEND CMAKE_MESSAGE_CONTEXT torch)
  find_dependency(Torch)
  list(POP_BACK CMAKE_MESSAGE_CONTEXT)
  if(NOT TARGET muster::torch)
    # Not the target `torch`: it makes every program load libtorch, used or not.
    add_library(muster::torch INTERFACE IMPORTED)
    target_link_libraries(muster::torch INTERFACE torch_cpu c10)
    target_include_directories(muster::torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  endif()
endif()
