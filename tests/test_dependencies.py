"""What comes in with our dependencies is what deny.toml allows: licenses, and places that crates come from. Nothing comes in that nobody uses, and the bill of materials has all of it."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings its forerunner
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import sbom  # noqa: E402
RULES = tomllib.loads((ROOT / "deny.toml").read_text())


def satisfied(expression, allowed):
    """Whether somebody who accepts those licenses may use what stands under an SPDX expression."""
    while inner := re.search(r"\(([^()]*)\)", expression):
        expression = expression.replace(inner[0], "yes" if satisfied(inner[1], allowed) else "no")
    accepted = {*allowed, "yes"}
    return any(all(term.strip() in accepted for term in choice.split(" AND ")) for choice in re.split(" OR |/", expression))


@pytest.mark.parametrize("expression, expected", [
    ("MIT", True),
    ("GPL-3.0", False),
    ("GPL-3.0 OR MIT", True),
    ("GPL-3.0/MIT", True),
    ("MIT AND GPL-3.0", False),
    ("(MIT OR GPL-3.0) AND ISC", True),
    ("(MIT OR (GPL-3.0 AND ISC)) AND (GPL-3.0 OR BSL-1.0)", False),
    ("Apache-2.0 WITH LLVM-exception", True),
    ("Apache-2.0", False),
    ("", False),
])  # fmt: skip
def test_expressions_are_read_as_spdx_means_them(expression, expected):
    assert satisfied(expression, ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]) is expected


@pytest.mark.parametrize("target", RULES["graph"]["targets"])
def test_every_crate_is_allowed(target):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features", "--filter-platform", target]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    used = {node["id"] for node in found["resolve"]["nodes"]}
    crates = [crate for crate in found["packages"] if crate["id"] in used]
    assert len(crates) > len(found["workspace_members"])
    sources = {None, *(f"registry+{registry}" for registry in RULES["sources"]["allow-registry"])}
    foreign = [f"{crate['name']} comes from {crate['source']}" for crate in crates if crate["source"] not in sources]
    allowed = RULES["licenses"]["allow"]
    under = [(crate["name"], crate["license"] or "") for crate in crates]
    refused = [f"{name} is under {license or 'no license'}" for name, license in under if not satisfied(license, allowed)]
    assert foreign + refused == []


# Named by no line that anybody wrote: they choose features of crates that others bring, or generated code names them.
NAMED_BY_NOBODY = {("repository", "reqwest"), ("repository", "rustls"), ("wire", "tonic-prost")}


def unused(manifest):
    """The dependencies of a crate that no line of its code names."""
    crate = manifest.parent
    settings = tomllib.loads(manifest.read_text())
    named = {*settings.get("dependencies", {}), *settings.get("dev-dependencies", {}), *settings.get("build-dependencies", {})}
    for_platforms = settings.get("target", {}).values()
    named |= {name for platform in for_platforms for name in platform.get("dependencies", {})}
    code = "\n".join(path.read_text() for path in crate.rglob("*.rs"))
    return [(crate.name, name) for name in sorted(named) if not re.search(rf"\b{name.replace('-', '_')}\b", code)]


def test_every_dependency_is_used():
    found = [entry for manifest in sorted(ROOT.glob("crates/*/Cargo.toml")) for entry in unused(manifest)]
    assert set(found) - NAMED_BY_NOBODY == set()


def test_the_bill_of_materials_has_every_crate_of_the_binary():
    document = sbom.bill()
    names = {component["name"] for component in document["components"]}
    assert {"hyper", "h2", "gateway", "scheduler"} <= names
    assert names.isdisjoint({"proptest", "expect-test", "libfuzzer-sys"})
    references = {component["bom-ref"] for component in [*document["components"], document["metadata"]["component"]]}
    assert {entry["ref"] for entry in document["dependencies"]} == references
    foreign = [component for component in document["components"] if not (ROOT / "crates" / component["name"]).exists()]
    assert all("hashes" in component and "licenses" in component for component in foreign)
