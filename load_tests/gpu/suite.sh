#!/usr/bin/env bash
# Tests on the card, then the whole engine's figures: bash load_tests/gpu/suite.sh OUT
# Each part has a limit of its own, so that a slow one leaves time for the others.
set -u
out=${1:?usage: suite.sh OUT}
export PYTHONUNBUFFERED=1
mkdir -p "$out"
part() {
    timeout "$1" "${@:3}" > "$out/$2.log" 2>&1
    echo "== $2: exit $?"
    grep -v Warn "$out/$2.log" | tail -14 | cut -c1-200
}
compile() {
    timeout 80 python3 -m load_tests.gpu.precompile "$@" 2>&1 | tail -1
}
# Compilation takes the cores that the tests leave.
compile llama3-8b int4 &
compile llama3-8b bf16 &
compile smollm2-135m bf16 &
REPARTEE_TEST_DEVICE=cuda part 110 tests python3 -m pytest -c /dev/null --rootdir=. \
    --confcutdir=tests/kernels/triton -p no:cacheprovider -q -n 14 tests/kernels/triton
wait
bench() {
    part "$1" "$2-$3" python3 -m load_tests.gpu.engine_decode "${@:2}" --out "$out/$2-$3.json"
}
bench 75 llama3-8b int4 --batches 1,8,32,128 --prompts 128,512,4096
bench 60 llama3-8b bf16 --batches 1,128 --prompts 128,512,4096
bench 40 smollm2-135m bf16 --batches 1,128 --prompts 128,512
part 45 profile-int4 python3 -m load_tests.gpu.step_profile llama3-8b int4 \
    --batches 1,8,32 --pieces 128 --out "$out/profile-int4.json"
