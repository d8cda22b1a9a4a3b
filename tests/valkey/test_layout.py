"""Keys are those of docs/storage/valkey.md, and a user who may do no more than it says can do all."""

import re
from contextlib import aclosing
from datetime import timedelta

from conveyor.domain.ids import JobId
from conveyor.ports.coordination import Notification, PermitRequest
from conveyor.steps.dispatch.permits import permit_name
from conveyor.testing.factories import a_member
from tests.docs.chapters import VALKEY, section, tables
from tests.harness.valkey import Valkey, a_prefix, a_valkey, coordination_at

HOUR = timedelta(hours=1)


async def test_keys_have_the_names_and_types_of_the_documentation(valkey: Valkey) -> None:
    prefix = a_prefix()
    async with coordination_at(f"{valkey.url}?prefix={prefix}") as coordination:
        await coordination.reserve({permit_name(JobId("j")): PermitRequest(1, 1)})
        await coordination.take("b", rate=0.01, burst=5)
        await coordination.remember({"c": b""}, life=HOUR)
        await coordination.announce(a_member(), life=HOUR)
    names = {"permits": "job:j", "bucket": "b", "cache": "c"}
    [rows] = tables("Keys", VALKEY)
    documented = {
        row["key"].strip("`").replace("<prefix>", prefix).replace("<name>", name): row["type"]
        for row in rows
        for name in [names.get(row["key"].split(":")[1], "")]
    }
    kinds = {"zset": "sorted set"}
    with valkey.client() as client:
        keys = {key.decode(): client.type(key).decode() for key in client.keys(f"{prefix}:*")}
        assert all(client.pttl(key) > 0 for key in keys)
    assert {key: kinds.get(kind, kind) for key, kind in keys.items()} == documented


async def test_a_user_with_the_documented_rights_can_make_every_call() -> None:
    text = section("Configuration of the server", VALKEY).partition("Access control")[2]
    commands = [name.replace(" ", "|").lower() for name in re.findall(r"`([A-Z ]+)`", text)]
    with a_valkey() as server:
        with server.client() as client:
            rights = ["~conveyor:*", "&conveyor:*", "-@all", *(f"+{name}" for name in commands)]
            client.execute_command("ACL", "SETUSER", "worker", "on", ">word", *rights)
        url = server.url.replace("//", "//worker:word@")
        async with (
            coordination_at(url) as coordination,
            aclosing(coordination.notifications(["runs"])) as notifications,
        ):
            assert await anext(notifications) == Notification("runs", None)
            granted = await coordination.reserve({"one": PermitRequest(2, 2)})
            await coordination.renew(granted)
            await coordination.release(granted)
            assert await coordination.held("one") == 0
            assert (await coordination.take("bucket", rate=1.0, burst=5)).granted
            await coordination.remember({"one": b"1"}, life=HOUR)
            assert await coordination.recall(["one"]) == {"one": b"1"}
            await coordination.notify("runs", ["one"])
            assert await anext(notifications) == Notification("runs", frozenset({"one"}))
            await coordination.announce(a_member(), life=HOUR)
            assert list(await coordination.members()) == [a_member()]
