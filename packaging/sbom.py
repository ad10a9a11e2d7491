#!/usr/bin/env python3
"""Writes what the packages are made of, as CycloneDX: sbom.py TOOLS VERSION FOLDER [DEBIAN-PACKAGE...].

FOLDER/crates.cdx.json has the crates of the binary; FOLDER/image.cdx.json the Debian packages, too, whose
files are in the image. Both are the same wherever they are written.
"""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

REPO = Path(__file__).resolve().parent.parent


def crates(tools):
    """The crates of the binary, as cargo-cyclonedx tells them, but only those that cargo links or runs to build
    it: the tool lists crates that are switched off, too."""
    bom = resolved(tools)
    words = ["cargo", "tree", "--locked", "--edges", "normal", "--prefix", "none", "--no-dedupe"]
    tree = subprocess.run(words, cwd=REPO, check=True, capture_output=True, text=True).stdout
    linked = {tuple(line.split()[:2]) for line in tree.splitlines()}
    bom["components"] = [part for part in bom["components"] if (part["name"], f"v{part['version']}") in linked]
    refs = {part["bom-ref"] for part in [bom["metadata"]["component"], *bom["components"]]}
    bom["dependencies"] = [item for item in bom["dependencies"] if item["ref"] in refs]
    for item in bom["dependencies"]:
        item["dependsOn"] = [ref for ref in item.get("dependsOn", []) if ref in refs]
    return bom


def resolved(tools):
    """The crates that cargo-cyclonedx tells. It writes beside Cargo.toml."""
    written = REPO / "tollgate_bin.cdx.json"
    command = [f"{tools}/cargo-cyclonedx", "cyclonedx", "-qq", "--format", "json", "--spec-version", "1.5"]
    subprocess.run([*command, "--describe", "binaries", "--no-build-deps"], cwd=REPO, check=True)
    try:
        return json.loads(written.read_text())
    finally:
        written.unlink()


def ours(bom, version):
    """The same with a name for the binary that has no path of this machine."""
    component = bom["metadata"]["component"]
    name = f"pkg:cargo/{component['name']}@{quote(version)}"
    old = component["bom-ref"]
    component |= {"bom-ref": name, "purl": name, "version": version}
    for dependency in bom["dependencies"]:
        if dependency["ref"] == old:
            dependency["ref"] = name
    assert "file://" not in json.dumps(bom), "a path of this machine is left"
    return bom


def debian(package):
    """A component for an installed package of Debian."""
    query = ["dpkg-query", "--show", "--showformat", "${Version} ${Architecture}", package]
    version, arch = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()
    purl = f"pkg:deb/debian/{quote(package)}@{quote(version)}?arch={arch}"
    return {"type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl}


def main(tools, version, folder, *packages):
    bom = ours(crates(tools), version)
    write(Path(folder, "crates.cdx.json"), bom)
    bom["components"] += map(debian, packages)
    write(Path(folder, "image.cdx.json"), bom)


def write(file, bom):
    file.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
