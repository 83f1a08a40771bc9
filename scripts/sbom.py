#!/usr/bin/env python3
"""Writes which crates the server is made of, as CycloneDX 1.5 (JSON), which scanners of dependencies read.

    scripts/sbom.py [--output target/punctual.cdx.json] [--features placement]

Crates are those of the binary `punctual` on this platform: what only tests and builds use isn't among them. Versions and checksums are Cargo.lock's.
"""

import argparse
import json
import pathlib
import subprocess

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def metadata(features):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", platform()]
    if features:
        command += ["--features", ",".join(f"cli/{feature}" for feature in features)]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def platform():
    said = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.split()[1] for line in said.splitlines() if line.startswith("host:"))


def needed(found):
    """What the binary is linked from: for each crate, its identity's set of others, without those for tests and builds."""
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    linked = lambda node: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    root = next(crate["id"] for crate in found["packages"] if crate["name"] == "cli" and crate["source"] is None)
    graph, waiting = {}, [root]
    while waiting:
        crate = waiting.pop()
        if crate not in graph:
            graph[crate] = linked(nodes[crate])
            waiting += graph[crate]
    return root, graph


def reference(crate):
    return f"pkg:cargo/{crate['name']}@{crate['version']}"


def component(crate, checksums):
    entry = {"type": "library", "name": crate["name"], "version": crate["version"], "bom-ref": reference(crate), "purl": reference(crate)}
    if crate["license"]:
        entry["licenses"] = [{"expression": crate["license"].replace("/", " OR ")}]
    if checksum := checksums.get((crate["name"], crate["version"])):
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def bill(features=()):
    """The whole document."""
    found = metadata(features)
    crates = {crate["id"]: crate for crate in found["packages"]}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(crate["name"], crate["version"]): crate.get("checksum") for crate in lock["package"]}
    root, graph = needed(found)
    others = sorted((crates[crate] for crate in graph if crate != root), key=reference)
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {**component(crates[root], checksums), "type": "application", "name": "punctual"}},
        "components": [component(crate, checksums) for crate in others],
        "dependencies": [{"ref": reference(crates[crate]), "dependsOn": sorted(reference(crates[other]) for other in uses)} for crate, uses in sorted(graph.items())],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "target" / "punctual.cdx.json")
    parser.add_argument("--features", nargs="*", default=[])
    arguments = parser.parse_args()
    document = bill(arguments.features)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{arguments.output}: {len(document['components'])} crates")


if __name__ == "__main__":
    main()
