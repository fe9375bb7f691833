// Python entry points of the shared state. A call through torch.ops boxes its arguments and takes longer than the work
// itself; these unpack tensors, release the GIL and call the dispatcher, which knows the device.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace {

using at::Tensor;
using Read = std::tuple<Tensor, Tensor>(const Tensor&);
using Write = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);

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

PyObject* hogwild_read(PyObject*, PyObject* words_argument) {
  HANDLE_TH_ERRORS
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("scone_kernels::hogwild_read", "").typed<Read>();
  const Tensor& words = tensor_argument("words", words_argument);
  auto [tokens, versions] = [&] {
    const pybind11::gil_scoped_release no_gil;
    return op.call(words);
  }();
  return PyTuple_Pack(2, py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tokens))).ptr(),
                      py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(versions))).ptr());
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
  Tensor staleness = [&] {
    const pybind11::gil_scoped_release no_gil;
    return op.call(words, rows, starts, tokens, versions);
  }();
  return THPVariable_Wrap(std::move(staleness));
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"hogwild_read", hogwild_read, METH_O, "hogwild_read(words) -> (tokens, versions)"},
    {"hogwild_write", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(hogwild_write)), METH_FASTCALL,
     "hogwild_write(words, rows, starts, tokens, versions) -> staleness"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module{PyModuleDef_HEAD_INIT, "_C", "Python entry points of the compiled extension.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
