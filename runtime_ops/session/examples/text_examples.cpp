#include "session/examples/text_examples.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <set>

#include "session/examples/packing.h"
#include "session/losses.h"

namespace zoexport {
namespace {

using Tokens = std::vector<int64_t>;

constexpr size_t kMostUnused = 8;

using Span = std::pair<size_t, size_t>;  // from the first token up to the one behind the last

// Tokens, and those among them that are learned: the completion, or of a conversation its answers.
struct Sequence {
  Tokens prompt = {};
  Tokens completion = {};
  std::vector<Span> answers = {};  // of both together
  bool last_turn_only = false;     // although there are answers before
  bool merged = false;             // a token reaches from the prompt into the completion
};

// The failure of a text of this line.
Failure at(const std::string& where, Failure failure) {
  failure.where = where + ", " + failure.where;
  return failure;
}

size_t common_prefix(const Tokens& a, const Tokens& b) {
  const auto least = static_cast<ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + least, b.begin()).first - a.begin());
}

size_t longest(const std::vector<Sequence>& sequences) {
  size_t most = 0;
  for (const Sequence& one : sequences) {
    most = std::max(most, one.completion.size());
  }
  return most;
}

// A prompt with one mask, in the parts that shortening knows.
class MaskedPrompt {
 public:
  MaskedPrompt(const Tokens& tokens, size_t mask, const Tokenizer& tokenizer) {
    const auto special = [&](int64_t id) { return tokenizer.special(id); };
    const auto place = tokens.begin() + static_cast<ptrdiff_t>(mask);
    const auto lead = std::find_if_not(tokens.begin(), place, special);
    const auto close = std::find_if_not(tokens.rbegin(), std::make_reverse_iterator(place + 1), special).base();
    lead_.assign(tokens.begin(), lead);
    before_.assign(lead, place);
    after_.assign(place + 1, close);
    close_.assign(close, tokens.end());
  }

  // Drop tokens until at most `room` are left, apart from the masks; false if the special tokens alone exceed it.
  bool shorten(size_t room, bool& shortened) {
    const size_t all = lead_.size() + before_.size() + after_.size() + close_.size();
    const size_t excess = all - std::min(all, room);
    shortened = excess > 0;
    if (excess > before_.size() + after_.size()) {
      return false;
    }
    const size_t first = std::min(excess, before_.size());
    before_.erase(before_.begin(), before_.begin() + static_cast<ptrdiff_t>(first));
    after_.resize(after_.size() - (excess - first));
    return true;
  }

  void fill(const Tokens& completion, int64_t mask, Tokens& tokens, Tokens& labels) const {
    tokens = lead_;
    tokens.insert(tokens.end(), before_.begin(), before_.end());
    labels.assign(tokens.size(), kNoLabel);
    tokens.insert(tokens.end(), completion.size(), mask);
    labels.insert(labels.end(), completion.begin(), completion.end());
    tokens.insert(tokens.end(), after_.begin(), after_.end());
    tokens.insert(tokens.end(), close_.begin(), close_.end());
    labels.resize(tokens.size(), kNoLabel);
  }

 private:
  Tokens lead_, before_, after_, close_;  // special tokens at both ends, and what lies between them and the mask
};

class Reader {
 public:
  Reader(const Tokenizer& tokenizer, const TextSpec& spec, const ReadOptions& options)
      : tokenizer_(tokenizer), spec_(spec), options_(options), chat_(Chat::open(spec)) {}

