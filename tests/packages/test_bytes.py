"""What the packages are made of, and that a second build gives the same bytes."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path
from urllib.parse import unquote

from debian import VAR
from processes import REPO

# Debian 11 has 2.31 and Debian 12 has 2.36; Ubuntu 22.04 has 2.35, and Red Hat's 9 has 2.34.
GLIBC_MAX = (2, 34)


def output(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True, cwd=REPO).stdout


class Bytes(unittest.TestCase):
    def test_two_builds_give_the_same(self):
        sums = [(VAR / name / "SHA256SUMS").read_text() for name in ("one", "two")]
        self.assertEqual(*sums)
        self.assertEqual(len(sums[0].splitlines()), 3, "a package, an image, a list of crates")
        for name in ("one", "two"):
            subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=VAR / name, check=True)
        self.assertNotEqual(sums[0], (VAR / "next/SHA256SUMS").read_text(), "another version is the same")

    def test_the_binary_needs_no_later_glibc_than_is_said(self):
        binary = os.environ["TOLLGATE_BIN"]
        versions = re.findall(r"GLIBC_(\d+)\.(\d+)", output("objdump", "--dynamic-syms", binary))
        found = max((int(major), int(minor)) for major, minor in versions)
        self.assertEqual(found, GLIBC_MAX, "docs/operate/packages.md says it, too")
        (package,) = (VAR / "one").glob("*.deb")
        self.assertIn("libc6 (>= 2.34)", output("dpkg-deb", "--field", str(package), "Depends"))

    def test_the_list_of_crates_is_that_of_the_binary(self):
        (file,) = (VAR / "one").glob("*.cdx.json")
        bom = json.loads(file.read_text())
        self.assertEqual((bom["bomFormat"], bom["specVersion"]), ("CycloneDX", "1.5"))
        purls = {part["purl"].split("?")[0] for part in bom["components"]}
        listed = {purl[len("pkg:cargo/") :].replace("@", "-") for purl in purls if purl.startswith("pkg:cargo/")}
        # The binary names the sources of what may panic.
        paths = re.findall(rb"registry/src/[^/\0]+/([\w.+-]+)/", Path(os.environ["TOLLGATE_BIN"]).read_bytes())
        linked = {path.decode() for path in paths}
        self.assertGreater(len(linked), 100)
        self.assertEqual(linked - {unquote(name) for name in listed}, set())
        # None that only tests or only other systems need.
        locked = (REPO / "Cargo.lock").read_text()
        for name in ("proptest", "divan", "windows-sys"):
            self.assertIn(f'name = "{name}"', locked)
            self.assertFalse([crate for crate in listed if crate.startswith(f"{name}-")], name)
        debian = {purl.split("/")[2].split("@")[0] for purl in purls if purl.startswith("pkg:deb/")}
        self.assertEqual(debian, {"libc6", "libgcc-s1", "ca-certificates"})
        for part in bom["components"]:
            if part["purl"].startswith("pkg:cargo/"):
                self.assertTrue(part["hashes"] and part["licenses"], part["purl"])


if __name__ == "__main__":
    unittest.main()
