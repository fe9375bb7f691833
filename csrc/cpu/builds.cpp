// Which builds of the vector kernels this CPU runs and which is in use, for scone_kernels.status() and for tests.
#include <torch/library.h>

#include <algorithm>

#include "kernels.h"

namespace scone {

TORCH_LIBRARY_FRAGMENT(scone_kernels, m) {
  m.def("cpu_build() -> str", [] { return std::string(kernels().name); });
  m.def("cpu_builds() -> str[]", [] {
    std::vector<std::string> names;
    for (const Kernels* table : builds()) names.emplace_back(table->name);
    return names;
  });
  m.def("use_cpu_build(str name) -> ()", [](c10::string_view name) {
    const auto called = [&](const Kernels* table) { return name == table->name; };
    const auto found = std::find_if(builds().begin(), builds().end(), called);
    TORCH_CHECK_VALUE(found != builds().end(), "this CPU runs no build of the kernels that is called ", name);
    use_build(**found);
  });
}

}  // namespace scone