  Result<TextExample> example(const std::string& line, const std::string& where) {
    std::set<std::string> unused;
    ZO_ASSIGN(parsed, parse_record(line, where, &unused));
    Record record = in_words(std::move(parsed));
    const auto* completion = std::get_if<CompletionRecord>(&record);
    ZO_TRY(check_compared(record, where));
    if (options_.masked) {
      ZO_TRY(check_masked(completion, where));
    }
    ZO_ASSIGN(sequences, sequences_of(record, where));
    ZO_TRY(check_vocabulary(sequences, where));
    if (!options_.masked) {
      ZO_TRY(check_learned(sequences, where));
    }
    const bool ends = options_.append_eos && !options_.masked && must_end(record);
    if (ends && spec_.eos_token) {
      append_end(sequences);
    }
    const bool divides = options_.pack && std::holds_alternative<TextRecord>(record);
    const size_t most = divides ? SIZE_MAX : options_.max_length;
    ZO_ASSIGN(made, options_.masked ? at_masks(sequences, where) : after_prompts(sequences, most));
    made.divides = divides;
    made.endless = ends && !spec_.eos_token;
    std::set<Tokens> different;
    for (const Sequence& one : sequences) {
      different.insert(one.completion);
    }
    if (different.size() < sequences.size()) {
      const std::string what = is_pair(record) ? "answers" : "choices";
      return unusable(where, what + " that the tokenizer turns into the same tokens",
                      what + " that differ in their tokens", "Choose other words for the " + what + ".");
    }
    made.target = completion == nullptr ? 0 : completion->target;
    made.record = std::move(record);
    made.unused = std::move(unused);
    made.last_turn_only = sequences[0].last_turn_only;
    made.merged = std::any_of(sequences.begin(), sequences.end(), [](const Sequence& one) { return one.merged; });
    return made;
  }

 private:
  // An instruction as a conversation, or without a chat template as the text that Stanford Alpaca trained on.
  Record in_words(Record record) const {
    const auto* given = std::get_if<InstructionRecord>(&record);
    if (given == nullptr) {
      return record;
    }
    if (spec_.chat) {
      return ChatRecord{{message("user", asked(*given)), message("assistant", given->output)}, std::nullopt, {}};
    }
    const std::string about = given->input.empty() ? "" : ", paired with an input that provides further context";
    const std::string input = given->input.empty() ? "" : "### Input:\n" + given->input + "\n\n";
    const std::string prompt = "Below is an instruction that describes a task" + about +
                               ". Write a response that appropriately completes the request.\n\n### Instruction:\n" +
                               given->instruction + "\n\n" + input + "### Response:\n";
    return CompletionRecord{prompt, {given->output}, 0, false};
  }

  static bool is_pair(const Record& record) {
    const auto* completion = std::get_if<CompletionRecord>(&record);
    const auto* chat = std::get_if<ChatRecord>(&record);
    return (completion != nullptr && completion->pair) || (chat != nullptr && chat->rejected);
  }

  // Check that the example has the candidates that the loss compares. Two choices are also a pair.
  Status check_compared(const Record& record, const std::string& where) const {
    const auto* completion = std::get_if<CompletionRecord>(&record);
    const size_t compared = is_pair(record) ? 2 : completion != nullptr ? completion->completions.size() : 1;
    if (of_pairs(options_.loss) && compared != 2) {
      return unusable(where, "no 'chosen' and 'rejected'",
                      "both in every example, since the loss is of pairs of answers",
                      "Add them to the example, or train with loss=full.");
    }
    if (options_.loss == ZO_LOSS_CHOICES && compared < 2) {
      return unusable(where, "no 'choices'", "'choices' in every example, since the loss is over an example's choices",
                      "Add 'choices' to the example, or train with loss=full.");
    }
    return {};
  }

  // Return whether the end of the example is learned; choices are compared without it.
  bool must_end(const Record& record) const {
    const auto* completion = std::get_if<CompletionRecord>(&record);
    const bool plain = completion != nullptr && (completion->pair || completion->completions.size() == 1);
    return options_.loss != ZO_LOSS_CHOICES && (plain || std::holds_alternative<TextRecord>(record));
  }

  void append_end(std::vector<Sequence>& sequences) const {
    for (Sequence& one : sequences) {
      if (!spec_.ends(one.completion.back())) {
        one.completion.push_back(*spec_.eos_token);
      }
    }
  }

