// Lines of a data file, as examples and as tokens, and the calls that tokens are laid out into.
#include <numeric>

#include "fuzz.h"
#include "session/data/batching.h"
#include "session/data/loss.h"
#include "session/examples/records.h"

namespace {

zoexport::Status check_records(const std::string& line, size_t number) {
  using namespace zoexport;
  const std::string where = "line " + std::to_string(number);
  const auto prompt = parse_prompt(line, where);
  MUST(!prompt.ok() || prompt->messages.empty() || prompt->text.empty());
  const auto record = parse_record(line, where);
  if (!record.ok()) {
    MUST(record.failure().where.rfind(where, 0) == 0 && !record.failure().fix.empty());
  } else if (const auto* completion = std::get_if<CompletionRecord>(&*record)) {
    MUST(completion->target < completion->completions.size());
    MUST(!completion->pair || completion->completions.size() == 2);
  } else if (const auto* chat = std::get_if<ChatRecord>(&*record)) {
    MUST(chat->messages.back()["role"] == "assistant");
  }
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zoexport;
  fuzz::Numbers numbers(data, size);
  CallLimits limits{1u + numbers.byte() % 8, 1, 1, 1u + numbers.byte() % 16, 1};
  limits.min_labels = 1u + numbers.byte() % limits.max_labels;
  const uint8_t kind = numbers.byte();
  static fuzz::File file("dataset");
  Dataset dataset;
  const std::string path = file.write(numbers.data(), numbers.size());
  (void)for_lines(path, check_records);
  if (!dataset.load(path).ok()) {
    MUST(dataset.size() == 0);
    return 0;
  }
  MUST(dataset.size() > 0 && dataset.longest() > 0);
  limits.max_length = dataset.longest() + kind % 3;
  limits.min_length = kind % 2 == 0 ? 1 : limits.max_length;
  if (kind & 4) {
    limits.pad_token = 7;
  }
  if (kind & 8) {
    limits.lengths = {1, limits.max_length};
  }
  std::vector<uint64_t> indices(dataset.size());
  std::iota(indices.begin(), indices.end(), 0);
  const auto layout = lay_out(dataset, indices.data(), indices.size(), kind & 16, limits);
  MUST(layout.ok() && layout->examples.size() == dataset.size());
  size_t entries = 0;
  for (const Call& call : layout->calls) {
    MUST(call.tokens.size() == size_t{limits.rows} * call.length && call.label_tokens.size() >= limits.min_labels);
    MUST(call.owners.size() <= limits.max_labels);
    entries += call.owners.size();
    for (const int64_t position : call.label_positions) {
      MUST(position >= 0 && static_cast<size_t>(position) < call.tokens.size());
    }
  }
  MUST(entries == std::accumulate(layout->labels.begin(), layout->labels.end(), size_t{0}));
  CandidateScores scores(*layout);
  for (const Call& call : layout->calls) {
    const std::vector<float> logprobs(call.label_tokens.size(), -1.5f);
    scores.add(call, logprobs.data());
  }
  (void)scores.mean_loss({kind & 32 ? ZO_LOSS_FULL : ZO_LOSS_CHOICES, 0});
  return 0;
}
