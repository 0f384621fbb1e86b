#!/bin/bash
ADDR=$(hostname -I | awk '{print $1}')
HEAD=${HEAD_ADDR:?where is the head?}
python -m sglang.launch_server --host $ADDR --dist-init-addr "$HEAD:5000" --node-rank $RANK $EXTRA \
  --port ${PORT:-30000}
for host in $(cat hosts); do
  vllm serve m --data-parallel-address "$host"
done
