#!/bin/bash
set -a
HF_HUB_OFFLINE=1
set +a
numactl --cpunodebind=0 --membind=0 taskset -c 0-31 env -u FOO NCCL_DEBUG=INFO \
  timeout --signal TERM 3600 python -u -m sglang.launch_server --tp 4 &
sudo -E -u serve nice -n 5 stdbuf -oL setsid vllm serve m &
time uv run --no-sync vllm serve m2
conda run -n serve --no-capture-output vllm serve m3
