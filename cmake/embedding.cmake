# heed_embed(TARGET NAMESPACE FUNCTION FILES...): TARGET defines std::span<const heed::compile::EmbeddedFile> NAMESPACE::FUNCTION() over
# FILES, whose paths are relative to the root of the tree, as an #include names them.
function(heed_embed target namespace function)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${target}_files.cpp)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE paths)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DROOT=${CMAKE_SOURCE_DIR} -DNAMESPACE=${namespace} -DFUNCTION=${function} "-DFILES=${ARGN}" -P
            ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${paths} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
  set_source_files_properties(${output} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
