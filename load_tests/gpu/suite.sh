#!/usr/bin/env bash
# Tests on the card, then the whole engine's figures: bash load_tests/gpu/suite.sh OUT
# Each part has a limit of its own, so that a slow one leaves time for the others.
set -u
out=${1:?usage: suite.sh OUT}
export PYTHONUNBUFFERED=1
mkdir -p "$out"
REPARTEE_TEST_DEVICE=cuda timeout 80 python3 -m pytest -c /dev/null --rootdir=. \
    --confcutdir=tests/kernels/triton -p no:cacheprovider -q -n 15 tests/kernels/triton \
    > "$out/tests.log" 2>&1
grep -v Warn "$out/tests.log" | tail -4 | cut -c1-200
bench() {
    timeout "$1" python3 -m load_tests.gpu.engine_decode "${@:2}" --out "$out/$2-$3.json" \
        2>&1 | tail -12
}
timeout 50 python3 -m load_tests.gpu.precompile llama3-8b int4 2>&1 | tail -1
bench 55 llama3-8b int4 --batches 1,8,32,128 --prompts 128,512,4096 --repeats 1
bench 35 llama3-8b bf16 --batches 1,128 --prompts 128,512 --repeats 1
bench 25 smollm2-135m bf16 --batches 1,128 --prompts 128 --repeats 1
