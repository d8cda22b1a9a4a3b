"""The files of npm packages that are part of this repository: `make vendor` fetches them again.

A manifest beside the files pins the version and the checksum of every package and every file, so
that the result is the same on every machine, or an error.
"""

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
MANIFESTS = (
    ROOT / "src/conveyor/api/assets/dashboard/vendor/manifest.json",
    ROOT / "tests/e2e/vendor/manifest.json",
    ROOT / "docs/vendor/manifest.json",
)


class VendoredFile(msgspec.Struct, frozen=True):
    source: str  # its path in the package
    file: str  # its name beside the manifest
    sha256: str


class VendoredPackage(msgspec.Struct, frozen=True):
    name: str
    version: str
    license: str
    integrity: str  # of the package's archive, as npm's registry states it
    files: list[VendoredFile]


def packages(manifest: Path) -> list[VendoredPackage]:
    return msgspec.json.decode(manifest.read_bytes(), type=list[VendoredPackage])


def fetch(package: VendoredPackage) -> Iterator[tuple[VendoredFile, bytes]]:
    """Download a package and yield the files that the manifest names, checked."""
    name = f"{package.name}@{package.version}"
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(folder).iterdir()
        data = archive.read_bytes()
    digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if f"sha512-{digest}" != package.integrity:
        sys.exit(f"{name}: its archive must have {package.integrity}, got sha512-{digest}")
    with tarfile.open(fileobj=io.BytesIO(data)) as members:
        for one in package.files:
            member = members.extractfile(f"package/{one.source}")
            content = member.read() if member else b""
            found = hashlib.sha256(content).hexdigest()
            if found != one.sha256:
                sys.exit(f"{name}: {one.source} must have sha256 {one.sha256}, got {found}")
            yield one, content


if __name__ == "__main__":
    for manifest in MANIFESTS:
        for package in packages(manifest):
            for one, content in fetch(package):
                (manifest.parent / one.file).write_bytes(content)
