// A chat template that anyone wrote: it runs to an end within its limits, with a text or a failure that says what was wrong.
#include "fuzz.h"
#include "session/chat/template.h"
#include "session/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zoexport;
  const auto program = jinja::Template::parse(fuzz::text(data, size));
  if (!program.ok()) {
    MUST(!program.failure().found.empty() && !program.failure().fix.empty());
    return 0;
  }
  const auto call = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "a"}]},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, true]}}}]},
          {"role": "tool", "content": "{}"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\né "}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "array"}}}}}]})");
  jinja::Dict variables;
  for (const auto& entry : call.items()) {
    variables.set(entry.key(), jinja::from_json(entry.value()));
  }
  variables.set("bos_token", "<s>");
  variables.set("add_generation_prompt", size % 2 == 0);
  const auto text = program->render(variables, 0);
  if (text.ok()) {
    MUST(valid_utf8(text->text) == text->text.size());
    for (const auto& [begin, end] : text->generated) {
      MUST(begin <= end && end <= text->text.size());
    }
  } else {
    MUST(!text.failure().found.empty());
  }
  return 0;
}
