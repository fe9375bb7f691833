"""Fused kernels of semantic control: expectations, draws and Taylor estimates over a vocabulary.

Each function exists as plain torch (`backend="reference"`), as C++ for CPU tensors (`"cpu"`) and as a Triton kernel for
CUDA and HIP tensors (`"triton"`); `backend=None` takes the fastest that is live. `status()` says which those are.
"""

from scone_kernels._backend import BackendStatus, Status, status
from scone_kernels.hogwild import HogwildState, Snapshot
from scone_kernels.ops.decoder_step import DecoderLayer, decoder_step
from scone_kernels.ops.encoder import EncoderLayer, encoder
from scone_kernels.ops.expected_dot import expected_dot, expected_dot_from_logits
from scone_kernels.ops.expected_embedding import expected_embedding, expected_embedding_from_logits
from scone_kernels.ops.gibbs_sample import GibbsSample, gibbs_sample, gibbs_sample_from_logits
from scone_kernels.ops.likely_rows import LikelyRows, likely_rows, likely_rows_from_logits
from scone_kernels.ops.linear import for_few_rows, linear
from scone_kernels.ops.linear_half import keep_halves, linear_half, to_panels
from scone_kernels.ops.taylor_estimate import taylor_estimate

__all__ = [
    "BackendStatus",
    "DecoderLayer",
    "EncoderLayer",
    "GibbsSample",
    "HogwildState",
    "LikelyRows",
    "Snapshot",
    "Status",
    "decoder_step",
    "encoder",
    "expected_dot",
    "expected_dot_from_logits",
    "expected_embedding",
    "expected_embedding_from_logits",
    "for_few_rows",
    "gibbs_sample",
    "gibbs_sample_from_logits",
    "keep_halves",
    "likely_rows",
    "likely_rows_from_logits",
    "linear",
    "linear_half",
    "status",
    "taylor_estimate",
    "to_panels",
]
