#!/bin/bash
n=0
while [ $n -lt 3 ]; do
  sglang serve --model-path m$n --port $((30000 + n))
  ((n++))
done
until curl -sf http://127.0.0.1:30000/health; do sleep 1; done
while true; do
  vllm serve forever --port 8000
  sleep 5
done
