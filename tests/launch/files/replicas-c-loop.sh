#!/bin/bash
# Four vLLM servers; the ports count up, the side channels do too.
PORTS=(8000 8010 8020 8030)
for ((i = 0; i < ${#PORTS[@]}; i++)); do
  (
    export CUDA_VISIBLE_DEVICES=$i
    export VLLM_NIXL_SIDE_CHANNEL_PORT=$((5600 + i))
    exec vllm serve /models/m --port "${PORTS[$i]}" --tensor-parallel-size 1
  ) &
done
wait
