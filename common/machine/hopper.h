// Declares the names that kernels for Hopper (sm_90a) use in addition to those of machine.h, again
// for the GPU and for the simulator. gpu/gpu_hopper.h documents each of them.
//
//   TensorMap, tensor_map<T>   describes an array to TMA; passed as const __grid_constant__
//   Mbarrier                   a barrier in shared memory: init, arrive, arrive_expect_tx, wait;
//                              functions take it as an MbarrierRef
//   fence_mbarrier_init, fence_proxy_async
//   tma_load, tma_store        copy a box between HBM and shared memory, asynchronously
//   bulk_load, bulk_add        copy consecutive floats to shared memory; add such floats to HBM
//   tma_store_commit, tma_store_wait, tma_store_wait_read      groups of stores and additions
//   named_barrier_sync, named_barrier_arrive, setmaxnreg_inc, setmaxnreg_dec
//   stmatrix_x4                stores matrices in the layout that ldmatrix_x4 loads
//   resident_blocks            grid size of a persistent kernel: one block per SM (simulator: 3)
//   uniform                    tells the compiler that a number is the same in all lanes
//   scheduling_barrier         keeps the compiler from moving arithmetic across it
//   done_with                  declares that this warp is done reading a part of shared memory; the
//                              simulator checks it, the GPU does nothing
//   wgmma_commit               closes a group of products
//   matrix_descriptor, advanced, wgmma_m64, wgmma_fence_instruction, hold, wgmma_wait_instruction:
//   common/tile/warpgroup.h builds products of a warpgroup on these; kernels use that file
#pragma once

#include "machine/machine.h"

#ifdef LADDER_SIM
#include "machine/sim/sim_hopper.h"
#else
#include "machine/gpu/gpu_hopper.h"
#endif
