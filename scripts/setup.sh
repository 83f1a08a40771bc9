#!/usr/bin/env bash
# Installs what a fresh Debian or Ubuntu lacks: a C toolchain, Python, Rust. With `solver` also what the solver of
# `punctual place` is built with. Done already: quick.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else echo "this needs root to install packages, and there is no sudo: run it as root once" >&2; exit 1
  fi
}

needed=()
have() { command -v "$1" >/dev/null 2>&1; }
have cc && have c++ || needed+=(build-essential)
if [ "${1:-}" = solver ]; then
  # It is C++, built with cmake; its bindings are made with libclang.
  have cmake || needed+=(cmake)
  # (libclang-cpp is another library.)
  { ldconfig -p 2>/dev/null || true; ls /usr/lib/llvm-*/lib 2>/dev/null || true; } | grep -E 'libclang(-[0-9.]+)?\.so' >/dev/null ||
    needed+=(libclang-dev)
fi
have curl || needed+=(curl ca-certificates)
have python3 || needed+=(python3)
python3 -c 'import venv, ensurepip' 2>/dev/null || needed+=(python3-venv)
if [ ${#needed[@]} -gt 0 ]; then
  echo "installing ${needed[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${needed[@]}" >/dev/null
fi

[ -f "$HOME/.cargo/env" ] && source "$HOME/.cargo/env"
# A distribution's own cargo doesn't read rust-toolchain.toml and is too old.
if ! have rustup; then
  echo "installing the Rust toolchain"
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq rustup >/dev/null 2>&1; then
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal >/dev/null
  fi
fi
[ -f "$HOME/.cargo/env" ] && source "$HOME/.cargo/env"
# rust-toolchain.toml names the version; asking for it once makes rustup fetch it.
cargo --version >/dev/null
