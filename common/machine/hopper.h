// Hopper's constructs, for kernels of sm_90a, in addition to machine.h's names
//
//   TensorMap, tensor_map<T>   an array as bulk tensor copies see it; const __grid_constant__
//   Mbarrier                   init, arrive, arrive_expect_tx, wait; taken from shared memory,
//                              MbarrierRef as a parameter
//   fence_mbarrier_init, fence_proxy_async
//   tma_load, tma_store        a box between HBM and shared memory, asynchronously
//   bulk_load, bulk_add        floats in a row, HBM → shared memory, and added to HBM from there
//   tma_store_commit, tma_store_wait, tma_store_wait_read      groups of stores and additions
//   named_barrier_sync, named_barrier_arrive, setmaxnreg_inc, setmaxnreg_dec
//   stmatrix_x4                what ldmatrix_x4 reads, written
//   resident_blocks            of a persistent kernel: one for each SM, and three on the simulator
//   uniform                    tells the compiler that a number is the same in all lanes
//   scheduling_barrier         the compiler moves no arithmetic over it
//   done_with                  nothing of this warp reads a part of shared memory any more: checked
//                              on the simulator, nothing on the GPU
//   matrix_descriptor, advanced, wgmma_m64, wgmma_fence_instruction, hold,
//   wgmma_commit, wgmma_wait_instruction     what common/tile/warpgroup.h is made of
#pragma once

#include "machine/machine.h"

#ifdef LADDER_SIM
#include "machine/sim/sim_hopper.h"
#else
#include "machine/gpu/gpu_hopper.h"
#endif
