#!/bin/bash
TAG=v0.11.0
docker run --rm -d --gpus all --network host --ipc=host \
  -e VLLM_HOST_IP=192.0.2.30 --name prefill \
  vllm/vllm-openai:$TAG \
  --model org/m --port 8100
docker run -d --gpus '"device=1"' -p 8200:8000 -p 127.0.0.1:5557:5557 --name decode vllm/vllm-openai:$TAG --model org/m
docker run -it --net=host lmsysorg/sglang:v0.5.14 python3 -m sglang.launch_server --model-path org/m --port 30000
docker run --entrypoint python3 lmsysorg/sglang:v0.5.14 -m sglang.launch_server --model-path org/m
docker exec prefill vllm serve other --port 8101