  Result<Tokens> encode(const std::string& text, Special special, const std::string& where) const {
    auto tokens = tokenizer_.encode(text, special);
    return tokens.ok() ? std::move(tokens) : Result<Tokens>(at(where, tokens.failure()));
  }

  // A prompt and what follows it as the tokens of the whole text. A token that reaches across the border belongs to the
  // completion.
  Result<Sequence> completed(const std::string& prompt, const Tokens& before, const std::string& text,
                             const std::string& where) const {
    ZO_ASSIGN(whole, encode(prompt + text, Special::kBefore, where));
    const auto border = whole.begin() + static_cast<ptrdiff_t>(common_prefix(whole, before));
    if (border == whole.begin() && !before.empty()) {  // one token is all: apart, something precedes what is learned
      ZO_ASSIGN(after, encode(text, Special::kNone, where));
      return Sequence{before, std::move(after)};
    }
    const bool merged = border != whole.begin() + static_cast<ptrdiff_t>(before.size());
    return Sequence{{whole.begin(), border}, {border, whole.end()}, {}, false, merged};
  }

  Result<std::vector<Sequence>> sequences_of(const Record& record, const std::string& where) const {
    std::vector<Sequence> sequences;
    if (const auto* text = std::get_if<TextRecord>(&record)) {
      const bool without_end = spec_.eos_token || !options_.append_eos;
      ZO_ASSIGN(tokens, encode(text->text, without_end ? Special::kBefore : Special::kAll, where));
      sequences.push_back({{}, std::move(tokens)});
    } else if (const auto* completion = std::get_if<CompletionRecord>(&record)) {
      ZO_ASSIGN(prompt, encode(completion->prompt, options_.masked ? Special::kAll : Special::kBefore, where));
      for (const std::string& one : completion->completions) {
        if (options_.masked) {
          ZO_ASSIGN(tokens, encode(one, Special::kNone, where));
          sequences.push_back({prompt, std::move(tokens)});
        } else {
          ZO_ASSIGN(sequence, completed(completion->prompt, prompt, one, where));
          sequences.push_back(std::move(sequence));
        }
      }
    } else {
      const auto& chat = std::get<ChatRecord>(record);
      ZO_ASSIGN(turns, conversation(chat.messages, chat.tools, !options_.mask_history && !chat.rejected, where));
      sequences.push_back(std::move(turns));
      if (chat.rejected) {
        ZO_ASSIGN(rejected, conversation(*chat.rejected, chat.tools, false, where));
        sequences.push_back(std::move(rejected));
      }
    }
    return sequences;
  }

