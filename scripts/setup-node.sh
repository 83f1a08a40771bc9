#!/usr/bin/env bash
# Puts the TypeScript compiler into .cache/node, for the tests of clients/typescript, where there is Node.js. Done already: returns
# at once. Without Node.js nothing is installed, and those tests are skipped: nothing else here needs it.
set -euo pipefail

version=5.9.3
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "there is no Node.js: the TypeScript client isn't tested"
    exit 0
fi
installed="$root/.cache/node/node_modules/typescript/package.json"
if grep -q "\"version\": \"$version\"" "$installed" 2>/dev/null; then
    exit 0
fi
echo "installing the TypeScript compiler into .cache/node"
npm install --silent --no-audit --no-fund --no-save --prefix "$root/.cache/node" "typescript@$version"
