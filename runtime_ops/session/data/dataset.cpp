#include "session/data/dataset.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "session/storage/files.h"
#include "session/storage/json_reader.h"
#include "session/storage/sha256.h"

namespace zoexport {
namespace {

const char* const kFix = "Correct the example; docs/formats.md describes the format.";

Failure bad(const std::string& where, const std::string& found, const std::string& expected) {
  return {ZO_DATA_ERROR, where, found, expected, kFix};
}

Status check(const zo_candidate& candidate, const std::string& where) {
  if (candidate.length == 0 || candidate.tokens == nullptr || candidate.labels == nullptr) {
    return bad(where, "no tokens", "at least one");
  }
  bool labelled = false;
  for (size_t i = 0; i < candidate.length; ++i) {
    const int64_t token = candidate.tokens[i];
    const int64_t label = candidate.labels[i];
    if (token < 0 || token > INT32_MAX) {
      return bad(where, "token " + std::to_string(token), "a token id of at least 0");
    }
    if ((label < 0 && label != kNoLabel) || label > INT32_MAX) {
      return bad(where, "label " + std::to_string(label), "a token id of at least 0, or -100");
    }
    labelled = labelled || label != kNoLabel;
  }
  return labelled ? Status() : bad(where, "no label", "at least one token to predict");
}

// One line of a JSON Lines file, added to `dataset`.
Status add_line(Dataset& dataset, const std::string& line, const std::string& where) {
  ZO_ASSIGN(document, parse_json(line.data(), line.data() + line.size(), ZO_DATA_ERROR, where, kFix));
  JsonProblems problems(ZO_DATA_ERROR, where, kFix);
  const JsonNode root(&document, "", &problems);
  std::vector<std::vector<int64_t>> numbers;  // tokens and labels in turn
  for (const JsonNode& candidate : root.member("candidates").items()) {
    for (const char* key : {"tokens", "labels"}) {
      numbers.emplace_back();
      for (const JsonNode& number : candidate.member(key).items()) {
        numbers.back().push_back(number.integer(kNoLabel, INT32_MAX));
      }
    }
    if (numbers.back().size() != numbers[numbers.size() - 2].size()) {
      candidate.problem("as many labels as tokens");
    }
  }
  const int64_t target = root.has("target") ? root.member("target").integer(0, INT32_MAX) : 0;
  ZO_TRY(problems.status());
  std::vector<zo_candidate> candidates;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    candidates.push_back({numbers[i].data(), numbers[i + 1].data(), numbers[i].size()});
  }
  return dataset.add(candidates.data(), candidates.size(), static_cast<size_t>(target), where);
}

}  // namespace

Status Dataset::add(const zo_candidate* candidates, size_t count, size_t target, const std::string& where) {
  if (count == 0 || candidates == nullptr) {
    return bad(where, "no candidates", "at least one");
  }
  if (target >= count) {
    return bad(where, "target " + std::to_string(target) + " of " + std::to_string(count) + " candidates",
               "the index of a candidate");
  }
  for (size_t i = 0; i < count; ++i) {
    ZO_TRY(check(candidates[i], where + ", candidate " + std::to_string(i)));
  }
  first_candidate_.push_back(begins_.size());
  targets_.push_back(static_cast<uint32_t>(target));
  for (size_t i = 0; i < count; ++i) {
    begins_.push_back(tokens_.size());
    tokens_.insert(tokens_.end(), candidates[i].tokens, candidates[i].tokens + candidates[i].length);
    labels_.insert(labels_.end(), candidates[i].labels, candidates[i].labels + candidates[i].length);
    longest_ = std::max(longest_, static_cast<uint32_t>(candidates[i].length));
    for (size_t t = 0; t < candidates[i].length; ++t) {
      largest_token_ = std::max({largest_token_, static_cast<int32_t>(candidates[i].tokens[t]),
                                 static_cast<int32_t>(candidates[i].labels[t])});
    }
  }
  return {};
}

Status for_lines(const std::string& path, const std::function<Status(const std::string& line, size_t number)>& take,
                 const GoOn& go_on) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return system_failure(ZO_DATA_ERROR, path, errno == 0 ? ENOENT : errno, false);
  }
  std::error_code unknown;
  const auto size = static_cast<uint64_t>(std::filesystem::file_size(path, unknown));
  uint64_t done = 0;
  bool found = false;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    done += line.size() + 1;
    if (number == 1 && line.compare(0, 3, "\xEF\xBB\xBF") == 0) {
      line.erase(0, 3);  // a byte order mark
    }
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      found = true;
      ZO_TRY(take(line, number));
    }
    if (go_on && !unknown && !go_on(std::min(done, size), size)) {
      return Failure{ZO_CANCELLED, path, "a request to stop", "the file to be read to its end", "Read it again."};
    }
  }
  if (file.bad()) {
    return system_failure(ZO_DATA_ERROR, path, EIO, false);
  }
  return found ? Status() : Status(bad(path, "no examples", "at least one line"));
}

Status Dataset::load(const std::string& path) {
  Dataset grown = *this;
  ZO_TRY(for_lines(path, [&](const std::string& line, size_t number) {
    return add_line(grown, line, path + ", line " + std::to_string(number));
  }));
  *this = std::move(grown);
  return {};
}

Status Dataset::write(const std::string& path) const {
  std::string lines;
  const auto numbers = [&](const char* key, const int32_t* values, uint32_t count) {
    lines += std::string("\"") + key + "\":[";
    for (uint32_t i = 0; i < count; ++i) {
      lines += (i > 0 ? "," : "") + std::to_string(values[i]);
    }
    lines += ']';
  };
  return write_file(path, [&](int descriptor) {
    for (size_t example = 0; example < size(); ++example) {
      lines = "{\"candidates\":[";
      for (size_t i = 0; i < candidates(example); ++i) {
        const Candidate one = candidate(example, i);
        lines += i > 0 ? ",{" : "{";
        numbers("tokens", one.tokens, one.length);
        lines += ',';
        numbers("labels", one.labels, one.length);
        lines += '}';
      }
      lines += "],\"target\":" + std::to_string(target(example)) + "}\n";
      if (!write_all(descriptor, lines.data(), lines.size())) {
        return false;
      }
    }
    return true;
  });
}

std::string Dataset::digest() const {
  Sha256 hash;
  const auto number = [&](uint64_t value) {
    uint8_t bytes[4];
    for (int i = 0; i < 4; ++i) {
      bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    }
    hash.update(bytes, sizeof(bytes));
  };
  for (size_t example = 0; example < size(); ++example) {
    number(candidates(example));
    number(target(example));
    for (size_t i = 0; i < candidates(example); ++i) {
      const Candidate one = candidate(example, i);
      number(one.length);
      // Every processor that this runs on is little-endian, as all files of a state are.
      hash.update(one.tokens, one.length * sizeof(int32_t));
      hash.update(one.labels, one.length * sizeof(int32_t));
    }
  }
  return to_hex(hash.finish());
}

size_t Dataset::candidates(size_t example) const {
  const size_t next = example + 1 < first_candidate_.size() ? first_candidate_[example + 1] : begins_.size();
  return next - first_candidate_[example];
}

Candidate Dataset::candidate(size_t example, size_t index) const {
  const size_t number = first_candidate_[example] + index;
  const size_t end = number + 1 < begins_.size() ? begins_[number + 1] : tokens_.size();
  const size_t begin = begins_[number];
  return {tokens_.data() + begin, labels_.data() + begin, static_cast<uint32_t>(end - begin)};
}

}  // namespace zoexport