  // The first `count` messages as text.
  Result<jinja::Rendered> written(const std::vector<Message>& messages, size_t count, const Message& tools, bool reply,
                                  std::time_t now) const {
    return (*chat_).write({messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count)}, tools, reply, now);
  }

  // The template writes the special tokens itself. A token that reaches across the begin of the last turn belongs to the turn:
  // it holds characters that must be learned. `all`: the answers before the last turn are learned too.
  Result<Sequence> conversation(const std::vector<Message>& messages, const Message& tools, bool all,
                                const std::string& where) const {
    if (!chat_.ok()) {
      return at(where, chat_.failure());
    }
    const std::time_t now = std::time(nullptr);
    const auto whole_text = written(messages, messages.size(), tools, /*reply=*/false, now);
    if (!whole_text.ok()) {
      return at(where, whole_text.failure());
    }
    const auto prompt = written(messages, messages.size() - 1, tools, /*reply=*/true, now);
    ZO_ASSIGN(whole, encode(whole_text->text, Special::kNone, where));
    ZO_ASSIGN(first, encode(prompt.ok() ? prompt->text : std::string(), Special::kNone, where));
    size_t begin = common_prefix(whole, first);
    Sequence made;
    if (whole_text->generated.empty()) {
      if (all) {
        const auto earlier = earlier_answers(messages, tools, whole_text->text, now);
        ZO_ASSIGN(answers, in_tokens(earlier, whole_text->text, whole, where));
        made.answers = std::move(answers);
        for (size_t i = 1; i + 1 < messages.size() && made.answers.empty(); ++i) {
          made.last_turn_only = made.last_turn_only || messages[i]["role"] == "assistant";
        }
      }
      made.answers.emplace_back(begin, whole.size());
    } else {
      // The spans that a template marks as the assistant's (transformers' return_assistant_tokens_mask).
      ZO_ASSIGN(answers, in_tokens(whole_text->generated, whole_text->text, whole, where));
      const size_t from = all ? 0 : begin;
      std::copy_if(answers.begin(), answers.end(), std::back_inserter(made.answers),
                   [&](const Span& one) { return one.first < one.second && one.second > from; });
      begin = made.answers.empty() ? whole.size() : std::max(begin, made.answers.back().first);
    }
    made.prompt.assign(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(begin));
    made.completion.assign(whole.begin() + static_cast<ptrdiff_t>(begin), whole.end());
    return made;
  }

  // Pieces of a text, by the bytes of their begin and end, among its tokens.
  Result<std::vector<Span>> in_tokens(const std::vector<Span>& pieces, const std::string& text, const Tokens& whole,
                                      const std::string& where) const {
    std::vector<Span> found;
    for (const auto& [begin, end] : pieces) {
      ZO_ASSIGN(before, encode(text.substr(0, begin), Special::kNone, where));
      ZO_ASSIGN(with, encode(text.substr(0, end), Special::kNone, where));
      found.emplace_back(common_prefix(whole, before), common_prefix(whole, with));
    }
    return found;
  }

  // Return the bytes of a conversation's answers before the last turn. Empty if the template writes a turn differently
  // once others follow it. A greeting may be left out, as its begin is often unknown.
  std::vector<Span> earlier_answers(const std::vector<Message>& messages, const Message& tools, const std::string& text,
                                    std::time_t now) const {
    std::vector<Span> answers;
    for (size_t i = 0; i + 1 < messages.size(); ++i) {
      if (messages[i]["role"] != "assistant") {
        continue;
      }
      const auto before = written(messages, i, tools, /*reply=*/true, now);
      const auto with = written(messages, i + 1, tools, /*reply=*/false, now);
      const auto begins_text = [&](const Result<jinja::Rendered>& part) {
        return part.ok() && text.compare(0, part->text.size(), part->text) == 0;
      };
      if (begins_text(before) && begins_text(with)) {
        answers.emplace_back(before->text.size(), with->text.size());
      } else if (i > 0) {
        return {};
      }
    }
    return answers;
  }

  Status check_vocabulary(const std::vector<Sequence>& sequences, const std::string& where) const {
    for (const Sequence& one : sequences) {
      for (const Tokens* tokens : {&one.prompt, &one.completion}) {
        const auto largest = std::max_element(tokens->begin(), tokens->end());
        if (largest != tokens->end() && *largest >= options_.vocab_size) {
          return unusable(where, "the token with id " + std::to_string(*largest),
                          "ids below the model's vocabulary size " + std::to_string(options_.vocab_size),
                          "Use the tokenizer that belongs to the model, or remove that token from the text.");
        }
      }
    }
    return {};
  }

  // The end token alone is nothing to learn.
  static Status check_learned(const std::vector<Sequence>& sequences, const std::string& where) {
    for (const Sequence& one : sequences) {
      const size_t all = one.prompt.size() + one.completion.size();
      if (one.completion.empty() || all < 2) {
        return unusable(where, std::to_string(all) + " tokens, none of which can be predicted",
                        "at least one token to be learned that another token precedes",
                        "Give a longer text, or a prompt.");
      }
    }
    return {};
  }

  // `most`: tokens of a sequence; what is above is shortened.
  static TextExample after_prompts(const std::vector<Sequence>& sequences, size_t most) {
    TextExample made;
    // A choice of one token needs one of its prompt, however long the others are.
    const bool short_one =
        std::any_of(sequences.begin(), sequences.end(), [](const Sequence& one) { return one.completion.size() == 1; });
    const size_t room = std::max<size_t>(most - std::min(most, longest(sequences)), short_one ? 1 : 0);
    for (const Sequence& one : sequences) {
      const size_t kept = std::min(one.prompt.size(), room), cut = one.prompt.size() - kept;
      Tokens tokens(one.prompt.begin() + static_cast<ptrdiff_t>(cut), one.prompt.end());
      tokens.insert(tokens.end(), one.completion.begin(), one.completion.end());
      const size_t all = one.prompt.size() + one.completion.size();
      tokens.resize(std::min(tokens.size(), most));
      made.length = std::max(made.length, all);
      made.shortened = made.shortened || tokens.size() < all;
      // A label for each learned token, at the position of the token before it; the first token has none.
      Tokens labels(tokens.size(), kNoLabel);
      const auto learn = [&](size_t from, size_t to) {
        for (size_t at = std::max<size_t>(from, 1); at < std::min(to, tokens.size()); ++at) {
          labels[at - 1] = tokens[at];
        }
      };
      for (const Span& answer : one.answers) {
        learn(std::max(answer.first, cut) - cut, std::max(answer.second, cut) - cut);
      }
      if (one.answers.empty()) {
        learn(kept, tokens.size());
      }
      made.tokens.push_back(std::move(tokens));
      made.labels.push_back(std::move(labels));
    }
    return made;
  }

  Status check_masked(const CompletionRecord* record, const std::string& where) const {
    if (!spec_.mask) {
      return Failure{ZO_BUNDLE_ERROR, "tokenizer of the bundle", "no mask token",
                     "the tokenizer of a masked language model", "Compile the model with its own tokenizer."};
    }
    const std::string& mask = spec_.mask->text;
    const std::string fix = R"(Write {"prompt": "... It was )" + mask +
                            R"(.", "completion": "great"}, with "choices" where some are compared.)";
    if (record == nullptr) {
      return unusable(where, "an example without a prompt, for a masked language model",
                      "a prompt in which " + mask + " stands for the completion", fix);
    }
    size_t count = 0;
    for (size_t place = record->prompt.find(mask); place != std::string::npos;
         place = record->prompt.find(mask, place + mask.size())) {
      ++count;
    }
    if (count != 1) {
      return unusable(where,
                      (count == 0 ? "no" : std::to_string(count)) + std::string(" mask token") +
                          (count > 1 ? "s" : "") + " in the prompt",
                      mask + " once, where the completion stands", fix);
    }
    return {};
  }

  Result<TextExample> at_masks(const std::vector<Sequence>& sequences, const std::string& where) const {
    const Tokens& prompt = sequences[0].prompt;
    const auto place = std::find(prompt.begin(), prompt.end(), spec_.mask->id);
    if (std::count(prompt.begin(), prompt.end(), spec_.mask->id) != 1) {
      return unusable(where, "a prompt whose " + spec_.mask->text + " the tokenizer does not take for its mask token",
                      "one mask token among its tokens", "Write " + spec_.mask->text + " as a word of its own.");
    }
    MaskedPrompt masked(prompt, static_cast<size_t>(place - prompt.begin()), tokenizer_);
    TextExample made;
    const size_t most = longest(sequences);
    made.length = prompt.size() - 1 + most;
    if (!masked.shorten(options_.max_length - std::min(options_.max_length, most), made.shortened) ||
        most > options_.max_length) {
      return unusable(where, "a completion that leaves no room for the tokenizer's special tokens",
                      "masks and special tokens that fit max_length together",
                      "Give a shorter completion, or compile with a larger max_length.");
    }
    for (const Sequence& one : sequences) {
      made.tokens.emplace_back();
      made.labels.emplace_back();
      masked.fill(one.completion, spec_.mask->id, made.tokens.back(), made.labels.back());
    }
    return made;
  }

  const Tokenizer& tokenizer_;
  const TextSpec& spec_;
  const ReadOptions& options_;
  const Result<Chat> chat_;  // of a model without a chat template why it has none
};

}  // namespace

