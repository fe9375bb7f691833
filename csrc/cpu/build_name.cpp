// Which build of the vector kernels this CPU takes, for scone_kernels.status().
#include <torch/library.h>

#include "kernels.h"

namespace scone {

TORCH_LIBRARY_FRAGMENT(scone_kernels, m) {
  m.def("cpu_build() -> str", [] { return std::string(kernels().name); });
}

}  // namespace scone
