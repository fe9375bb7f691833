#!/bin/sh
# Serves an LM with control by SConE on port 8000: sh examples/vllm/serve.sh [MODEL] [more options of vLLM]
# Without MODEL: the small LM that comes with pip, on a CPU. Settings: SCONE_VLLM=settings.toml.
set -eu
PYTHON=${PYTHON:-python}
if [ $# -gt 0 ]; then
    MODEL=$1
    shift
else
    MODEL=$("$PYTHON" -c 'from scone.embedded import load_lm; print(load_lm()[0].config._name_or_path)')
    export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
    set -- --dtype bfloat16 --max-model-len 512 --enforce-eager "$@"
fi
export SCONE_VLLM="${SCONE_VLLM:-embedded}"
exec "$PYTHON" -m vllm.entrypoints.openai.api_server --model "$MODEL" --served-model-name lm \
    --logits-processors scone.vllm:SconeLogitsProcessor --port "${PORT:-8000}" "$@"