std::string ReadReport::note(size_t max_length) const {
  std::string text;
  if (shortened > 0) {
    text = std::to_string(shortened) + " of " + std::to_string(examples) + " examples " +
           (shortened == 1 ? "is longer than max_length=" : "are longer than max_length=") +
           std::to_string(max_length) + (shortened == 1 ? " and is shortened. " : " and are shortened. ") +
           "Compile with a larger max_length: the longest of them has " + std::to_string(needed) + " tokens.";
  }
  if (endless > 0) {
    text +=
        std::string(text.empty() ? "" : " ") +
        "Texts and completions are trained without an end token, as the bundle has none: generated text ends only at "
        "a stop string or a token limit.";
  }
  if (last_turn_only > 0) {
    text += std::string(text.empty() ? "" : " ") + "Of " + std::to_string(last_turn_only) +
            (last_turn_only == 1 ? " conversation" : " conversations") +
            " the last answer alone is learned, as the model's chat template writes earlier ones otherwise.";
  }
  if (!unused.empty()) {
    std::string keys;
    for (const std::string& key : unused) {
      keys += (keys.empty() ? "'" : ", '") + key + "'";
    }
    text += std::string(text.empty() ? "" : " ") + "Keys of the examples that are not used: " + keys + ".";
  }
  return text;
}

