"""Rates of a Hopper SM per cycle, for tables that compare measurements with them."""

# NVIDIA's H100 white paper: 989.4 TFLOP/s, dense bf16, 132 SMs, 1.83 GHz.
MATMUL_FLOPS = 4096
# CUDA C++ Programming Guide, arithmetic instructions, 9.0: results per cycle.
EXPS = 16
# CUDA C++ Programming Guide: 32 banks of 4 bytes, read or written.
SHARED_BYTES = 128
