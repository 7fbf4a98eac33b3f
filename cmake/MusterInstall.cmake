# `cmake --install`: the public headers, one library a room, the command, and a package for find_package(muster).

include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY MUSTER_ROOMS)
list(REMOVE_ITEM rooms muster_testing)

# All rooms at once: what a user links.
add_library(muster_all INTERFACE)
add_library(muster::muster ALIAS muster_all)
set_target_properties(muster_all PROPERTIES EXPORT_NAME muster)
target_link_libraries(muster_all INTERFACE ${rooms})

install(TARGETS ${rooms} muster_all EXPORT muster_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS muster RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/muster DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/muster)
install(EXPORT muster_targets NAMESPACE muster:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/musterConfig.cmake.in ${PROJECT_BINARY_DIR}/musterConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/musterConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/musterConfig.cmake ${PROJECT_BINARY_DIR}/musterConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/MusterDependencies.cmake
        DESTINATION ${package_dir})
