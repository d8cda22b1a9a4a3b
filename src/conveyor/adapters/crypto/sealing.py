"""Secrets sealed with AES-256-GCM under a key file of the data folder."""

import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.errors import RefusedToStart, Unavailable

KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = b"\x01"


class AesSealing:
    """Sealed form: a version byte, a nonce, the ciphertext with its tag."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, secret: str, *, context: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return VERSION + nonce + self._cipher.encrypt(nonce, secret.encode(), context.encode())

    def open(self, sealed: bytes, *, context: str) -> str:
        nonce, content = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, content, context.encode()).decode()
        except InvalidTag:
            raise Unavailable("a stored credential does not open with this sealing key") from None


def new_secret() -> bytes:
    """A key that nobody can guess."""
    return os.urandom(KEY_BYTES)


def new_token() -> str:
    """A secret that nobody can guess, for as long as a process lives."""
    return secrets.token_urlsafe(32)


def load_or_make_key(path: Path) -> bytes:
    """The key in a file; made at first use, readable by its owner only."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return _make_key(path)
    if len(key) != KEY_BYTES:
        raise RefusedToStart(f"{path} is not a key of {KEY_BYTES} bytes: restore it from a backup")
    return key


def _make_key(path: Path) -> bytes:
    key = os.urandom(KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, key)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
    _sync_folder(path.parent)
    return key


def _sync_folder(folder: Path) -> None:
    """A key that a power cut takes away takes all that was sealed with it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
