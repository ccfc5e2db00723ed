// Verbs of the C ABI in any order: with structs of any size and null pointers anywhere, each is done or refused with one
// message. Every array and struct is memory of exactly its size, so that what lies beside it is seen.
#include <algorithm>
#include <memory>

#include "folder.h"

namespace {

constexpr size_t kLargestStruct = 4096;
constexpr uint64_t kMostExamples = 4096;

// A struct as a caller of another release may have it: larger, shorter, or of no size at all.
template <typename T>
class Struct {
 public:
  explicit Struct(fuzz::Numbers& numbers) {
    const uint8_t form = numbers.byte();
    size_ = form < 0xC0 ? sizeof(T) : form < 0xE0 ? numbers.byte() : static_cast<uint32_t>(numbers.number());
    null_ = form == 0xFF;
    // What a caller says that no struct has is refused before anything is read behind it.
    room_ = size_ > kLargestStruct ? sizeof(uint32_t) : std::max<size_t>(size_, sizeof(uint32_t));
    bytes_ = std::make_unique<uint8_t[]>(room_);
    std::memcpy(bytes_.get(), &size_, sizeof(size_));
  }
  // Sets a field, where the struct reaches so far.
  template <typename Field>
  void set(size_t offset, Field value) {
    if (offset + sizeof(Field) <= room_) {
      std::memcpy(bytes_.get() + offset, &value, sizeof(Field));
    }
  }
  void fill(size_t from, fuzz::Numbers& numbers) {
    for (size_t at = from; at < room_; ++at) {
      bytes_[at] = numbers.byte();
    }
  }
  T* get() { return null_ ? nullptr : reinterpret_cast<T*>(bytes_.get()); }

