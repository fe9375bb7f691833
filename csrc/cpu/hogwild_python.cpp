// Python entry points of the shared state. A call through torch.ops boxes its arguments and takes longer than the work
// itself; these unpack tensors and call the CPU functions, or the dispatcher for other devices, without the GIL where
// that pays.
#include "hogwild_tensors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace scone {
void bind_watch(PyObject* module);  // in inference/watch.cpp
}

namespace {

using at::Tensor;
using Read = std::tuple<Tensor, Tensor>(const Tensor&);
using Write = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);

// A call on fewer words than this keeps the GIL: it is over in a few microseconds, and where Python threads queue for the
// GIL, getting it back takes longer. Tuned with 2 and 8 threads on two cores, from 512 to 65536 words, against always and
// never releasing it (docs/hogwild.md).
constexpr std::int64_t kReleaseGilFrom = 1024;

// `work()`, without the GIL if it touches many words of a state on the CPU, or another device.
template <class Work>
auto run(const Tensor& words, std::int64_t touched, Work work) {
  if (words.is_cpu() && touched < kReleaseGilFrom) return work();
  const pybind11::gil_scoped_release no_gil;
  return work();
}

const Tensor& tensor_argument(const char* name, PyObject* argument) {
  TORCH_CHECK_TYPE(THPVariable_Check(argument), name, " must be a tensor, got ", Py_TYPE(argument)->tp_name);
  return THPVariable_Unpack(argument);
}

// Checked before the dispatcher takes a tensor's device for the state's.
const Tensor& beside(const Tensor& words, const char* name, PyObject* argument) {
  const Tensor& tensor = tensor_argument(name, argument);
  TORCH_CHECK_VALUE(tensor.device() == words.device(), name, " must be on ", words.device(), " like the state, got ",
                    tensor.device());
  return tensor;
}

// A new instance of a subclass of tuple, such as a NamedTuple, that has no fields of its own. Steals the items.
PyObject* new_tuple(PyObject* type, PyObject* first, PyObject* second) {
  auto* subclass = reinterpret_cast<PyTypeObject*>(type);
  PyObject* tuple = subclass->tp_alloc(subclass, 2);
  if (tuple == nullptr || first == nullptr || second == nullptr) throw python_error();
  PyTuple_SET_ITEM(tuple, 0, first);
  PyTuple_SET_ITEM(tuple, 1, second);
  return tuple;
}

PyObject* hogwild_read(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("scone_kernels::hogwild_read", "").typed<Read>();
  TORCH_CHECK_TYPE(count == 2 && PyType_Check(arguments[1]) &&
                       PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(arguments[1]), &PyTuple_Type),
                   "hogwild_read takes words and a subclass of tuple");
  const Tensor& words = tensor_argument("words", arguments[0]);
  auto [tokens, versions] = run(
      words, words.numel(), [&] { return words.is_cpu() ? scone::hogwild::read_cpu(words) : op.call(words); });
  return new_tuple(arguments[1], THPVariable_Wrap(std::move(tokens)), THPVariable_Wrap(std::move(versions)));
  END_HANDLE_TH_ERRORS
}

PyObject* hogwild_write(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("scone_kernels::hogwild_write", "").typed<Write>();
  TORCH_CHECK_TYPE(count == 5, "hogwild_write takes words, rows, starts, tokens, versions; got ", count, " arguments");
  const Tensor& words = tensor_argument("words", arguments[0]);
  const Tensor& rows = beside(words, "rows", arguments[1]);
  const Tensor& starts = beside(words, "starts", arguments[2]);
  const Tensor& tokens = beside(words, "tokens", arguments[3]);
  const Tensor& versions = beside(words, "snapshot.versions", arguments[4]);
  const std::int64_t copied = versions.is_contiguous() ? 0 : versions.numel();
  Tensor staleness = run(words, rows.numel() * words.size(-1) + copied, [&] {
    return words.is_cpu() ? scone::hogwild::write_cpu(words, rows, starts, tokens, versions)
                          : op.call(words, rows, starts, tokens, versions);
  });
  return THPVariable_Wrap(std::move(staleness));
  END_HANDLE_TH_ERRORS
}

template <class Function>
PyCFunction fast(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef methods[] = {
    {"hogwild_read", fast(hogwild_read), METH_FASTCALL, "hogwild_read(words, type) -> type(tokens, versions)"},
    {"hogwild_write", fast(hogwild_write), METH_FASTCALL,
     "hogwild_write(words, rows, starts, tokens, versions) -> staleness"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module{PyModuleDef_HEAD_INIT, "_C", "Python entry points of the compiled extension.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  PyObject* const made = PyModule_Create(&module);
  if (made) scone::bind_watch(made);
  return made;
}
