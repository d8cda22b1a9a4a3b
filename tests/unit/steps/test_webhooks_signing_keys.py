"""Rotation of signing keys: one active key, at most one candidate, each of one caller."""

from base64 import b64encode

import pytest

from conveyor.errors import CandidatePending, NoCandidate
from tests.harness.memory_service import CALLER, STRANGER, a_house


async def test_the_first_key_is_active_and_the_next_waits_beside_it() -> None:
    house = a_house()
    first, secret = await house.rotate.begin(CALLER)
    second, _ = await house.rotate.begin(CALLER)

    keys = await house.rotate.keys(CALLER)
    assert (keys.active, keys.candidate) == (first, second)
    assert secret == b64encode(bytes(range(32))).decode()
    with pytest.raises(CandidatePending):
        await house.rotate.begin(CALLER)

    assert await house.rotate.finish(CALLER) == second
    keys = await house.rotate.keys(CALLER)
    assert (keys.active, keys.candidate) == (second, None)


async def test_a_candidate_can_be_given_up_and_another_made() -> None:
    house = a_house()
    first, _ = await house.rotate.begin(CALLER)
    await house.rotate.begin(CALLER)
    await house.rotate.give_up(CALLER)

    third, _ = await house.rotate.begin(CALLER)

    keys = await house.rotate.keys(CALLER)
    assert (keys.active, keys.candidate) == (first, third)


async def test_without_a_candidate_nothing_is_finished_and_giving_up_changes_nothing() -> None:
    house = a_house()
    for _ in range(2):
        with pytest.raises(NoCandidate):
            await house.rotate.finish(CALLER)
        before = await house.rotate.keys(CALLER)
        await house.rotate.give_up(CALLER)
        assert await house.rotate.keys(CALLER) == before
        await house.rotate.begin(CALLER)
        await house.rotate.keys(STRANGER)
        if (await house.rotate.keys(CALLER)).candidate:
            break


async def test_keys_are_a_callers_own() -> None:
    house = a_house()
    await house.rotate.begin(CALLER)
    keys = await house.rotate.keys(STRANGER)
    assert (keys.active, keys.candidate) == (None, None)


async def test_of_two_rotations_at_once_one_is_refused() -> None:
    house = a_house()
    await house.rotate.begin(CALLER)
    house.trace.before("metadata.commit", 1, lambda: house.rotate.begin(CALLER))

    with pytest.raises(CandidatePending):
        await house.rotate.begin(CALLER)


async def test_a_secret_is_encrypted_for_its_caller_and_its_key() -> None:
    house = a_house()
    key, secret = await house.rotate.begin(CALLER)
    other, _ = await house.rotate.begin(CALLER)
    assert secret.encode() not in key.encrypted_secret
    assert (
        await house.encryption.decrypt(key.encrypted_secret, context=f"{CALLER}|signing|{key.kid}")
        == secret
    )
    for context in (f"{STRANGER}|signing|{key.kid}", f"{CALLER}|signing|{other.kid}"):
        with pytest.raises(Exception, match="cannot be decrypted"):
            await house.encryption.decrypt(key.encrypted_secret, context=context)
