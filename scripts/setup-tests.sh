#!/usr/bin/env bash
# Brings everything that the tests need into .cache and models: the runtime, Python packages, sample and generated models,
# and what ONNX Runtime's own Python package computes with them. Done already: quick.
set -euo pipefail
scripts="$(dirname "${BASH_SOURCE[0]}")"
"$scripts/setup-runtime.sh"
"$scripts/setup-python.sh"
"$scripts/fetch-models.sh"
"$scripts/setup-node.sh"
"$scripts/setup-schemathesis.sh"
"$scripts/setup-perf-analyzer.sh"
source "$scripts/venv.sh"
"$python" "$scripts/generate-models.py" --out "$cache/test-models" tests mlp mobilenetv2 resnet18 resnet50 filler:2
"$python" "$scripts/expected-outputs.py"
