// The shared token state on the CPU: loops over the functions of hogwild.h. All checks come before the first write.
// torch releases the GIL before it calls an operator, so nothing here may touch Python.
#include "hogwild_tensors.h"

#include <ATen/EmptyTensor.h>
#include <torch/library.h>

namespace scone::hogwild {
namespace {

at::Tensor empty(std::int64_t rows, std::int64_t columns) { return at::detail::empty_cpu({rows, columns}, at::kLong); }

void check_values(State state, Blocks blocks) {
  for (std::int64_t block = 0; block < blocks.count; ++block) {
    TORCH_CHECK_VALUE(blocks.inside(state, block), "block ", block, " must lie within ", state.rows, " rows of ",
                      state.positions, " positions, got row ", blocks.rows[block], ", start ",
                      blocks.starts[block], " and ", blocks.size, " tokens");
    for (std::int64_t offset = 0; offset < blocks.size; ++offset) {
      TORCH_CHECK_VALUE(blocks.token_fits(block, offset), "tokens[", block, ", ", offset,
                        "] must be in [0, 2**32), got ", blocks.tokens[block * blocks.size + offset]);
    }
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> read_cpu(const at::Tensor& words) {
  const State state = state_of(words);
  at::Tensor tokens = empty(state.rows, state.positions);
  at::Tensor versions = empty(state.rows, state.positions);
  auto* tokens_ptr = tokens.data_ptr<std::int64_t>();
  auto* versions_ptr = versions.data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < state.rows; ++row) {
    read_row(state, row, tokens_ptr + row * state.positions, versions_ptr + row * state.positions);
  }
  return {std::move(tokens), std::move(versions)};
}

at::Tensor write_cpu(const at::Tensor& words, const at::Tensor& rows, const at::Tensor& starts,
                     const at::Tensor& tokens, const at::Tensor& versions) {
  const State state = state_of(words);
  check_write(words, rows, starts, tokens, versions);
  const auto rows_c = rows.expect_contiguous();
  const auto starts_c = starts.expect_contiguous();
  const auto tokens_c = tokens.expect_contiguous();
  const auto versions_c = versions.expect_contiguous();
  const Blocks blocks{rows_c->const_data_ptr<std::int64_t>(),   starts_c->const_data_ptr<std::int64_t>(),
                      tokens_c->const_data_ptr<std::int64_t>(), versions_c->const_data_ptr<std::int64_t>(),
                      tokens.size(0),                           tokens.size(1)};
  check_values(state, blocks);
  at::Tensor staleness = empty(blocks.count, state.positions);
  auto* staleness_ptr = staleness.data_ptr<std::int64_t>();
  for (std::int64_t block = 0; block < blocks.count; ++block) {
    publish_block(state, blocks, block, staleness_ptr + block * state.positions);
    look_back(state, blocks, block, staleness_ptr + block * state.positions);
  }
  return staleness;
}

}  // namespace scone::hogwild

TORCH_LIBRARY_FRAGMENT(scone_kernels, m) {
  m.def("hogwild_read(Tensor words) -> (Tensor tokens, Tensor versions)");
  m.def("hogwild_write(Tensor(a!) words, Tensor rows, Tensor starts, Tensor tokens, Tensor versions) -> Tensor");
}

TORCH_LIBRARY_IMPL(scone_kernels, CPU, m) {
  m.impl("hogwild_read", &scone::hogwild::read_cpu);
  m.impl("hogwild_write", &scone::hogwild::write_cpu);
}