 private:
  uint32_t size_;
  bool null_;
  size_t room_;
  std::unique_ptr<uint8_t[]> bytes_;
};

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
    zo_session_close(session_);
    zo_dataset_free(dataset_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void act() {
    const uint8_t chosen = numbers_.byte();
    const uint8_t verb = chosen < 0xF0 ? chosen % 26 : 26 + chosen % 3;
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
      case 2: {
        Struct<zo_info> info(numbers_);
        return zo_session_info(session_, info.get(), error);
      }
      case 3: {
        Struct<zo_slot_info> slot(numbers_);
        return zo_session_slot(session_, static_cast<uint32_t>(numbers_.number()), slot.get(), error);
      }
      case 4: {
        Struct<zo_slot_info> slot(numbers_);
        return zo_session_find_slot(session_, name(), slot.get(), error);
      }
      case 5: {
        Struct<zo_program_cost> cost(numbers_);
        return zo_session_program_cost(session_, static_cast<uint32_t>(numbers_.number()), cost.get(), error);
      }
      case 6: {
        const auto seed = static_cast<uint64_t>(numbers_.number());
        return zo_session_attach(session_, path(), numbers_.byte() % 3, numbers_.byte() % 2 == 0 ? nullptr : &seed,
                                 error);
      }
      case 7: {
        const auto seed = static_cast<uint64_t>(numbers_.number());
        Struct<zo_attach_options> options(numbers_);
        options.fill(sizeof(uint32_t), numbers_);
        options.set(offsetof(zo_attach_options, mode), int32_t{numbers_.byte() % 3});
        options.set<const uint64_t*>(offsetof(zo_attach_options, seed), numbers_.byte() % 2 == 0 ? nullptr : &seed);
        return zo_session_attach_with(session_, path(), options.get(), error);
      }
      case 8: {
        size_t size = numbers_.byte() * 8u;
        Array<char> text(numbers_, size);
        return zo_state_describe(path(), text.get(), numbers_.byte() == 0xFF ? nullptr : &size, error);
      }
      case 9: {
        Struct<zo_run> run(numbers_);
        return zo_session_run(session_, run.get(), error);
      }
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
        Struct<zo_step> step(numbers_);
        return few() ? zo_session_step(session_, dataset_, indices.get(), indices.count(), step.get(), error) : ZO_OK;
      }
      case 14:
        return few() ? zo_session_train(session_, dataset_, static_cast<uint64_t>(numbers_.number()), on_progress, this,
                                        error)
                     : ZO_OK;
      case 15: {
        Struct<zo_evaluation> evaluation(numbers_);
        return zo_session_evaluate(session_, dataset_, nullptr, nullptr, evaluation.get(), error);
      }
      case 16: {
        Array<float> values(numbers_, count(sizeof(float)));
        return zo_session_read_slot(session_, name(), numbers_.byte() % 4, values.get(), values.count(), error);
      }
      case 17: {
        Array<uint8_t> values(numbers_, count(1));
        return zo_session_read_slot_bytes(session_, name(), numbers_.byte() % 4, values.get(), values.count(), error);
      }
      case 18: {
        Array<float> values(numbers_, count(sizeof(float)));
        return zo_session_write_slot(session_, name(), values.get(), values.count(), error);
      }
      case 19: {
        Array<uint8_t> values(numbers_, count(1));
        return zo_session_write_slot_bytes(session_, name(), values.get(), values.count(), error);
      }
      case 20: {
        Array<float> values(numbers_, count(sizeof(float)));
        const auto updates = static_cast<uint64_t>(numbers_.number());
        return zo_session_replay_slot(session_, name(), updates, values.get(), values.count(), error);
      }
      case 21: {
        Struct<zo_record> record(numbers_);
        Array<float> gradients(numbers_, queries());
        return zo_session_record(session_, static_cast<uint64_t>(numbers_.number()), record.get(), gradients.get(),
                                 error);
      }
      case 22:
        return follow(error);
      case 23:
        return zo_session_save(session_, error);
      case 24: {
        Struct<zo_memory> memory(numbers_);
        return zo_memory_usage(memory.get(), error);
      }
      case 26: {
        Struct<zo_export_options> options(numbers_);
        choose(options);
        return zo_session_export_adapter(session_, options.get(), adapter_path(), error);
      }
      case 27:
        return write_adapter(error);
      case 28:
        return read_adapter(error);
      default:
        noise();
        return ZO_OK;
    }
  }

  void choose(Struct<zo_export_options>& options) {
    const uint8_t form = numbers_.byte();
    options.fill(sizeof(uint32_t), numbers_);
    if (form < 0xF0) {  // else of any format and type
      options.set(offsetof(zo_export_options, format), int32_t{form % 2});
      options.set(offsetof(zo_export_options, outtype), int32_t{form % 2 == 0 ? 0 : form / 2 % 3});
    }
  }

  zo_status write_adapter(zo_error* error) {
    const char* const names[] = {"blk.0.attn_q.weight", "b", "\xC3\xA9", "\xFF", "", nullptr};
    const auto name = [&] {
      const uint8_t which = numbers_.byte();
      return names[which < 0xE0 ? which % 3 : which % std::size(names)];
    };
    const size_t count = numbers_.byte() % 4;
    auto layers = std::make_unique<zo_adapter_layer[]>(count);
    std::vector<std::unique_ptr<Array<float>>> matrices;
    for (size_t i = 0; i < count; ++i) {
      zo_adapter_layer& layer = layers[i];
      const uint64_t inputs = numbers_.byte() % 40, rank = numbers_.byte() % 34, outputs = numbers_.byte() % 40;
      const bool odd = numbers_.byte() >= 0xF0;  // sizes that are refused, for no matrix has them
      matrices.push_back(std::make_unique<Array<float>>(numbers_, odd ? 1 : inputs * rank));
      layer.a = matrices.back()->get();
      matrices.push_back(std::make_unique<Array<float>>(numbers_, odd ? 1 : rank * outputs));
      layer.b = matrices.back()->get();
      layer.module = name();
      layer.weight = name();
      layer.inputs = odd ? uint64_t{1} << 31 : inputs;
      layer.rank = rank;
      layer.outputs = odd ? UINT64_MAX : outputs;
      const uint8_t order = numbers_.byte();
      layer.pairs = order % 3 == 1 ? static_cast<uint32_t>(numbers_.number()) : 0;
      layer.groups = order % 3 == 2 ? static_cast<uint32_t>(numbers_.number()) : 0;
      layer.width = static_cast<uint32_t>(numbers_.number());
    }
    Struct<zo_adapter> adapter(numbers_);
    adapter.fill(sizeof(zo_adapter), numbers_);
    adapter.set<const zo_adapter_layer*>(offsetof(zo_adapter, layers),
                                         numbers_.byte() == 0xFF ? nullptr : layers.get());
    adapter.set<size_t>(offsetof(zo_adapter, layer_count), count);
    adapter.set<const char*>(offsetof(zo_adapter, description), name());
    adapter.set<const char*>(offsetof(zo_adapter, architecture), name());
    adapter.set<const char*>(offsetof(zo_adapter, base_model), name());
    adapter.set<float>(offsetof(zo_adapter, alpha), static_cast<float>(numbers_.number()));
    Struct<zo_export_options> options(numbers_);
    choose(options);
    return zo_adapter_write(adapter.get(), options.get(), adapter_path(), error);
  }

  zo_status read_adapter(zo_error* error) {
    const size_t count = numbers_.byte() % 4;
    auto layers = std::make_unique<zo_adapter_room[]>(count);
    std::vector<std::unique_ptr<Array<float>>> matrices;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t inputs = numbers_.byte() % 40, rank = numbers_.byte() % 34, outputs = numbers_.byte() % 40;
      matrices.push_back(std::make_unique<Array<float>>(numbers_, inputs * rank));
      float* const a = matrices.back()->get();
      matrices.push_back(std::make_unique<Array<float>>(numbers_, rank * outputs));
      layers[i] = {numbers_.byte() == 0xFF ? nullptr : "b", inputs, rank, outputs, a, matrices.back()->get()};
    }
    const std::string description = R"({"r": 2, "lora_alpha": )" + std::to_string(numbers_.number()) + "}";
    return zo_adapter_read(adapter_path(), description.c_str(), numbers_.byte() == 0xFF ? nullptr : layers.get(), count,
                           error);
  }

  const char* adapter_path() {
    const uint8_t which = numbers_.byte();
    state_ = which < 0xE0 ? folder_.file("adapter") : which < 0xF0 ? folder_.file("lines") : std::string();
    return which == 0xFF ? nullptr : state_.c_str();
  }

  zo_status open(zo_error* error) {
    zo_session_close(session_);
    session_ = nullptr;
    Struct<zo_engine> engine(numbers_);
    engine.set<void*>(offsetof(zo_engine, user), nullptr);
    engine.set<zo_run_program>(offsetof(zo_engine, run), numbers_.byte() == 0xFF ? nullptr : fuzz::run_program);
    Struct<zo_open_options> options(numbers_);
    options.set(offsetof(zo_open_options, threads), static_cast<uint32_t>(numbers_.number()));
    options.set(offsetof(zo_open_options, skip_hashes), uint32_t{numbers_.byte() % 2u});
    options.set<const zo_engine*>(offsetof(zo_open_options, engine), engine.get());
    options.set<const char*>(offsetof(zo_open_options, cache), "");
    const uint8_t trust = numbers_.byte();
    const size_t bytes = trust < 0x20 ? std::min<size_t>(trust, numbers_.size()) : 0;
    keys_ = fuzz::text(numbers_.data(), bytes);
    numbers_.skip(bytes);
    options.set<const char*>(offsetof(zo_open_options, trusted_keys), trust < 0x20 ? keys_.c_str() : nullptr);
    const uint8_t which = numbers_.byte();
    const std::string bundle =
        std::string(ZOEXPORT_SOURCE_DIR "/tests/fuzz/bundles/") + (which % 2 == 0 ? "zeroth" : "first");
    const zo_status status = zo_session_open(which == 0xFF   ? nullptr
                                             : which == 0xFE ? folder_.path().c_str()
                                                             : bundle.c_str(),
                                             options.get(), which == 0xFD ? nullptr : &session_, error);
    MUST((status == ZO_OK) == (session_ != nullptr));
    return status;
  }

  zo_status configure(zo_error* error) {
    // From the settings that there are, so that some of them are taken.
    zo_run now{};
    now.struct_size = sizeof(now);
    if (zo_session_run(session_, &now, nullptr) != ZO_OK) {
      return zo_session_configure(session_, &now, error);
    }
    Struct<zo_run> run(numbers_);
    now.struct_size = 0;
    auto* bytes = reinterpret_cast<uint8_t*>(&now);
    for (size_t at = sizeof(uint32_t); at < sizeof(now); ++at) {
      run.set(at, bytes[at]);
    }
    for (uint8_t changes = numbers_.byte() % 4; changes > 0; --changes) {
      run.set(sizeof(uint32_t) + numbers_.byte() % (sizeof(now) - sizeof(uint32_t)), numbers_.byte());
    }
    return zo_session_configure(session_, run.get(), error);
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
    const size_t size = numbers_.byte() < 0xF0 ? sizeof(zo_record) : std::max<size_t>(numbers_.byte(), 4);
    auto records = std::make_unique<uint8_t[]>(count * size);
    for (size_t i = 0; i < count; ++i) {
      const auto stated = static_cast<uint32_t>(numbers_.byte() < 0xF0 ? size : numbers_.byte());
      // The first says how far one lies from the next.
      if (i == 0 && stated != size) {
        return ZO_OK;
      }
      std::memcpy(&records[i * size], &stated, sizeof(stated));
      const zo_record record{stated, steps() + i + (numbers_.byte() == 0xFF ? 1 : 0), 0.5f, 0.01f,
                             static_cast<float>(numbers_.byte()) / 32.0f};
      std::memcpy(&records[i * size], &record, std::min(size, sizeof(record)));
    }
    Array<float> gradients(numbers_, count * queries());
    return zo_session_follow(session_, numbers_.byte() == 0xFF ? nullptr : reinterpret_cast<zo_record*>(records.get()),
                             gradients.get(), count, error);
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
  size_t count(size_t element) {
    const uint8_t which = numbers_.byte();
    const size_t elements[] = {39, 18, 16};
    return which < 0xC0 ? elements[which % 3] * (sizeof(float) / element) : which % 64;
  }
  uint64_t steps() const { return info().steps; }
  uint32_t queries() const { return info().queries; }
  zo_info info() const {
    zo_info info{};
    info.struct_size = sizeof(info);
    (void)zo_session_info(session_, &info, nullptr);
    return info;
  }
  // Whether a step takes a moment only.
  bool few() const {
    zo_run run{};
    run.struct_size = sizeof(run);
    return zo_session_run(session_, &run, nullptr) != ZO_OK ||
           (run.batch <= kMostExamples && run.accumulate <= kMostExamples &&
            run.batch * run.accumulate <= kMostExamples);
  }
  static int32_t on_progress(void* user, const zo_progress* progress) {
    MUST(progress->struct_size == sizeof(zo_progress));
    auto* host = static_cast<Host*>(user);
    // From within a call, any other is refused.
    MUST(zo_session_save(host->session_, nullptr) == ZO_INVALID_ARGUMENT);
    return ++host->calls_ % 4 == 0;
  }

  fuzz::Numbers& numbers_;
  const fuzz::Folder& folder_;
  zo_session* session_ = nullptr;
  zo_dataset* dataset_ = nullptr;
  zo_error error_{};
  std::string keys_;
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
