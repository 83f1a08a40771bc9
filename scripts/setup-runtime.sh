#!/usr/bin/env bash
# Puts the ONNX Runtime library into .cache/onnxruntime/<version>/, out of the wheel that is pinned here by its hash.
# Done already: returns at once. The version's middle number must be at least that of the `api-NN` feature of the `ort`
# crate in Cargo.toml.
set -euo pipefail

version=1.24.4
library="libonnxruntime.so.$version"
case "$(uname -m)" in
    x86_64) platform=x86_64 sha256=0d640eb9f3782689b55cfa715094474cd5662f2f137be6a6f847a594b6e9705c ;;
    aarch64 | arm64) platform=aarch64 sha256=1a5c5a544b22f90859c88617ecb30e161ee3349fcc73878854f43d77f00558b5 ;;
    *)
        echo "ONNX Runtime $version is pinned for x86_64 and aarch64, not for $(uname -m): set PUNCTUAL_ONNXRUNTIME to a library of your own" >&2
        exit 1
        ;;
esac

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
target="$root/.cache/onnxruntime/$version/$library"
if [ -s "$target" ]; then
    exit 0
fi
source "$root/scripts/venv.sh"
echo "fetching ONNX Runtime $version"
"$python" "$root/scripts/wheels.py" "onnxruntime==$version" --sha256 "$sha256" \
    --python-version 3.12 --platform "manylinux_2_27_$platform" --platform "manylinux_2_28_$platform" \
    --member "onnxruntime/capi/$library" --to "$target"
