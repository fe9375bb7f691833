"""One file per op: its reference and its registration. The C++ kernels are in csrc/cpu/inference."""
