// Whether tensors are still what they were: which memory, read how, and how often written to. For `scone_kernels.inference`,
// whose packed copies of a model's weights must not outlive what they were made of.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

namespace scone {
namespace {

int64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

// What is known of a tensor that has a storage. Tensor and storage are held weakly: their memory goes when their owner lets go,
// but no other can take their place under the same address.
struct Mark {
  explicit Mark(const at::Tensor& tensor)
      : self(tensor.getIntrusivePtr()),
        storage(tensor.storage().getWeakStorageImpl()),
        data(tensor.storage().data()),
        offset(tensor.storage_offset()),
        version(version_of(tensor)),
        type(tensor.scalar_type()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()) {}

  bool holds(const at::Tensor& tensor) const {
    if (tensor.unsafeGetTensorImpl() != self._unsafe_get_target() || !tensor.has_storage()) return false;
    const c10::Storage& now = tensor.storage();
    return now.unsafeGetStorageImpl() == storage._unsafe_get_target() && now.data() == data &&
           tensor.storage_offset() == offset && version_of(tensor) == version && tensor.scalar_type() == type &&
           tensor.sizes().equals(sizes) && tensor.strides().equals(strides);
  }

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> self;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* data;
  int64_t offset, version;
  at::ScalarType type;
  std::vector<int64_t> sizes, strides;
};

// A list of tensors and Nones. A call through torch.ops would box every tensor, which takes five times as long as to look at it.
class Watch {
 public:
  explicit Watch(const pybind11::list& tensors) {
    marks_.reserve(tensors.size());
    for (const pybind11::handle each : tensors)
      marks_.push_back(THPVariable_Check(each.ptr()) ? std::make_optional<Mark>(THPVariable_Unpack(each.ptr())) : std::nullopt);
  }

  // The places of those that are no longer what they were.
  std::vector<int64_t> changed(const pybind11::list& tensors) const {
    TORCH_CHECK_VALUE(tensors.size() == marks_.size(), "tensors must be the ", marks_.size(), " that are watched, got ",
                      tensors.size());
    std::vector<int64_t> found;
    for (size_t i = 0; i < marks_.size(); ++i) {
      PyObject* const now = PyList_GET_ITEM(tensors.ptr(), Py_ssize_t(i));
      const bool is_tensor = THPVariable_Check(now);
      if (is_tensor != marks_[i].has_value() || (is_tensor && !marks_[i]->holds(THPVariable_Unpack(now))))
        found.push_back(int64_t(i));
    }
    return found;
  }

 private:
  std::vector<std::optional<Mark>> marks_;
};

}  // namespace

void bind_watch(PyObject* module) {
  pybind11::class_<Watch>(pybind11::reinterpret_borrow<pybind11::module_>(module), "Watch", pybind11::module_local())
      .def(pybind11::init<const pybind11::list&>())
      .def("changed", &Watch::changed);
}

}  // namespace scone
