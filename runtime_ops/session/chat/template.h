// A model's chat template, run as transformers runs it: Jinja's language without what reads files or changes values.
//
// A template is a stranger's program. It reaches nothing but what it is given, and what it may use of time and memory is limited.
#pragma once

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "session/chat/syntax.h"
#include "session/chat/value.h"
#include "session/result.h"

namespace zoexport::jinja {

struct Rendered {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generated;  // bytes of the text that blocks of `generation` wrote
};

class Template {
 public:
  static Result<Template> parse(const std::string& source);

  // Render with these variables; each dict records the keys that were read. `now` is for strftime_now.
  Result<Rendered> render(const Dict& variables, std::time_t now) const;

 private:
  explicit Template(Nodes body) : body_(std::move(body)) {}

  Nodes body_;
};

}  // namespace zoexport::jinja