Status TextExample::add_to(Dataset& dataset, const std::string& where) const {
  std::vector<zo_candidate> candidates;
  candidates.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    candidates.push_back({tokens[i].data(), labels[i].data(), tokens[i].size()});
  }
  return dataset.add(candidates.data(), candidates.size(), target, where);
}

Status for_examples(const std::string& path, const Tokenizer& tokenizer, const TextSpec& spec,
                    const ReadOptions& options, const OnExample& take, const GoOn& go_on) {
  Reader reader(tokenizer, spec, options);
  const auto take_line = [&](const std::string& line, size_t number) {
    const std::string where = path + ":" + std::to_string(number);
    return take(reader.example(line, where), number, where);
  };
  return for_lines(path, take_line, go_on);
}

Result<ReadReport> read_examples(const std::string& path, const Tokenizer& tokenizer, const TextSpec& spec,
                                 const ReadOptions& options, Dataset& dataset, const GoOn& go_on) {
  RowPacker packer(options.max_length, spec, tokenizer, dataset);
  ReadReport report;
  uint64_t conversations = 0;
  const auto take = [&](Result<TextExample> example, size_t, const std::string& where) -> Status {
    ZO_ASSIGN(made, std::move(example));
    ++report.examples;
    conversations += std::holds_alternative<ChatRecord>(made.record) ? 1 : 0;
    report.shortened += made.shortened ? 1 : 0;
    report.endless += made.endless ? 1 : 0;
    report.last_turn_only += made.last_turn_only ? 1 : 0;
    if (report.unused.size() < kMostUnused) {
      report.unused.insert(made.unused.begin(), made.unused.end());
    }
    report.longest = std::max<uint64_t>(report.longest, made.length);
    report.needed = made.shortened ? std::max<uint64_t>(report.needed, made.length) : report.needed;
    if (options.pack && made.tokens.size() == 1) {
      return packer.add(made.tokens[0], made.labels[0], made.divides, where);
    }
    return made.add_to(dataset, where);
  };
  ZO_TRY(for_examples(path, tokenizer, spec, options, take, go_on));
  ZO_TRY(packer.finish());
  dataset.note_conversations(conversations);
  return report;
}

}  // namespace zoexport
