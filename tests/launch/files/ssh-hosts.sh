#!/bin/bash
# One server over two machines, by ssh.
HOSTS="192.0.2.1 192.0.2.2"
rank=0
for host in $HOSTS; do
  ssh -o StrictHostKeyChecking=no ops@$host "cd /srv && python -m sglang.launch_server --nnodes 2 --node-rank $rank --dist-init-addr 192.0.2.1:5000 --tp-size 16" &
  rank=$((rank + 1))
done
wait
