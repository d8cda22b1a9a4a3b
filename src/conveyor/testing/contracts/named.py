"""What every record of slots for lists, of exports and of keys must do."""

import msgspec

from conveyor.domain.api_key import ApiKey, Scope
from conveyor.domain.export import Export, ExportStatus
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import CallerId, ExportId, InputId, JobId, KeyId, RunId
from conveyor.domain.list_shape import ListKind, ListSpec
from conveyor.domain.signing import SigningKey
from conveyor.ports.metadata import Removed
from conveyor.testing.clock import NOON
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.factories import (
    CALLER,
    EXPORT,
    INPUT,
    JOB,
    KEY,
    OTHER_RUN,
    RUN,
    a_file_input,
    an_api_key,
    an_export,
    as_stored,
    new_ids,
    signing_keys,
)


class InputsContract:
    async def test_every_field_comes_back(self, engine: Engine) -> None:
        slot = _rich_input()
        await engine.metadata.commit(slot)
        assert await engine.inputs.find(slot.id) == as_stored(slot)

    async def test_what_was_never_stored_or_is_removed_is_none(self, engine: Engine) -> None:
        assert await engine.inputs.find(INPUT) is None
        await engine.metadata.commit(a_file_input())
        await engine.metadata.commit(Removed(a_file_input(version=1)))
        assert await engine.inputs.find(INPUT) is None
        assert not await engine.inputs.page(limit=9)

    async def test_pages_are_in_order_and_join(self, engine: Engine) -> None:
        slots = [a_file_input(id=InputId(name)) for name in new_ids(5)]
        await engine.metadata.commit(*reversed(slots))

        first = await engine.inputs.page(limit=2)
        rest = await engine.inputs.page(limit=9, after=first[-1].id)

        assert [*first, *rest] == [as_stored(slot) for slot in slots]

    async def test_a_change_takes_the_place_of_what_was(self, engine: Engine) -> None:
        await engine.metadata.commit(a_file_input())
        used = a_file_input(jobs=(JOB,), version=1)
        await engine.metadata.commit(used)
        assert await engine.inputs.find(INPUT) == msgspec.structs.replace(used, version=2)


class ExportsContract:
    async def test_every_field_comes_back(self, engine: Engine) -> None:
        export = _rich_export()
        await engine.metadata.commit(export)
        assert await engine.exports.find(export.id) == as_stored(export)

    async def test_what_was_never_stored_or_is_removed_is_none(self, engine: Engine) -> None:
        assert await engine.exports.find(EXPORT) is None
        await engine.metadata.commit(an_export())
        await engine.metadata.commit(Removed(an_export(version=1)))
        assert await engine.exports.find(EXPORT) is None
        assert not await engine.exports.page(limit=9)

    async def test_pages_are_in_order_and_join(self, engine: Engine) -> None:
        exports = [an_export(id=ExportId(name)) for name in new_ids(5)]
        await engine.metadata.commit(*reversed(exports))

        first = await engine.exports.page(limit=2)
        rest = await engine.exports.page(limit=9, after=first[-1].id)

        assert [*first, *rest] == [as_stored(export) for export in exports]

    async def test_the_exports_of_a_run_are_told_apart_from_others(self, engine: Engine) -> None:
        names = [ExportId(name) for name in new_ids(3)]
        runs = [RUN, OTHER_RUN, RUN]
        for name, run_id in zip(names, runs, strict=True):
            await engine.metadata.commit(an_export(id=name, run_id=run_id))

        assert [export.id for export in await engine.exports.of_run(RUN)] == names[::2]
        assert not await engine.exports.of_run(RunId("another"))


class SigningKeysContract:
    async def test_every_field_comes_back(self, engine: Engine) -> None:
        both = signing_keys(
            candidate=SigningKey(kid="kid", encrypted_secret=b"\x00\xff", created_at=NOON)
        )
        await engine.metadata.commit(both)
        assert await engine.signing_keys.find(CALLER) == as_stored(both)

    async def test_what_was_never_stored_or_is_removed_is_none(self, engine: Engine) -> None:
        assert await engine.signing_keys.find(CALLER) is None
        await engine.metadata.commit(signing_keys())
        await engine.metadata.commit(Removed(signing_keys(version=1)))
        assert await engine.signing_keys.find(CALLER) is None

    async def test_pages_are_in_order_and_join(self, engine: Engine) -> None:
        slots = [signing_keys(id=CallerId(name)) for name in new_ids(5)]
        await engine.metadata.commit(*reversed(slots))

        first = await engine.signing_keys.page(limit=2)
        rest = await engine.signing_keys.page(limit=9, after=first[-1].id)

        assert [*first, *rest] == [as_stored(one) for one in slots]


class ApiKeysContract:
    async def test_every_field_comes_back(self, engine: Engine) -> None:
        key = _rich_key()
        await engine.metadata.commit(key)
        assert await engine.api_keys.find(KEY) == as_stored(key)

    async def test_what_was_never_stored_or_is_removed_is_none(self, engine: Engine) -> None:
        assert await engine.api_keys.find(KEY) is None
        await engine.metadata.commit(an_api_key())
        await engine.metadata.commit(Removed(an_api_key(version=1)))
        assert await engine.api_keys.find(KEY) is None

    async def test_pages_are_in_order_and_join(self, engine: Engine) -> None:
        keys = [an_api_key(id=KeyId(name)) for name in new_ids(5)]
        await engine.metadata.commit(*reversed(keys))

        first = await engine.api_keys.page(limit=2)
        rest = await engine.api_keys.page(limit=9, after=first[-1].id)

        assert [*first, *rest] == [as_stored(key) for key in keys]


def _rich_key() -> ApiKey:
    return an_api_key(
        digest=b"\x00\xff",
        name="the crawler's",
        scopes=(Scope.READ,),
        expires_at=NOON,
        revoked_at=NOON,
        last_used_at=NOON,
        encrypted_gateway_key=b"\xff\x00",
    )


def _rich_input() -> FileInput:
    spec = ListSpec(
        kind=ListKind.CSV, delimiter=";", quote="'", header=True, url="link", external_id=3
    )
    return a_file_input(
        spec=spec, blob="inputs/1", length=9, encodings=("gzip",), jobs=(JOB, JobId("other"))
    )


def _rich_export() -> Export:
    return an_export(status=ExportStatus.FAILED, length=7, error="results are larger than 1 gb")
