// Program files of the Vulkan engine: what is wrong with one is one message, and whatever was accepted stays within its buffers.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

#include "check.h"
#include "engines/vulkan/submissions.h"
#include "vulkan_files.h"

namespace {

using namespace zoexport;
using vulkan::Dispatch;
using vulkan::ProgramFile;
using vulkan_files::is_within;
using vulkan_files::spec;
using vulkan_files::whole;

std::string altered(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  CHECK(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void test_a_whole_file() {
  ProgramSpec program = spec();
  const auto file = vulkan_files::read(whole(), program);
  if (!CHECK(file.ok())) {
    std::fprintf(stderr, "%s: %s; %s\n", file.failure().where.c_str(), file.failure().found.c_str(),
                 file.failure().expected.c_str());
    return;
  }
  const vulkan::Program& read = file->programs.at("p");
  CHECK(read.dispatches.size() == 4 && read.gathers.size() == 1 && read.labels.size() == 1);
  CHECK(!read.inputs[0].in_pool && read.inputs[0].parts.empty() && read.inputs[3].parts.size() == 1);
  CHECK(read.inputs[3].parts[0].at == 64 && read.inputs[3].parts[0].from == 0 && read.inputs[3].parts[0].bytes == 8);
  // rows, columns, depth, a, b, scales, group, add, bias, out, the products that are made, and pitches of a, b and out
  CHECK((read.dispatches[0].pushed ==
         std::vector<uint32_t>{4, 4, 32, 16, 0, 16, 32, UINT32_MAX, 512, 320, 0, 32, 32, 32, 4}));
  CHECK((read.dispatches[0].constants == std::vector<uint32_t>{0, 2, 0, 1, 0, 1, 0, 0, 0, 0, 1}));
  CHECK(read.dispatches[1].shader == vulkan::Shader::kRows && read.dispatches[1].pushed[1] == 32);
  CHECK(is_within(*file));
  const struct {
    const char* kind;
    double flops, bytes;
  } expected[] = {
      // 16 sums of 32 products; rows, 128 weights of 4 bits with 4 scales of 16, biases, results of fp16.
      {"product int4", 2 * 16 * 32, 512 + 64 + 8 + 16 + 32},
      // A sum of 4 columns; one instruction for all, and one for each of 32.
      {"rows", 4 * (4 + 1 + 32), 512 + 32 + 512},
      // 10 pairs of each of 2 heads.
      {"attention", 2 * 2 * 10 * (8 + 8), 256 + 128 + 128 + 256 + 32},
      {"labels", 8 * 4 * 8, 32 + 128 + 16 + 16 + 16 + 64},
  };
  for (size_t i = 0; i < std::size(expected); ++i) {
    const Dispatch& dispatch = read.dispatches[i];
    CHECK(vulkan::kind_name(dispatch.kind) == std::string(expected[i].kind));
    CHECK(dispatch.work.flops == expected[i].flops && dispatch.work.bytes == expected[i].bytes);
    CHECK(dispatch.has_halves == (dispatch.kind != vulkan::Kind::kAttention));
  }
  CHECK(read.has_halves && read.scaled_inputs.empty() && read.scaled_outputs.empty());
}

// Each product of a part has columns of the results, or of what it reads; their spans go from the first to the last number.
void test_parts_of_a_matrix() {
  ProgramSpec program = spec();
  const auto file = vulkan_files::read(whole("vulkan_parts.json"), program);
  if (!CHECK(file.ok())) {
    return;
  }
  const vulkan::Program& read = file->programs.at("p");
  CHECK(is_within(*file) && read.dispatches.size() == 4);
  const vulkan::WindowPart& second = read.inputs[3].parts.at(1);
  CHECK(second.window == 1 && second.at == 16 && second.from == 6 && second.bytes == 2);
  const struct {
    std::vector<uint32_t> pushed;
    size_t window, reads;
    vulkan::Span first_read, written;
    double bytes;
  } expected[] = {
      {{4, 3, 32, 0, 0, 12, 32, UINT32_MAX, 264, 256, 0, 32, 32, 32, 4},
       0,
       2,
       {0, 128},
       {128, 136},
       512 + 54 + 12 + 24},
      {{4, 1, 32, 0, 0, 4, 32, UINT32_MAX, 267, 259, 0, 32, 32, 32, 4}, 1, 2, {0, 128}, {129, 136}, 512 + 18 + 4 + 8},
      {{4, 32, 3, 256, 0, 12, 32, UINT32_MAX, UINT32_MAX, 136, 0, 3, 4, 32, 32},
       0,
       1,
       {128, 136},
       {136, 264},
       24 + 54 + 512},
      // What it adds to is no tensor that it reads beside.
      {{4, 32, 1, 259, 0, 4, 32, 136, UINT32_MAX, 136, 0, 1, 4, 32, 32},
       1,
       1,
       {129, 136},
       {136, 264},
       8 + 18 + 512 + 512},
  };
  for (size_t i = 0; i < std::size(expected); ++i) {
    const Dispatch& dispatch = read.dispatches[i];
    CHECK(dispatch.pushed == expected[i].pushed && dispatch.window == expected[i].window);
    CHECK(dispatch.reads.size() == expected[i].reads && dispatch.writes.size() == 1);
    CHECK(dispatch.reads[0].begin == expected[i].first_read.begin &&
          dispatch.reads[0].end == expected[i].first_read.end);
    CHECK(dispatch.writes[0].begin == expected[i].written.begin && dispatch.writes[0].end == expected[i].written.end);
    CHECK(dispatch.work.bytes == expected[i].bytes && dispatch.has_halves && (dispatch.constants[4] == 1) == (i == 3));
  }
}

// Gradients are brought into the range of fp16 where a program has such tensors, by what they are proportional to.
void test_what_is_scaled() {
  for (const bool halves : {true, false}) {
    ProgramSpec program;
    program.inputs = {vulkan_files::value("x", "activation", ZO_FLOAT32, {2}),
                      vulkan_files::value("dy", "output_gradient", ZO_FLOAT32, {2})};
    program.outputs = {vulkan_files::value("logprobs", "label_logprobs", ZO_FLOAT32, {2}),
                       vulkan_files::value("dx", "input_gradient", ZO_FLOAT32, {2}),
                       vulkan_files::value("da", "state_gradient", ZO_FLOAT32, {2})};
    const std::string to = halves ? R"({"half":20})" : "10";
    const auto file = vulkan_files::read(
        vulkan_files::file(16, R"("inputs":[{"pool":0},{"pool":2}],"outputs":[4,6,8],"gathers":[],"calls":[)"
                               R"({"op":"rows","dims":[1],"reads":[[2,0,0]],"inputs":[2],"constants":[],"outputs":[)" +
                                   to +
                                   R"(],"phases":[{"width":2,"once":0,"code":[50,0,0,0,0,0],)"
                                   R"("results":[["store",0,0]]}]}])"),
        program);
    if (CHECK(file.ok())) {
      const vulkan::Program& read = file->programs.at("p");
      CHECK(read.has_halves == halves);
      CHECK(read.scaled_inputs == (halves ? std::vector<size_t>{1} : std::vector<size_t>{}));
      CHECK(read.scaled_outputs == (halves ? std::vector<size_t>{1, 2} : std::vector<size_t>{}));
    }
  }
}

// A deep product is several dispatches, each of which adds to what the one before has made; a program has so many at most.
void test_deep_products() {
  const auto read = [](int calls) {
    const std::string call =
        R"({"op":"product","batch":1,"rows":1,"columns":1,"depth":33000000,"transposed":[false,true],)"
        R"("a":0,"b":0,"out":33000000,"bias":33000001})";
    std::string list = call;
    for (int i = 1; i < calls; ++i) {
      list += "," + call;
    }
    ProgramSpec program;
    return vulkan_files::read(
        vulkan_files::file(33000002, R"("inputs":[],"outputs":[],"gathers":[],"calls":[)" + list + "]"), program);
  };
  const auto file = read(1);
  CHECK(file.ok());
  const std::vector<Dispatch>& made = file->programs.at("p").dispatches;
  CHECK(made.size() == 2015);  // 33000000 / 16384
  uint32_t next = 0;
  double flops = 0;
  for (const Dispatch& dispatch : made) {
    const uint32_t adds = dispatch.constants[4], has_bias = dispatch.constants[5];
    CHECK((adds == 1) == (next > 0) && (has_bias == 1) == (next == 0));
    CHECK(next == 0 || dispatch.pushed[7] == dispatch.pushed[9]);
    CHECK(dispatch.pushed[10] == next && dispatch.pushed[11] > next);
    next = dispatch.pushed[11];
    flops += dispatch.work.flops;
  }
  CHECK(next == 33000000 && flops == 2.0 * next);
  CHECK(read(4).ok());
  const auto many = read(5);
  CHECK(!many.ok() && many.failure().where.find("programs.p.calls[4]") != std::string::npos);
  CHECK(many.failure().expected.find("8192 dispatches") != std::string::npos);
}

Dispatch dispatch_of(vulkan::Shader shader, double seconds, uint32_t x, uint32_t y) {
  Dispatch made{shader};
  made.groups[0] = x;
  made.groups[1] = y;
  made.work.flops = seconds * 5e9;
  return made;
}

void test_submissions() {
  using vulkan::Shader;
  CHECK(vulkan::submissions_of({}, 1).size() == 1);
  const Dispatch small = dispatch_of(Shader::kProduct, 0.4, 3, 2);
  const auto few = vulkan::submissions_of({small, small, small}, 1);
  CHECK(few.size() == 2 && few[0].size() == 2 && few[1].size() == 1 && few[1][0].dispatch == 2);
  // One that takes longer alone is divided, between the others; rows are not, whose shader counts workgroups.
  const Dispatch large = dispatch_of(Shader::kProduct, 3.5, 2, 9), whole = dispatch_of(Shader::kRows, 3, 2, 9);
  const auto parts = vulkan::submissions_of({small, large, whole, small}, 1);
  CHECK(parts.size() == 6);
  uint32_t next = 0;
  for (const auto& part : parts) {
    double seconds = 0;
    for (const vulkan::Piece& piece : part) {
      CHECK(piece.groups[0] == (piece.dispatch % 3 == 0 ? 3 : 2) && piece.base[0] == 0);
      if (piece.dispatch == 1) {
        CHECK(piece.base[1] == next);
        next += piece.groups[1];
        seconds += 3.5 * piece.groups[1] / 9;
      }
    }
    CHECK(seconds <= 1.2);  // 9 workgroups in 4 pieces: 3 at once
  }
  CHECK(next == 9 && parts[4].size() == 1 && parts[4][0].groups[1] == 9);
}

// Of a fault: what stands there instead of what, and where the message says that it is.
void check_fault(const std::string& text, const char* const (&fault)[3]) {
  ProgramSpec program = spec();
  const auto file = vulkan_files::read(altered(text, fault[0], fault[1]), program);
  const std::string where = file.ok() ? "nowhere" : file.failure().where;
  if (!CHECK(where == std::string("model.vulkan.json, ") + fault[2])) {
    std::fprintf(stderr, "%s for %s: %s\n", fault[1], fault[0], where.c_str());
  }
  CHECK(file.ok() || (file.failure().code == ZO_ENGINE_ERROR && !file.failure().found.empty() &&
                      !file.failure().expected.empty() && !file.failure().fix.empty()));
}

void test_faults() {
  const char* const faults[][3] = {
      {"zoexport-vulkan-1", "zoexport-vulkan-2", "format"},
      {"\"windows\":[80]", "\"windows\":[134217729]", "windows[0]"},
      {"\"windows\":[80]", "\"windows\":[]", "windows"},
      {"\"words\":516", "\"words\":33554433", "programs.p.words"},
      {"\"words\":516", "\"words\":515", "programs.p.inputs[4].pool"},
      {"{\"pool\":0},", "", "programs.p.inputs"},
      {"\"at\":64}", "\"at\":62}", "programs.p.inputs[3].at"},
      {"\"at\":64}", "\"at\":76}", "programs.p.inputs[3].at"},
      {"{\"pool\":512}", "{\"window\":0,\"at\":0}", "programs.p.inputs[4].window"},
      {"\"outputs\":[384]", "\"outputs\":[453]", "programs.p.outputs[0]"},
      {"\"outputs\":[384]", "\"outputs\":[]", "programs.p.outputs"},
      {"\"table\":0", "\"table\":5", "programs.p.gathers[0].table"},
      {"\"indices\":1", "\"indices\":4", "programs.p.gathers[0].indices"},
      {"\"count\":4", "\"count\":5", "programs.p.gathers[0].indices"},
      {"\"first\":0", "\"first\":1", "programs.p.gathers[0].indices"},
      {"\"to\":16", "\"to\":389", "programs.p.gathers[0].to"},
      {"\"op\":\"product\"", "\"op\":\"other\"", "programs.p.calls[0].op"},
      {"\"rows\":4", "\"rows\":0", "programs.p.calls[0].rows"},
      {"\"rows\":4", "\"rows\":33554432", "programs.p.calls[0].a"},
      {"\"columns\":4", "\"columns\":5", "programs.p.calls[0].bias"},
      {"[false,true]", "[false]", "programs.p.calls[0].transposed"},
      {"\"group\":32", "\"group\":33", "programs.p.calls[0].b.group"},
      {"\"kind\":\"int4\"", "\"kind\":\"int5\"", "programs.p.calls[0].b.kind"},
      {"\"scales\":64", "\"scales\":76", "programs.p.calls[0].b.scales"},
      {"\"batch\":1,\"rows\":4,\"columns\":4", "\"batch\":2,\"rows\":2,\"columns\":4", "programs.p.calls[0].b"},
      {"\"out\":{\"half\":320}", "\"out\":{\"half\":61}", "programs.p.calls[0]"},
      {"\"out\":{\"half\":320}", "\"out\":{\"half\":1017}", "programs.p.calls[0].out.half"},
      {"\"out\":{\"half\":320}", "\"out\":{}", "programs.p.calls[0].out.half"},
      {"\"dims\":[4]", "\"dims\":[]", "programs.p.calls[1].dims"},
      {"\"dims\":[4]", "\"dims\":[400,400]", "programs.p.calls[1].dims"},
      {"[4,0,4]]", "[4,0,240]]", "programs.p.calls[1].reads[1]"},
      {"[4,0,4]]", "[4,0]]", "programs.p.calls[1].reads[1]"},
      {"\"inputs\":[16,{\"half\":320}]", "\"inputs\":[16]", "programs.p.calls[1].reads"},
      {"[16,{\"half\":320}]", "[16,{\"half\":1033}]", "programs.p.calls[1].inputs[1].half"},
      {"\"outputs\":[192]", "\"outputs\":[{\"half\":905}]", "programs.p.calls[1].outputs[0].half"},
      {"[50,0,1,0,0,0]", "[50,0,2,0,0,0]", "programs.p.calls[1].phases[0].code[2]"},
      {"[50,0,1,0,0,0]", "[50,40,1,0,0,0]", "programs.p.calls[1].phases[0].code[1]"},
      {"[50,0,1,0,0,0]", "[27,0,1,0,0,0]", "programs.p.calls[1].phases[0].code[0]"},
      {"[50,0,1,0,0,0]", "[50,0,1,0,0]", "programs.p.calls[1].phases[0].code"},
      {"[\"sum\",0,0]", "[\"sum\",1,0]", "programs.p.calls[1].phases[0].results[0][1]"},
      {"[\"sum\",0,0]", "[\"sum\",0,16]", "programs.p.calls[1].phases[0].results[0][2]"},
      {"[\"sum\",0,0]", "[\"product\",0,0]", "programs.p.calls[1].phases[0].results[0]"},
      {"536870912", "536870913", "programs.p.calls[1].phases[1].code[2]"},
      {"1073741824", "1073741825", "programs.p.calls[1].phases[1].code[3]"},
      {"\"once\":1", "\"once\":5", "programs.p.calls[1].phases[1].once"},
      {"[\"store\",0,0]", "[\"store\",0,1]", "programs.p.calls[1].phases[1].results[0][2]"},
      {"[\"store\",0,0]", "[\"sum\",0,1]", "programs.p.calls[1].outputs"},
      {"\"outputs\":[192]", "\"outputs\":[100]", "programs.p.calls[1]"},
      {"\"groups\":1", "\"groups\":3", "programs.p.calls[2].groups"},
      {"\"tokens\":4", "\"tokens\":100", "programs.p.calls[2].q"},
      {"\"q\":192", "\"q\":{\"half\":384}", "programs.p.calls[2].k"},
      {"\"lse\":448", "\"lse\":{\"half\":896}", "programs.p.calls[2].lse"},
      {"\"out\":384", "\"out\":190", "programs.p.calls[2]"},
      {"\"tokens\":1,", "\"tokens\":0,", "programs.p.calls[3].tokens"},
      {"\"entries\":4", "\"entries\":5", "programs.p.calls[3].tokens"},
      {"\"weights\":512", "\"weights\":513", "programs.p.calls[3].weights"},
      {"\"gradient\":{\"half\":960}", "\"gradient\":{\"half\":913}", "programs.p.calls[3]"},
      {"\"gradient\":{\"half\":960}", "\"gradient\":{\"half\":1001}", "programs.p.calls[3].gradient.half"},
      {"\"gradient\":{\"half\":960}", "\"gradient\":{\"half\":-1}", "programs.p.calls[3].gradient.half"},
      {"\"logits\":192", "\"logits\":{\"half\":384}", "programs.p.calls[3].logits"},
  };
  for (const auto& fault : faults) {
    check_fault(whole(), fault);
  }
}

void test_faults_of_parts() {
  const char* const faults[][3] = {
      {"\"at\":48,\"from\":0", "\"at\":48,\"from\":-1", "programs.p.inputs[3].parts[0].from"},
      {"\"from\":48", "\"from\":64", "programs.p.inputs[2].parts[1].from"},
      {"\"from\":48", "\"from\":49", "programs.p.inputs[2].parts[1].bytes"},
      {"\"from\":6,\"bytes\":2", "\"from\":6,\"bytes\":0", "programs.p.inputs[3].parts[1].bytes"},
      {"\"window\":1,\"at\":16", "\"window\":2,\"at\":16", "programs.p.inputs[3].parts[1].window"},
      {"\"window\":1,\"at\":16", "\"window\":1,\"at\":32", "programs.p.inputs[3].parts[1].at"},
      {"\"window\":1,\"at\":16", "\"window\":1,\"at\":18", "programs.p.inputs[3].parts[1].at"},
      {"{\"pool\":264}", "{\"parts\":[]}", "programs.p.inputs[4].parts"},
      {"\"windows\":[64,32]", "\"windows\":[64]", "programs.p.inputs[2].parts[1].window"},
      {"\"windows\":[64,32]", "\"windows\":[64,17]", "programs.p.inputs[3].parts[1].at"},
      {"{\"half\":256},\"out_pitch\":4", "{\"half\":256},\"out_pitch\":2", "programs.p.calls[0].out_pitch"},
      {"{\"half\":256},\"out_pitch\":4", "{\"half\":256},\"out_pitch\":33554433", "programs.p.calls[0].out_pitch"},
      {"{\"half\":256},\"out_pitch\":4", "{\"half\":256},\"out_pitch\":93", "programs.p.calls[0].out.half"},
      {"{\"half\":256},\"out_pitch\":4", "{\"half\":256},\"out_pitch\":\"4\"", "programs.p.calls[0].out_pitch"},
      {"{\"half\":256},\"a_pitch\":4", "{\"half\":256},\"a_pitch\":2", "programs.p.calls[2].a_pitch"},
      {"{\"half\":256},\"a_pitch\":4", "{\"half\":256},\"a_pitch\":93", "programs.p.calls[2].a.half"},
      {"{\"half\":256},\"a_pitch\":4", "{\"half\":256},\"b_pitch\":64", "programs.p.calls[2].b_pitch"},
      {"\"add\":136", "\"add\":141", "programs.p.calls[3].add"},
      {"\"add\":136", "\"add\":135", "programs.p.calls[3]"},
      {"\"add\":136", "\"add\":{\"half\":272}", "programs.p.calls[3]"},
      {"\"half\":259},\"a_pitch\"", "\"half\":260},\"a_pitch\"", "programs.p.calls[3]"},
  };
  for (const auto& fault : faults) {
    check_fault(whole("vulkan_parts.json"), fault);
  }
}

// Numbers of a file are replaced by others, small and large: it is refused, or keeps to its buffers.
void test_altered_numbers(const std::string& text) {
  const char* const numbers[] = {"0",
                                 "1",
                                 "3",
                                 "4",
                                 "15",
                                 "16",
                                 "31",
                                 "63",
                                 "64",
                                 "255",
                                 "512",
                                 "515",
                                 "516",
                                 "517",
                                 "4096",
                                 "65536",
                                 "33554432",
                                 "536870912",
                                 "1073741824",
                                 "4294967295",
                                 "9223372036854775807",
                                 "-1",
                                 "18446744073709551615",
                                 "1e3",
                                 "null",
                                 "\"a\"",
                                 "[]",
                                 "{}"};
  size_t accepted = 0, refused = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (std::isdigit(static_cast<unsigned char>(text[at])) == 0 || text[at - 1] == '-' ||
        std::isdigit(static_cast<unsigned char>(text[at - 1])) != 0) {
      continue;
    }
    size_t end = at;
    while (std::isdigit(static_cast<unsigned char>(text[end])) != 0) {
      ++end;
    }
    for (const char* number : numbers) {
      ProgramSpec program = spec();
      const auto file = vulkan_files::read(text.substr(0, at) + number + text.substr(end), program);
      (file.ok() ? accepted : refused) += 1;
      CHECK(!file.ok() || is_within(*file));
    }
  }
  CHECK(accepted > 100 && refused > 1000);
}

}  // namespace

int main() {
  test_a_whole_file();
  test_what_is_scaled();
  test_deep_products();
  test_submissions();
  test_parts_of_a_matrix();
  test_faults();
  test_faults_of_parts();
  test_altered_numbers(whole());
  test_altered_numbers(whole("vulkan_parts.json"));
  return check::result();
}
