"""Lists the peak rates of one Hopper SM per cycle, for comparison with measured rates."""

# FLOPs, dense bf16. NVIDIA's H100 white paper: 989.4 TFLOP/s from 132 SMs at 1.83 GHz.
MATMUL_FLOPS = 4096
# Exponentials. CUDA C++ Programming Guide, arithmetic instructions, compute capability 9.0.
EXPS = 16
# Bytes of shared memory, read or written: 32 banks of 4 bytes (CUDA C++ Programming Guide).
SHARED_BYTES = 128
