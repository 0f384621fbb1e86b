#!/bin/bash
mpirun --allow-run-as-root -np 2 -npernode 1 -H 192.0.2.1,192.0.2.2 -mca btl tcp,self -x NCCL_DEBUG=INFO \
  bash -c 'python -m sglang.launch_server --nnodes 2 --node-rank $OMPI_COMM_WORLD_RANK --dist-init-addr 192.0.2.1:5000'
