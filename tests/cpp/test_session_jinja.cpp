// Templates in Jinja's language: what they may not do, and what is said of it.
#include <string>
#include <utility>

#include "check.h"
#include "session/chat/template.h"

namespace {

using namespace zoexport;

std::string rendered(const std::string& source) {
  const auto program = jinja::Template::parse(source);
  if (!program.ok()) {
    return "no template: " + program.failure().found;
  }
  jinja::Dict variables;
  const auto given =
      nlohmann::ordered_json::parse(R"({"s": " né\n", "n": -7, "f": 2.50, "t": true, "o": null, "d": {"b": 1, "a": "x"},
      "l": [3, "1", null], "p": [{"k": "b", "v": 2}, {"k": "A", "v": 1}]})");
  for (const auto& entry : given.items()) {
    variables.set(entry.key(), jinja::from_json(entry.value()));
  }
  const auto text = program->render(variables, 0);
  return text.ok() ? text->text : "fails: " + text.failure().found;
}

// tests/unit/data/test_chat_templates.py compares what templates write with transformers.
void test_failures_say_what_is_wrong() {
  for (const auto& [source, expected] : {
           std::pair("{{ raise_exception('no ' + 'way') }}", "fails: no way"),
           std::pair("{{ q.r }}", "fails: 'r' of 'q', which is undefined"),
           std::pair("{{ s + 1 }}", "fails: values that '+' cannot join: ' né\\n' and 1"),
           std::pair("{{ l | wordwrap }}", "no template: 'wordwrap'"),
           std::pair("{% include 'x' %}", "no template: 'include'"),
           std::pair("{% if t %}a", "no template: its end"),
           std::pair("{{ 'é' | upper }}", "fails: capital letters of a text beyond ASCII"),
       }) {
    CHECK(rendered(source) == expected);
  }
}

// What a stranger's program may not do: run for ever, fill the memory, or make the host's stack overflow.
void test_limits() {
  const std::string loops =
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor "
      "%}";
  CHECK(rendered(loops) == "fails: more than it may use of memory and time");
  CHECK(rendered("{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}") ==
        "fails: more than it may use of memory and time");
  // Each of these takes seconds, or gigabytes, where one thing is not counted.
  const std::string big = "{% set b = 'x' * 99999 %}{% set b = b * 99 %}";
  const std::string doubled =
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(50) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% set ns.m = [ns.m, ns.m] %}{% endfor %}";
  for (const std::string& source :
       {big + "{% for i in range(100000) %}{% set c = b + 'x' %}{% endfor %}", doubled + "{{ ns.l }}",
        doubled + "{{ ns.l | tojson }}", doubled + "{{ ns.l == ns.m }}",
        big + "{% for i in range(1000) %}{% set c = b.replace('x', '') %}{% endfor %}",
        big + "{% for i in range(1000) %}{% set c = b | int %}{% endfor %}", big + "{{ b | list }}",
        big + "{{ b.split('x') }}", big + "{{ [b] * 2 }}", big + "{{ (b[::-1]) }}",
        big + "{{ [b, b, b, b, b, b, b, b, b] | join }}",
        std::string("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
        big + "{{ range(999) | map(attribute=b) | list }}",
        big + "{% for i in range(999) %}{{ b in b }}{% endfor %}"}) {
    CHECK(rendered(source).rfind("fails: ", 0) == 0);
  }
  CHECK(rendered(big + "{% for i in range(99999) %}{% if b %}{% endif %}{% endfor %}ends") == "ends");
  CHECK(rendered("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}") ==
        "fails: macros that call one another without an end");
  CHECK(
      rendered("{% set ns = namespace(x=1) %}{% for a in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}") ==
      "fails: lists inside one another without an end");
  CHECK(rendered("{% set ns = namespace(x=1) %}{% set ns.y = [ns] %}") ==
        "fails: a namespace inside a list, a dict or another");
  for (const char* const open : {"(", "[", "{'a': ", "not ", "-", "a.b(", "a|join("}) {
    std::string deep = "{{ ";
    for (int i = 0; i < 100000; ++i) {
      deep += open;
    }
    CHECK(rendered(deep).rfind("no template: ", 0) == 0);
  }
  std::string chain = "{{ 1", blocks, links = "{{ s";
  for (int i = 0; i < 100000; ++i) {
    chain += " + 1";
    blocks += "{% if t %}";
    links += "[1:]";
  }
  for (const std::string& source : {chain + " }}", blocks, links + " }}"}) {
    CHECK(rendered(source).rfind("no template: ", 0) == 0);
  }
  CHECK(rendered("{{ 9223372036854775807 + 1 }}") == "fails: a number beyond 64 bits");
  CHECK(rendered("{{ range(9999999) }}").rfind("fails: a range", 0) == 0);
  CHECK(rendered("{{ 'a' * 99999999 }}").rfind("fails: ", 0) == 0);
  CHECK(rendered("{{ 1 // 0 }}") == "fails: a division by zero" && rendered("{{ n % -1 }}") == "0");
}

}  // namespace

int main() {
  test_failures_say_what_is_wrong();
  test_limits();
  return check::result();
}
