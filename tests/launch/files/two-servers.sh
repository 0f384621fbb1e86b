#!/usr/bin/env bash
# Two SGLang servers on one machine, each with its own GPUs.
set -euo pipefail

MODEL=${MODEL:-/models/m}
BASE_PORT=30000
EVENTS=5557
export SGLANG_LOG_MS=1

for i in 0 1; do
  port=$((BASE_PORT + i * 1000))
  CUDA_VISIBLE_DEVICES=$((i * 4)),$((i * 4 + 1)) nohup python -m sglang.launch_server \
    --model-path "$MODEL" \
    --tp-size 2 \
    --port "$port" \
    --kv-events-config '{"publisher": "zmq", "endpoint": "tcp://*:'$((EVENTS + i))'"}' \
    > "server_$i.log" 2>&1 &
done
wait
