#!/bin/bash
# Arguments kept in an array, and some in a string.
args=(--model-path /models/m --tp-size 8)
args+=(--host 192.0.2.10)
if [ "${DEBUG:-0}" = 1 ]; then
  args+=(--log-level debug)
fi
events="--enable-metrics --kv-events-config {\"publisher\":\"zmq\"}"
exec python3 -m sglang.launch_server "${args[@]}" $events \
  --dist-init-addr 192.0.2.10:5000 "$@"
