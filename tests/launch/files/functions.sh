#!/bin/bash
start() {
  local name=$1 port=$2
  shift 2
  python -m sglang.launch_server --served-model-name "$name" --port "$port" "$@" &
}

start small 30000 --tp-size 1
start large 31000 --tp-size 4 --dp-size 2
wait
