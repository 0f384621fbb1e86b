#!/bin/sh
# The head or a worker, by the first argument.
NODE_RANK=$1
HEAD=192.0.2.20

case "$ROLE" in
  prefill) MODE="--disaggregation-mode prefill" ;;
  decode) MODE="--disaggregation-mode decode" ;;
esac

if [ "$NODE_RANK" -eq 0 ]; then
  vllm serve org/m --nnodes 2 --node-rank 0 --master-addr "$HEAD"
else
  vllm serve org/m --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$HEAD" --headless $MODE
fi
