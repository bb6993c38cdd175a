"""Lists a Hopper SM's rates per cycle, with which figures and tables compare measurements."""

# NVIDIA's H100 white paper: 989.4 TFLOP/s, dense bf16, 132 SMs, 1.83 GHz.
MATMUL_FLOPS = 4096
# CUDA C++ Programming Guide, throughput of arithmetic instructions on 9.0: results per cycle.
EXPS = 16
# CUDA C++ Programming Guide: 32 banks of 4 bytes, read or written.
SHARED_BYTES = 128
