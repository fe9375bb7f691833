"""Fused kernels of semantic control: expectations, draws and Taylor estimates over a vocabulary.

Each function exists as plain torch (`backend="reference"`), as C++ for CPU tensors (`"cpu"`) and as a Triton kernel for
CUDA and HIP tensors (`"triton"`); `backend=None` takes the fastest that is live. `status()` says which those are.

`inference` is a room of its own: `inference.accelerate(model)` runs models of transformers faster on a CPU.
"""

from . import inference
from ._backend import BackendStatus, Status, status
from ._panels import to_panels
from .hogwild import HogwildState, Snapshot
from .ops.expected_dot import expected_dot, expected_dot_from_logits
from .ops.expected_embedding import expected_embedding, expected_embedding_from_logits
from .ops.gibbs_sample import GibbsSample, gibbs_sample, gibbs_sample_from_logits
from .ops.likely_rows import LikelyRows, likely_rows, likely_rows_from_logits
from .ops.taylor_estimate import taylor_estimate

__all__ = [
    "BackendStatus",
    "GibbsSample",
    "HogwildState",
    "LikelyRows",
    "Snapshot",
    "Status",
    "expected_dot",
    "expected_dot_from_logits",
    "expected_embedding",
    "expected_embedding_from_logits",
    "gibbs_sample",
    "gibbs_sample_from_logits",
    "inference",
    "likely_rows",
    "likely_rows_from_logits",
    "status",
    "taylor_estimate",
    "to_panels",
]
