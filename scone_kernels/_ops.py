"""The namespace of our custom ops, in one place: a copy of this package under another name puts its own here.

Hugging Face's builder of kernels does that, so that two versions can live in one process.
"""

import torch

ops = torch.ops.scone_kernels


def add_op_namespace_prefix(name: str) -> str:
    """`namespace::name`."""
    return f"{ops.name}::{name}"
