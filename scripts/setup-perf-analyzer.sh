#!/usr/bin/env bash
# Brings Triton's perf_analyzer into .cache/perf-analyzer. The program is in the wheel of tritonclient 2.51.0 for Linux (later
# ones need a newer C library or don't have it, and the project of its own name is a placeholder). It needs two libraries: CUDA's
# runtime, from its wheel, and libb64, from the distribution's package, unpacked here so that nothing is installed.
# Done already: returns at once. Sets, when sourced: perf_analyzer (how to call it).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

home="$cache/perf-analyzer"
perf_analyzer="$home/perf_analyzer"
if ! "$perf_analyzer" --version >/dev/null 2>&1; then
    echo "installing perf_analyzer into .cache/perf-analyzer"
    rm -rf "$home"
    mkdir -p "$home"
    python3 -m venv "$home/venv"
    "$home/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
        tritonclient==2.51.0 nvidia-cuda-runtime-cu12==12.9.79
    libraries="$(dirname "$(find "$home/venv" -name 'libcudart.so.12' | head -1)")"
    if ! ldconfig -p | grep -q 'libb64\.so\.0d'; then
        (cd "$home" && apt-get download --quiet libb64-0d >/dev/null && dpkg -x libb64-0d_*.deb libb64)
        libraries="$libraries:$(dirname "$(find "$home/libb64" -name 'libb64.so.0d' | head -1)")"
    fi
    printf '#!/usr/bin/env bash\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$libraries" "$home/venv/bin/perf_analyzer" >"$perf_analyzer"
    chmod +x "$perf_analyzer"
    "$perf_analyzer" --version
fi
