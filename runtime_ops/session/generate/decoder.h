// The programs that generate: some tokens after others, over the keys and values that were kept of those.
#pragma once

#include <memory>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/programs/call_inputs.h"
#include "session/programs/frozen_weights.h"
#include "session/programs/programs.h"
#include "session/state/slots.h"

namespace zoexport {

class Decoder {
 public:
  // Of a manifest that has such programs. All references outlive this object.
  Decoder(const Manifest& manifest, const Slots& slots, Programs& programs, FrozenWeights& weights);

  // The tokens that were fed, and how many more fit.
  const std::vector<int64_t>& fed() const { return fed_; }
  uint32_t room() const { return spec_.context - position_; }
  // Forgets all but the first `count` tokens that were fed, or all of them where a window has lost what these saw.
  void go_back(size_t count);

  // Goes on by `count` tokens, at most room(). `seed` is the run's. Afterwards logits() are those of the last one.
  Status feed(const int64_t* tokens, size_t count, uint64_t seed, const StateValues& state);
  // Of each token of the vocabulary; they may be changed until the next call.
  std::vector<float>& logits() { return logits_; }

 private:
  // The keys or values of one layer, (groups, rows, width), and those of the tokens at hand.
  struct Cache {
    const ValueSpec* value;
    size_t groups;
    size_t rows;
    size_t width;
    float* kept;
    std::vector<float> given;
  };
  // Where an input of a stage's program lies that is no row, found once: of a weight `data`; of a table that of position 0,
  // and the bytes of a row; of a state its slot.
  struct Source {
    const uint8_t* data;
    uint64_t row;
    size_t slot;
  };
  struct Stage {
    std::vector<Cache> caches;
    std::map<const ProgramSpec*, std::vector<Source>> sources;  // by input
  };
  // What a program is called with; `data` of all is filled in for each call.
  struct Call {
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
  };
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };

  // Opens the weights and makes room for the caches, before the first call.
  Status prepare();
  // How many tokens the next call takes, of `count` that are left: a length of the programs.
  uint32_t next_length(size_t count) const;
  Status run(size_t stage, const ProgramSpec& program, uint32_t count, const StateValues& state);
  const void* input(const ValueSpec& value, const Source& source, const StateValues& state);
  Source source_of(const ValueSpec& value, const StageSpec& bound) const;
  // Bytes of a row of a table over positions.
  uint64_t row_of(const std::string& name, const ValueSpec& value) const;
  // Puts the first `count` of what a stage gave into its caches.
  void keep(Stage& stage, uint32_t count);

  const GenerateSpec& spec_;
  const Slots& slots_;
  Programs& programs_;
  FrozenWeights& weights_;
  std::unique_ptr<float[], Free> memory_;  // of all caches; pages that nothing was written to take none
  std::vector<Stage> stages_;
  std::map<const ProgramSpec*, Call> calls_;
  CallScalars scalars_;
  NoiseInputs noise_;
  std::vector<int64_t> fed_;
  uint32_t position_ = 0;  // how many these are, and in the middle of a call those that its programs have read
  int64_t first_ = 0;      // position_, as programs read it
  std::vector<int64_t> tokens_;
  std::vector<std::vector<float>> activations_;  // that a stage takes, and that it gives
  std::vector<std::vector<float>> next_;
  std::vector<float> logits_;
};

}  // namespace zoexport
