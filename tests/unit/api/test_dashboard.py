"""The dashboard's files are the pinned ones, and its policy names where browsers upload lists."""

import hashlib
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from conveyor.api.dashboard import ASSETS, Dashboard
from conveyor.ports.blobs import SignedUpload
from tests.vendor import MANIFESTS, packages

OURS = [path for path in (ASSETS / "dashboard").rglob("*.js") if "vendor" not in path.parts]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.parent.name)
def test_the_vendored_files_are_those_of_the_manifest(manifest: Path) -> None:
    pinned = {one.file: one.sha256 for package in packages(manifest) for one in package.files}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in manifest.parent.iterdir()
        if path != manifest
    }
    assert found == pinned
    for package in packages(manifest):
        assert any("LICENSE" in one.file for one in package.files), package.name


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_module_imports_files_that_exist_and_writes_no_markup_from_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r'(?:from |import\()"(\.[^"]+)"', text):
        assert (path.parent / name).exists(), name
    assert not re.search(r"innerHTML|dangerouslySetInnerHTML|document\.write|\beval\(", text)
    assert len(text.splitlines()) <= 500


class _Storage:
    def __init__(self, signed: SignedUpload | None) -> None:
        self.signed = signed

    def sign_put(self, key: str, *, content_type: str, life: timedelta) -> SignedUpload | None:
        return self.signed


@pytest.mark.parametrize(
    ("signed", "sources"),
    [
        (None, "connect-src 'self'"),
        (
            SignedUpload("https://lists.s3.eu-west-1.amazonaws.com/origin?X-Amz-Date=1", {}),
            "connect-src 'self' https://lists.s3.eu-west-1.amazonaws.com",
        ),
        (
            SignedUpload("http://127.0.0.1:9000/bucket/origin?x", {}),
            "connect-src 'self' http://127.0.0.1:9000",
        ),
    ],
)
async def test_the_policy_allows_nothing_else_than_the_service_and_the_storage_of_uploads(
    signed: SignedUpload | None, sources: str
) -> None:
    blobs: Any = _Storage(signed)
    served = httpx.ASGITransport(Starlette(routes=Dashboard(blobs).routes()))
    async with httpx.AsyncClient(transport=served, base_url="http://dashboard") as client:
        policy = (await client.get("/")).headers["content-security-policy"].split("; ")
    assert policy == [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "frame-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        sources,
    ]
