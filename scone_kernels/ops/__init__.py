"""One folder per op: its reference, its Triton kernel and its registration. The C++ kernels are in csrc/cpu."""
