// Records to tokenized examples: tokens, labels, and what does not fit into the rows of a bundle.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "session/data/dataset.h"
#include "session/examples/records.h"
#include "session/manifest/text_spec.h"
#include "session/text/tokenizer.h"

namespace zoexport {

struct ReadOptions {
  size_t max_length = 0;
  int64_t vocab_size = 0;
  bool masked = false;          // of an encoder: prompts with a mask
  int32_t loss = ZO_LOSS_FULL;  // every example must have what it compares
  bool pack = false;            // sequences that are compared with nothing share rows; not of an encoder
  bool append_eos = true;       // texts and completions end with the bundle's end token
  bool mask_history = false;    // of a conversation the last answer alone is learned
};

struct ReadReport {
  uint64_t examples = 0;
  uint64_t shortened = 0;
  uint64_t longest = 0;          // tokens of the longest example, before it was shortened
  uint64_t needed = 0;           // tokens of the longest one that was shortened
  uint64_t endless = 0;          // texts and completions that got no end token, as the bundle has none
  uint64_t last_turn_only = 0;   // conversations of whose answers the last one alone could be learned
  std::set<std::string> unused;  // the first keys that do not belong to the examples' shapes

  // Return what a user who trains on the examples should know, in sentences; empty if there is nothing.
  std::string note(size_t max_length) const;
};

// The example of a line: one sequence, or several that are compared.
struct TextExample {
  Record record;
  std::vector<std::vector<int64_t>> tokens;
  std::vector<std::vector<int64_t>> labels;
  size_t target = 0;
  size_t length = 0;  // tokens of the longest sequence, before it was shortened
  bool shortened = false;
  bool endless = false;          // whether an end token is missing, as the bundle has none
  bool divides = false;          // whether it may go on in a second row
  std::set<std::string> unused;  // keys that do not belong to its shape
  bool last_turn_only = false;   // a conversation of whose answers the last one alone could be learned
  bool merged = false;           // a token reaches from the prompt into the completion

  Status add_to(Dataset& dataset, const std::string& where) const;
};

using OnExample = std::function<Status(Result<TextExample> example, size_t line, const std::string& where)>;

// Pass on the example of each line of a JSON Lines file, or why it cannot be used. `spec` is the manifest's; `go_on`
// gets the number of bytes read.
//
//   text                 every token but the first is predicted; what does not fit is cut off its end
//   prompt, completion   the tokens of the whole text; the completion is predicted. Each choice follows the same part
//                        of the prompt; a prompt that does not fit loses its beginning
//   prompt, chosen, rejected   the same with both answers as choices; the first is right
//   messages             as the model's chat template writes them; every answer is predicted, with `mask_history` or where the
//                        template writes earlier answers otherwise the last one, of a pair both last ones. So are
//                        {"conversations"} of {"from", "value"}, and {"prompt", "completion"} that are lists of messages
//   instruction, input, output   a conversation of two turns; without a chat template the text of Stanford Alpaca
//
// Texts, completions and both answers of a pair end with `spec`'s eos_token: it takes the place of what the tokenizer writes
// behind a text, follows no end token, and is cut off with an end that does not fit. It is not appended to choices, to what
// loss=choices compares, for encoders, and without `append_eos`.
Status for_examples(const std::string& path, const Tokenizer& tokenizer, const TextSpec& spec,
                    const ReadOptions& options, const OnExample& take, const GoOn& go_on);

// Appends these examples; on failure those before it.
//
// With `pack`, an example of one sequence becomes part of a row, and a text that does not fit goes on in the next row.
Result<ReadReport> read_examples(const std::string& path, const Tokenizer& tokenizer, const TextSpec& spec,
                                 const ReadOptions& options, Dataset& dataset, const GoOn& go_on);

}  // namespace zoexport
