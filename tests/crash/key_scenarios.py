"""Keys and the encryption key, as scripts to die in."""

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.domain.api_key import ApiKey, id_in
from conveyor.domain.ids import ApiKeyId, CallerId
from conveyor.domain.job import Job
from tests.crash.life import Answer, Life
from tests.crash.scenarios import on, pages, scenario, submit

ROTATE = "/operator/encryption/rotate"
CALLER = CallerId("ann")


async def create(life: Life, name: str) -> Answer:
    wanted = {"caller": CALLER, "name": name, "gateway_key": f"gateway key of {name}"[:7]}
    answer = await life.operate(f"create {name}", "POST", "/operator/keys", wanted)
    assert answer.status == 200, answer.body
    return answer


def is_current(life: Life, encrypted: bytes) -> bool:
    assert isinstance(life.raw.encryption, AesKeyRing)
    return life.raw.encryption.is_current(encrypted)


async def gateway_key_of(life: Life, key: Answer) -> str:
    """What the gateway would be asked with for that key."""
    found = await life.raw.metadata.get(ApiKey, id_in(key["key"]) or ApiKeyId(""))
    assert found
    assert is_current(life, found.encrypted_gateway_key or b"")
    return await life.raw.encryption.decrypt(
        found.encrypted_gateway_key or b"", context=f"{found.caller}|{found.id}"
    )


@scenario()
async def make_and_revoke_a_key(life: Life) -> None:
    life.begin()
    key = await create(life, "one")
    revoked = await life.operate("revoke", "DELETE", f"/operator/keys/{id_in(key['key'])}")
    assert revoked["status"] == "revoked"
    found = await life.raw.metadata.get(ApiKey, id_in(key["key"]) or ApiKeyId(""))
    assert found
    assert found.revoked_at
    assert found.encrypted_gateway_key is None


@scenario()
async def change_the_encryption_key(life: Life) -> None:
    """Whenever it dies: run again it comes to its end, and all runs and keys go on."""
    jobs = [await submit(life, pages(2, name), name) for name in ("first", "second", "third")]
    keys = [await create(life, name) for name in ("one", "two", "three")]
    life.begin()
    await life.operate("rotate", "POST", ROTATE)
    assert not (life.data / "encryption.old.key").exists()
    for key in keys:
        assert await gateway_key_of(life, key) == "gateway"
    for job in jobs:
        found = await life.raw.metadata.get(Job, job["job_id"])
        assert found
        assert is_current(life, found.encrypted_gateway_key)
    await life.drain()


@scenario()
async def change_the_encryption_key_while_jobs_move(life: Life) -> None:
    """A job is run again just before its row is re-encrypted: what is written stays."""
    job = await submit(life, pages(2))
    await life.drain()
    life.begin()
    life.deaths.before("metadata.commit", 2, lambda: on(life, job, "rerun"))
    await life.operate("rotate", "POST", ROTATE)
    await on(life, job, "rerun")
    await life.drain()
    found = await life.raw.metadata.get(Job, job["job_id"])
    assert found
    assert is_current(life, found.encrypted_gateway_key)
