// Attention over a cache, of namespace zoexport; exporter/zoexport/ir/op_schemas.py states the same schema.

#include <atomic>
#include <optional>

#include "../kernels/cached_attention.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

bool is_floats(const Tensor& t, ssize_t rank) { return is_dense(t, ScalarType::Float) && t.dim() == rank; }

Tensor& cached_attention_out(KernelRuntimeContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& keys, const Tensor& values, const Tensor& position,
                             const std::optional<Tensor>& slopes, double scale, double softcap, int64_t window,
                             Tensor& out) {
  ZO_CHECK(ctx,
           is_floats(q, 4) && is_floats(k, 4) && is_floats(v, 4) && q.size(0) == 1 && k.size(0) == 1 && v.size(0) == 1,
           out, "q, k and v must be dense float32 (1, heads, tokens, width)");
  ZO_CHECK(ctx,
           k.size(1) > 0 && q.size(1) % k.size(1) == 0 && v.size(1) == k.size(1) && k.size(2) == q.size(2) &&
               v.size(2) == q.size(2) && k.size(3) == q.size(3),
           out, "k and v must have the tokens of q, its heads in equal groups, and k its width");
  ZO_CHECK(ctx,
           is_floats(keys, 3) && is_floats(values, 3) && keys.size(0) == k.size(1) && keys.size(2) == k.size(3) &&
               values.size(0) == v.size(1) && values.size(2) == v.size(3) && keys.size(1) == values.size(1) &&
               keys.size(1) > 0,
           out, "keys and values must be dense float32 (groups, rows, width)");
  const std::optional<uint32_t> first = as_u32(position);
  ZO_CHECK(ctx, first.has_value(), out, "position must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, !slopes.has_value() || (is_floats(*slopes, 1) && slopes->size(0) == q.size(1)), out,
           "slopes must be float32 (heads)");
  ZO_CHECK(ctx, softcap >= 0 && window >= 0, out, "softcap and window must be at least 0");
  const std::array<SizesType, 4> sizes = {1, q.sizes()[1], q.sizes()[2], v.sizes()[3]};
  ZO_CHECK(ctx,
           executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.data(), sizes.size())) == Error::Ok &&
               is_dense(out, ScalarType::Float),
           out, "out must be float32 with room for the result");
  const auto size = [](const Tensor& t, ssize_t axis) { return static_cast<size_t>(t.size(axis)); };
  const kernels::CachedAttention attention{q.const_data_ptr<float>(),
                                           k.const_data_ptr<float>(),
                                           v.const_data_ptr<float>(),
                                           keys.const_data_ptr<float>(),
                                           values.const_data_ptr<float>(),
                                           slopes.has_value() ? slopes->const_data_ptr<float>() : nullptr,
                                           size(q, 1),
                                           size(k, 1),
                                           size(q, 2),
                                           size(q, 3),
                                           size(v, 3),
                                           size(keys, 1),
                                           *first,
                                           static_cast<float>(scale),
                                           static_cast<float>(softcap),
                                           static_cast<size_t>(window),
                                           out.mutable_data_ptr<float>()};
  ZO_CHECK(ctx, kernels::cache_reaches(attention), out, "the cache must have every token that is seen");
  std::atomic<bool> enough{true};
  const bool ran = parallel(attention.heads * attention.tokens, kernels::queries_of_a_thread(attention),
                            [&](size_t begin, size_t end) {
                              if (!kernels::run_queries(attention, begin, end)) {
                                enough = false;
                              }
                            });
  ET_KERNEL_CHECK(ctx, ran && enough, Internal, out);
  return out;
}

const bool registered[] = {
    register_operator<cached_attention_out>("zoexport::cached_attention.out"),
};

}  // namespace
}  // namespace zoexport
