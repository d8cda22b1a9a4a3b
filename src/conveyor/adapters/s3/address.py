"""The address of an S3 engine: `s3://bucket/prefix?endpoint=…&region=…&layout=…`."""

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import msgspec

FORM = "//bucket/prefix"
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
REGION = re.compile(r"[a-z0-9-]+")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # as the AWS programs read them
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Servers other than AWS accept any region, as long as it is the one that requests are signed for.
ANY_REGION = "us-east-1"


class Layout(StrEnum):
    """How result bodies are stored."""

    OBJECTS = "objects"  # each as an object
    SEGMENTS = "segments"  # those that are put together as one object


class S3Address(msgspec.Struct, frozen=True, kw_only=True):
    bucket: str
    prefix: str = ""  # of every key; it ends with a slash unless it is empty
    endpoint: str = ""  # empty for AWS itself
    region: str = ""  # empty: as the profile says
    layout: Layout = Layout.OBJECTS

    @property
    def url(self) -> str:
        """The URL of the bucket. A key follows after a slash."""
        if self.endpoint:
            return f"{self.endpoint}/{self.bucket}"
        if "." in self.bucket:  # the certificate of AWS does not cover names below these
            return f"https://s3.{self.region}.amazonaws.com/{self.bucket}"
        return f"https://{self.bucket}.s3.{self.region}.amazonaws.com"

    @property
    def is_path_style(self) -> bool:
        return bool(self.endpoint) or "." in self.bucket

    def url_of(self, key: str) -> str:
        return f"{self.url}/{quote(self.prefix + key, safe='/-_.~')}"


def parse_address(text: str, environ: Mapping[str, str] = os.environ) -> S3Address | None:
    """The address that follows `s3:`; None if it is not one."""
    try:
        parts = urlsplit(f"s3:{text}")
        given = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
        layout = Layout(given.pop("layout", Layout.OBJECTS))
    except ValueError:
        return None
    prefix = parts.path.strip("/")
    endpoint = given.pop("endpoint", None)
    region = given.pop("region", None)
    is_good = (
        text.startswith("//")
        and BUCKET.fullmatch(parts.netloc)
        and (not prefix or (PREFIX.fullmatch(prefix) and ".." not in prefix.split("/")))
        and (endpoint is None or _is_endpoint(endpoint))
        and (region is None or REGION.fullmatch(region))
        and not (given or parts.fragment)
    )
    if not is_good:
        return None
    endpoint = _normalised(endpoint or _first(environ, ENDPOINTS))
    return S3Address(
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint=endpoint,
        region=region or _first(environ, REGIONS) or (ANY_REGION if endpoint else ""),
        layout=layout,
    )


def _is_endpoint(text: str) -> bool:
    """Whether it is a scheme, a host and a port alone: presigned URLs begin with it."""
    parts = urlsplit(text)
    is_plain = "@" not in parts.netloc and not (parts.query or parts.fragment)
    is_root = parts.path in {"", "/"}
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and is_root and is_plain


def _normalised(endpoint: str) -> str:
    """The endpoint as HTTP clients write it in `Host`, which is signed."""
    parts = urlsplit(endpoint.rstrip("/"))
    host = parts.netloc.lower()
    default = DEFAULT_PORTS.get(parts.scheme, "")
    return urlunsplit(parts._replace(netloc=host.removesuffix(default)))


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
