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
  // The manifest must have programs for generation. All references outlive this object.
  Decoder(const Manifest& manifest, const Slots& slots, Programs& programs, FrozenWeights& weights);

  // The tokens that were fed, and how many more fit.
  const std::vector<int64_t>& fed() const { return fed_; }
  uint32_t room() const { return spec_.context - position_; }
  // Forget all but the first `count` fed tokens, or all tokens if a sliding window or a state has lost what these saw.
  void go_back(size_t count);

  // Goes on by `count` tokens, at most room(). `seed` is the run's. Afterwards logits() are those of the last one.
  Status feed(const int64_t* tokens, size_t count, uint64_t seed, const StateValues& state);
  // Logits of the vocabulary; the caller may change them until the next call.
  std::vector<float>& logits() { return logits_; }

 private:
  // The keys or values of one layer, rows of a convolution or its state, (groups, rows, width), and those of the tokens
  // at hand.
  struct Cache {
    const ValueSpec* value;
    size_t groups;
    size_t rows;
    size_t width;
    float* kept;
    std::vector<float> given;
  };
  // Location of an input of a stage's program that is not a row, found once: `data` of a weight; `data` of a table at
  // position 0 and the bytes of its row; the slot of a state.
  struct Source {
    const uint8_t* data;
    uint64_t row;
    size_t slot;
  };
  struct Stage {
    std::vector<Cache> caches;
    std::map<const ProgramSpec*, std::vector<Source>> sources;  // by input
  };
  // Arguments of a program; each `data` is filled in for each call.
  struct Call {
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
  };
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };

  // Opens the weights and makes room for the caches, before the first call.
  Status prepare();
  // Return the number of tokens of the next call, with `count` left: a length of the programs.
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
  int64_t taken_ = 0;      // tokens of a call, without those that fill it up
  std::vector<int64_t> tokens_;
  std::vector<std::vector<float>> activations_;  // that a stage takes, and that it gives
  std::vector<std::vector<float>> next_;
  std::vector<float> logits_;
};

}  // namespace zoexport
