"""What comes in with our dependencies is what deny.toml allows: licenses, and places that crates come from."""

import json
import pathlib
import re
import subprocess

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings its forerunner
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
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
