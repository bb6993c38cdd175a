// Hopper's constructs, for kernels of sm_90a: beside machine.h's names
//
//   TensorMap, tensor_map<T>   an array as bulk tensor copies see it; const __grid_constant__
//   Mbarrier                   init, arrive, arrive_expect_tx, wait; taken from shared memory
//   tma_load, tma_store        a box between HBM and shared memory, asynchronously
//   tma_store_commit, _wait    groups of stores
//   fence_mbarrier_init, fence_proxy_async
//   named_barrier_sync, named_barrier_arrive, setmaxnreg_inc, setmaxnreg_dec
//   matrix_descriptor, wgmma_m64k16, wgmma_commit: what common/tile/warpgroup.h is made of
#pragma once

#include "machine/machine.h"

#ifdef LADDER_SIM
#include "machine/sim/sim_hopper.h"
#else
#include "machine/gpu/gpu_hopper.h"
#endif
