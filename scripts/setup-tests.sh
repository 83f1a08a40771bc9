#!/usr/bin/env bash
# Brings everything that the tests need into .cache and models: the runtime, Python packages, sample and generated models,
# what ONNX Runtime's own Python package computes with them, and ONNX's own tests of nodes. Done already: quick.
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
"$python" "$scripts/onnx-node-cases.py" --out "$cache/onnx-nodes"
