/// What `heed book add` and `heed evolve --book` do: champions of stored runs into the book.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dispatch/book.hpp"
#include "jit/build.hpp"
#include "store/store.hpp"

namespace heed::cli {

/// The book that --book names, else the default one. @throws Error(usage) where there is no place for one
std::filesystem::path book_path(const std::string& named);

/// The champion of a run, or of a trial that is its run's champion, built. It is the program that passed the gate:
/// where today's sources or compiler make another one of it, it is refused.
/// @throws Error(usage) for a run or trial that is not there, Error(unsupported) with the reason why it has no champion
dispatch::BookEntry champion_of_run(std::int64_t run, store::Store& store, jit::Builder& builder);
dispatch::BookEntry champion_of_trial(std::int64_t trial, store::Store& store, jit::Builder& builder);

/// Merges entries into the book under its lock. @return an array with what was kept of each, and why
nlohmann::json put_into_book(const std::filesystem::path& path, std::vector<dispatch::BookEntry> entries);
/// The same for people, a line each.
std::string text_of_kept(const nlohmann::json& kept);

}  // namespace heed::cli
