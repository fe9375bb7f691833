"""Fused kernels of semantic control: expectations, draws and Taylor estimates over a vocabulary."""
