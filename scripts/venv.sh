# Sourced by the other scripts: makes the Python environment in .cache/venv, with nothing but pip in it, unless it is there.
# Sets: root (the repository), cache (its .cache folder), python (the environment's interpreter).

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="$root/.cache"
python="$cache/venv/bin/python"

if ! "$python" -c "import pip" >/dev/null 2>&1; then
    if ! command -v python3 >/dev/null; then
        echo "python3 is missing: install it, for instance with 'apt-get install python3 python3-venv'" >&2
        exit 1
    fi
    mkdir -p "$cache"
    rm -rf "$cache/venv"
    if ! python3 -m venv "$cache/venv" >"$cache/venv.log" 2>&1; then
        echo "no Python environment could be made: install it with 'apt-get install python3-venv' (details: .cache/venv.log)" >&2
        exit 1
    fi
fi
