// Verbs of the C ABI in any order: with options of any keys and values and null pointers anywhere, each is done or refused with
// one message. Every array is memory of exactly its size, so that a sanitizer sees accesses beside it.
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>

#include "folder.h"

namespace {

using nlohmann::json;

constexpr uint64_t kMostExamples = 4096;

// An array of exactly so many, or null.
template <typename T>
class Array {
 public:
  Array(fuzz::Numbers& numbers, size_t count) : count_(count), null_(numbers.byte() == 0xFF) {
    values_ = std::make_unique<T[]>(count);
    for (size_t i = 0; i < count; ++i) {
      values_[i] = static_cast<T>(numbers.number());
    }
  }
  T* get() { return null_ ? nullptr : values_.get(); }
  size_t count() const { return count_; }

 private:
  size_t count_;
  bool null_;
  std::unique_ptr<T[]> values_;
};

class Host {
 public:
  Host(fuzz::Numbers& numbers, const fuzz::Folder& folder) : numbers_(numbers), folder_(folder) {}
  ~Host() {
    zo_free(text_);
    zo_session_close(session_);
    zo_dataset_free(dataset_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void act() {
    const uint8_t chosen = numbers_.byte();
    const uint8_t verb = chosen < 0xF0 ? chosen % 24 : 24 + chosen % 3;
    zo_error* error = numbers_.byte() == 0xFF ? nullptr : &error_;
    error_ = {};
    const zo_status status = call(verb, error);
    if (error != nullptr) {
      fuzz::check(status, error_);
    }
  }

 private:
  zo_status call(uint8_t verb, zo_error* error) {
    switch (verb) {
      case 0:
        return open(error);
      case 1:
        if (numbers_.byte() % 4 == 0) {
          zo_session_close(session_);
          session_ = nullptr;
        }
        return ZO_OK;
      case 2:
        return zo_session_info(session_, result(), error);
      case 3:
        return zo_session_slots(session_, result(), error);
      case 4:
        return zo_session_costs(session_, result(), error);
      case 5:
        return zo_session_evaluations(session_, result(), error);
      case 6:
        return zo_session_forget(session_, error);
      case 7:
        return zo_session_attach(session_, path(), options({"read_only", "seed", "recover", "change_settings", "last"}),
                                 error);
      case 8:
        return zo_state_describe(path(), result(), error);
      case 9:
        return zo_session_settings(session_, result(), error);
      case 10:
        return configure(error);
      case 11:
        return add(error);
      case 12: {
        const size_t bytes = std::min<size_t>(numbers_.byte(), numbers_.size());
        std::filesystem::remove_all(folder_.file("lines"));  // a state, where an attach was given this path
        folder_.write("lines", fuzz::text(numbers_.data(), bytes));
        numbers_.skip(bytes);
        const std::string lines = folder_.file("lines");
        return zo_dataset_load(dataset_, numbers_.byte() == 0xFF ? nullptr : lines.c_str(), error);
      }
      case 13: {
        Array<uint64_t> indices(numbers_, numbers_.byte() % 8);
        zo_step step{};
        return few() ? zo_session_step(session_, dataset_, indices.get(), indices.count(),
                                       numbers_.byte() == 0xFF ? nullptr : &step, error)
                     : ZO_OK;
      }
      case 14: {
        const zo_train_callbacks callbacks = {this, on_progress, on_evaluation, nullptr};
        const char* const given = options({"steps", "eval_every", "patience", "keep"});
        return few() ? zo_session_train(session_, dataset_, numbers_.byte() % 4 == 0 ? dataset_ : nullptr, given,
                                        numbers_.byte() == 0xFF ? nullptr : &callbacks, error)
                     : ZO_OK;
      }
      case 15:
        return numbers_.byte() % 2 == 0 ? zo_session_evaluate(session_, dataset_, nullptr, nullptr, result(), error)
                                        : zo_session_score(session_, dataset_, nullptr, nullptr, result(), error);
      case 16: {
        Array<float> values(numbers_, count());
        return zo_session_read_slot(session_, name(), numbers_.byte() % 4, values.get(), 4 * values.count(), error);
      }
      case 17: {
        Array<float> values(numbers_, count());
        return zo_session_write_slot(session_, name(), values.get(), 4 * values.count(), error);
      }
      case 18: {
        Array<float> values(numbers_, count());
        return zo_session_write_adapter(session_, name(), name(), values.get(), 4 * values.count(), error);
      }
      case 19: {
        Array<float> values(numbers_, count());
        const auto updates = static_cast<uint64_t>(numbers_.number());
        return zo_session_replay_slot(session_, name(), updates, values.get(), 4 * values.count(), error);
      }
      case 20: {
        zo_record record{};
        Array<float> gradients(numbers_, queries());
        return zo_session_record(session_, static_cast<uint64_t>(numbers_.number()),
                                 numbers_.byte() == 0xFF ? nullptr : &record, gradients.get(), error);
      }
      case 21:
        return follow(error);
      case 22:
        return zo_session_save(session_, error);
      case 24:
        return zo_session_export_adapter(session_, options({"format", "outtype", "replace"}), adapter_path(), error);
      case 25:
        return write_adapter(error);
      case 26:
        return read_adapter(error);
      default:
        noise();
        return ZO_OK;
    }
  }

  // Where a verb gives JSON, which is freed with the next one.
  char** result() {
    (void)fuzz::taken(std::exchange(text_, nullptr));
    return numbers_.byte() == 0xFF ? nullptr : &text_;
  }

  // Options with some of these keys, of values of any type; or a text of any kind, or null.
  const char* options(std::initializer_list<const char*> keys) {
    const uint8_t form = numbers_.byte();
    if (form == 0xFF) {
      return nullptr;
    }
    if (form == 0xFE) {
      const size_t bytes = std::min<size_t>(numbers_.byte(), numbers_.size());
      options_ = fuzz::text(numbers_.data(), bytes);
      numbers_.skip(bytes);
      return options_.c_str();
    }
    json given = json::object();
    for (uint8_t left = form % 4; left > 0; --left) {
      const uint8_t which = numbers_.byte();
      given[which == 0xFF ? "none" : *(keys.begin() + which % keys.size())] = value();
    }
    options_ = given.dump();
    return options_.c_str();
  }

  json value() {
    const json words[] = {"peft",   "gguf",    "f16", "q8_0",    "last", "best",
                          "linear", "choices", "dpo", "forward", "on",   ""};
    switch (numbers_.byte() % 8) {
      case 0:
        return numbers_.byte() % 2 == 0;
      case 1:
        return words[numbers_.byte() % std::size(words)];
      case 2:
        return json::array({numbers_.number(), "text"});
      case 3:
        return nullptr;
      case 4:
        return 1.0 / (1 + numbers_.byte());
      case 5:
        return -1;
      case 6:
        return numbers_.byte();
      default:
        return static_cast<uint64_t>(numbers_.number());
    }
  }

  // An adapter's layers, with matrices of their sizes.
  json layers(bool weights, std::vector<std::unique_ptr<Array<float>>>& matrices) {
    const char* const names[] = {"blk.0.attn_q.weight", "b", "\xC3\xA9", ""};
    json list = json::array();
    for (uint8_t left = numbers_.byte() % 4; left > 0; --left) {
      const uint64_t inputs = numbers_.byte() % 40, rank = numbers_.byte() % 34, outputs = numbers_.byte() % 40;
      const bool odd = numbers_.byte() >= 0xF0;  // sizes that are refused, for no matrix has them
      matrices.push_back(std::make_unique<Array<float>>(numbers_, odd ? 1 : inputs * rank));
      matrices.push_back(std::make_unique<Array<float>>(numbers_, odd ? 1 : rank * outputs));
      json layer = {
          {"inputs", odd ? uint64_t{1} << 31 : inputs}, {"rank", rank}, {"outputs", odd ? UINT64_MAX : outputs}};
      layer[weights ? "weight" : "module"] = names[numbers_.byte() % std::size(names)];
      const uint8_t order = numbers_.byte() % 4;
      if (order > 0) {
        layer[order == 1 ? "pairs" : order == 2 ? "groups" : "width"] = value();
      }
      list.push_back(std::move(layer));
    }
    return list;
  }

  zo_status write_adapter(zo_error* error) {
    std::vector<std::unique_ptr<Array<float>>> matrices;
    const bool gguf = numbers_.byte() % 2 == 0;
    json given = {{"format", gguf ? "gguf" : "peft"}, {"layers", layers(gguf, matrices)}, {"alpha", value()}};
    given[gguf ? "architecture" : "description"] = numbers_.byte() == 0xFF ? json() : json("{}");
    given["outtype"] = value();
    std::vector<const float*> pointers;
    for (const auto& matrix : matrices) {
      pointers.push_back(matrix->get());
    }
    return zo_adapter_write(given.dump().c_str(), pointers.data(), pointers.size(), adapter_path(), error);
  }

  zo_status read_adapter(zo_error* error) {
    std::vector<std::unique_ptr<Array<float>>> matrices;
    json given = {{"layers", layers(false, matrices)}};
    given["description"] = R"({"r": 2, "lora_alpha": )" + std::to_string(numbers_.number()) + "}";
    std::vector<float*> pointers;
    for (const auto& matrix : matrices) {
      pointers.push_back(matrix->get());
    }
    return zo_adapter_read(adapter_path(), given.dump().c_str(), pointers.data(), pointers.size(), error);
  }

  const char* adapter_path() {
    const uint8_t which = numbers_.byte();
    state_ = which < 0xE0 ? folder_.file("adapter") : which < 0xF0 ? folder_.file("lines") : std::string();
    return which == 0xFF ? nullptr : state_.c_str();
  }

  zo_status open(zo_error* error) {
    zo_session_close(session_);
    session_ = nullptr;
    const zo_engine engine{nullptr, numbers_.byte() == 0xFF ? nullptr : fuzz::run_program};
    json given = {{"cache", ""}};
    if (numbers_.byte() % 4 == 0) {
      given["threads"] = value();
      given["verify"] = value();
    }
    const uint8_t trust = numbers_.byte();
    const size_t bytes = trust < 0x20 ? std::min<size_t>(trust, numbers_.size()) : 0;
    if (trust < 0x20) {
      given["trusted_keys"] = json::array({fuzz::text(numbers_.data(), bytes)});
    }
    numbers_.skip(bytes);
    const std::string text = given.dump(-1, ' ', false, json::error_handler_t::replace);
    const uint8_t which = numbers_.byte();
    const std::string bundle =
        std::string(ZOEXPORT_SOURCE_DIR "/tests/fuzz/bundles/") + (which % 2 == 0 ? "zeroth" : "first");
    const zo_status status = zo_session_open(which == 0xFF   ? nullptr
                                             : which == 0xFE ? folder_.path().c_str()
                                                             : bundle.c_str(),
                                             text.c_str(), &engine, which == 0xFD ? nullptr : &session_, error);
    MUST((status == ZO_OK) == (session_ != nullptr));
    return status;
  }

  zo_status configure(zo_error* error) {
    return zo_session_configure(
        session_,
        options({"learning_rate", "eps", "seed", "batch_size", "gradient_accumulation_steps", "warmup_steps", "loss",
                 "lr_scheduler_type", "total_steps", "momentum", "weight_decay", "max_grad_norm", "difference",
                 "choices", "dpo.beta", "pack", "activation_cache_mb", "hidden_state_cache_mb", "rows"}),
        error);
  }

  zo_status add(zo_error* error) {
    if (dataset_ == nullptr || numbers_.byte() == 0xFF) {
      zo_dataset_free(dataset_);
      dataset_ = zo_dataset_new();
    }
    std::vector<std::unique_ptr<Array<int64_t>>> arrays;
    const size_t count = numbers_.byte() % 4;
    auto candidates = std::make_unique<zo_candidate[]>(count);
    for (size_t i = 0; i < count; ++i) {
      const size_t length = numbers_.byte() % 10;
      arrays.push_back(std::make_unique<Array<int64_t>>(numbers_, length));
      candidates[i].tokens = arrays.back()->get();
      arrays.push_back(std::make_unique<Array<int64_t>>(numbers_, length));
      candidates[i].labels = arrays.back()->get();
      candidates[i].length = length;
    }
    const uint64_t before = zo_dataset_size(dataset_);
    const auto target = static_cast<size_t>(numbers_.number());
    const zo_status status =
        zo_dataset_add(dataset_, numbers_.byte() == 0xFF ? nullptr : candidates.get(), count, target, error);
    MUST(zo_dataset_size(dataset_) == before + (status == ZO_OK ? 1 : 0));
    return status;
  }

  zo_status follow(zo_error* error) {
    const size_t count = numbers_.byte() % 4;
    Array<float> gradients(numbers_, count * queries());
    std::vector<zo_record> records;
    for (size_t i = 0; i < count; ++i) {
      records.push_back(
          {steps() + i + (numbers_.byte() == 0xFF ? 1 : 0), 0.5f, 0.01f, static_cast<float>(numbers_.byte()) / 32.0f});
    }
    return zo_session_follow(session_, numbers_.byte() == 0xFF ? nullptr : records.data(), gradients.get(), count,
                             error);
  }

  void noise() {
    uint32_t words[4];
    const auto seed = static_cast<uint64_t>(numbers_.number());
    const auto id = static_cast<uint32_t>(numbers_.number()), step = static_cast<uint32_t>(numbers_.number());
    zo_rng_words(seed, id, step, id, step, words);
    const size_t count = numbers_.byte();
    const auto normals = std::make_unique<float[]>(count);
    zo_rng_normals(seed, id, step, id, static_cast<uint64_t>(numbers_.number()), count, normals.get());
    zo_rng_signs(seed, id, step, id, seed, count, normals.get());
    MUST(std::all_of(normals.get(), normals.get() + count, [](float sign) { return sign == 1 || sign == -1; }));
    const auto order = std::make_unique<uint32_t[]>(count);
    zo_rng_permutation(seed, step, static_cast<uint32_t>(count), order.get());
    std::sort(order.get(), order.get() + count);
    for (size_t i = 0; i < count; ++i) {
      MUST(order[i] == i);
    }
  }

  const char* name() {
    const uint8_t which = numbers_.byte();
    const char* const known[] = {"lora_B.proj", "lora_A.proj", "lora_B.0", "lora_A.1", "none", ""};
    return which == 0xFF ? nullptr : known[which % std::size(known)];
  }
  const char* path() {
    const uint8_t which = numbers_.byte();
    state_ = which < 0xE0 ? folder_.path() : which < 0xF0 ? folder_.file("lines") : std::string();
    return which == 0xFF ? nullptr : state_.c_str();
  }
  // Elements of a slot, mostly: 13 x 3 and 6 x 3 of one bundle, 8 x 2 of the other.
  size_t count() {
    const uint8_t which = numbers_.byte();
    const size_t elements[] = {39, 18, 16};
    return which < 0xC0 ? elements[which % 3] : which % 64;
  }
  uint64_t steps() const { return info().value("steps", uint64_t{0}); }
  uint32_t queries() const { return info().value("num_queries", 0u); }
  json info() const {
    char* text = nullptr;
    (void)zo_session_info(session_, &text, nullptr);
    const json found = fuzz::taken(text);
    return found.is_object() ? found : json::object();
  }
  // Whether a step takes a moment only.
  bool few() const {
    char* text = nullptr;
    (void)zo_session_settings(session_, &text, nullptr);
    const json settings = fuzz::taken(text);
    return !settings.is_object() ||
           settings.value("batch_size", 1.0) * settings.value("gradient_accumulation_steps", 1.0) <= kMostExamples;
  }
  static int32_t on_progress(void* user, const zo_progress* progress) {
    MUST(progress->step <= progress->total);
    auto* host = static_cast<Host*>(user);
    // From within a call, any other is refused.
    MUST(zo_session_save(host->session_, nullptr) == ZO_INVALID_ARGUMENT);
    return ++host->calls_ % 4 == 0;
  }
  static int32_t on_evaluation(void*, const char* text) {
    MUST(json::parse(text).is_object());
    return 0;
  }

  fuzz::Numbers& numbers_;
  const fuzz::Folder& folder_;
  zo_session* session_ = nullptr;
  zo_dataset* dataset_ = nullptr;
  zo_error error_{};
  std::string options_;
  char* text_ = nullptr;
  std::string state_;
  int calls_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder("abi");
  folder.clear();
  fuzz::Numbers numbers(data, size);
  Host host(numbers, folder);
  for (int verbs = 0; numbers.size() > 0 && verbs < 24; ++verbs) {
    host.act();
  }
  return 0;
}
