"""Encryption keys in a record of the metadata, wrapped by a root key: processes share them."""

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
import structlog

from conveyor.adapters.crypto.key_files import KEY_BYTES
from conveyor.adapters.crypto.key_ring import fingerprint
from conveyor.adapters.crypto.root_keys import Root, RootKeys
from conveyor.domain import encryption_keys
from conveyor.domain.encryption_keys import RECORD, DataKey, EncryptionKeys, KeyState
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata

# Processes load the record every `RELOAD_EVERY`. One that has not for so many seconds was stopped, or
# cannot read it, and must not encrypt: the key that it knows may have been replaced.
FRESH = 30.0
LINKS = "link secret"

log = structlog.get_logger()


class KeyRecord:
    """The store of a key ring. Each change is one commit, on condition of the record's version."""

    def __init__(self, metadata: Metadata, clock: Clock, roots: RootKeys) -> None:
        self._metadata, self._clock, self._root_keys = metadata, clock, roots
        self._version = 0  # of the record that was last taken
        self._read_at = 0.0
        self.roots = roots.names
        self.link_secret = b""

    async def open(
        self, keys: Sequence[bytes] = (), link_secret: bytes | None = None
    ) -> Sequence[bytes]:
        """Return the keys; create the record if there is none, by default with a new key.

        Of processes that create it at the same time one succeeds, and all return its keys.
        """
        if await self._metadata.get(EncryptionKeys, RECORD) is None:
            root = await self._root_keys.new()
            first = self._first(root, keys or [_new_key()], link_secret or _new_key())
            with suppress(Stale):
                await self._metadata.commit(first)
                log.info("encryption.created", root=root.fingerprint)
        return await self.reload()

    def is_fresh(self) -> bool:
        return self._clock.monotonic() - self._read_at < FRESH

    async def reload(self) -> Sequence[bytes]:
        began = self._clock.monotonic()
        record = await self._stored()
        keys = await self._take(record) if record.version > self._version else ()
        self._read_at = max(self._read_at, began)
        return keys

    async def publish(self) -> tuple[Sequence[str], Sequence[bytes]]:
        new = _new_key()

        async def change(record: EncryptionKeys) -> EncryptionKeys:
            root = await self._root_keys.of(record)
            return encryption_keys.published(record, self._wrapped(root, new, KeyState.PUBLISHED))

        record = await self._change(change)
        chosen = encryption_keys.next_key(record)
        assert chosen, "published"
        names = [chosen.fingerprint]
        if not self._root_keys.wraps(record):
            names.append(self.roots[0])
        return names, await self._take(record)

    async def promote(self, fingerprint: str) -> Sequence[bytes]:
        async def change(record: EncryptionKeys) -> EncryptionKeys:
            promoted = encryption_keys.promoted(record, fingerprint)
            if self._root_keys.wraps(record):
                return promoted
            return self._rewrapped(
                promoted, await self._root_keys.of(record), await self._root_keys.new()
            )

        return await self._take(await self._change(change))

    async def retire(self, fingerprint: str) -> Sequence[bytes]:
        async def change(record: EncryptionKeys) -> EncryptionKeys:
            return encryption_keys.retired(record, fingerprint, self._clock.now())

        return await self._take(await self._change(change))

    async def has_expired_keys(self) -> bool:
        return bool(encryption_keys.expired(await self._stored(), self._clock.now()))

    async def drop_expired_keys(self) -> None:
        async def change(record: EncryptionKeys) -> EncryptionKeys:
            return encryption_keys.without_expired(record, self._clock.now())

        await self._change(change)

    async def _stored(self) -> EncryptionKeys:
        record = await self._metadata.get(EncryptionKeys, RECORD)
        assert record, "created at the start, and never removed"
        return record

    async def _change(
        self, change: Callable[[EncryptionKeys], Awaitable[EncryptionKeys]]
    ) -> EncryptionKeys:
        """Change the record and return it as it is stored; repeat if another process was faster."""
        while True:
            record = await self._stored()
            changed = await change(record)
            if changed == record:
                return record
            with suppress(Stale):
                await self._metadata.commit(changed)
                return msgspec.structs.replace(changed, version=record.version + 1)

    async def _take(self, record: EncryptionKeys) -> Sequence[bytes]:
        """Return the keys of a record, the current one last; nothing if a later one was taken."""
        root = await self._root_keys.of(record)
        if record.version <= self._version:
            return ()
        order = sorted(record.keys, key=lambda key: key.state is KeyState.CURRENT)
        keys = [root.unwrap(key.wrapped, key.fingerprint) for key in order]
        self.link_secret = root.unwrap(record.wrapped_link_secret, LINKS)
        self._version = record.version
        return keys

    def _first(self, root: Root, keys: Sequence[bytes], link_secret: bytes) -> EncryptionKeys:
        *old, current = keys
        wrapped = [self._wrapped(root, key, KeyState.OLD) for key in old]
        return EncryptionKeys(
            id=RECORD,
            root=root.fingerprint,
            provider=root.provider,
            wrapped_root=root.wrapped,
            keys=(*wrapped, self._wrapped(root, current, KeyState.CURRENT)),
            wrapped_link_secret=root.wrap(link_secret, LINKS),
        )

    def _wrapped(self, root: Root, key: bytes, state: KeyState) -> DataKey:
        name = fingerprint(key).hex()
        return DataKey(
            fingerprint=name,
            wrapped=root.wrap(key, name),
            state=state,
            created_at=self._clock.now(),
        )

    def _rewrapped(self, record: EncryptionKeys, old: Root, new: Root) -> EncryptionKeys:
        """Return the record with the same keys under another root key."""
        keys = tuple(
            msgspec.structs.replace(
                key,
                wrapped=new.wrap(old.unwrap(key.wrapped, key.fingerprint), key.fingerprint),
            )
            for key in record.keys
        )
        return msgspec.structs.replace(
            record,
            root=new.fingerprint,
            provider=new.provider,
            wrapped_root=new.wrapped,
            keys=keys,
            wrapped_link_secret=new.wrap(old.unwrap(record.wrapped_link_secret, LINKS), LINKS),
        )


def _new_key() -> bytes:
    return os.urandom(KEY_BYTES)
