"""A server that is killed, suspended, emptied or replaced in the middle of calls."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from redis import Redis

from conveyor.adapters.redis import server as server_module
from conveyor.adapters.redis.coordination import MOST_UNRELEASED, RedisCoordination
from conveyor.adapters.redis.server import CONNECTIONS
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Coordination, Notification, PermitRequest
from conveyor.testing.factories import a_member
from tests.certificates import Authority
from tests.harness.permits import reserve_named as reserve
from tests.harness.valkey import (
    SLOTS,
    Valkey,
    a_cluster,
    a_valkey,
    coordination_at,
    tls_in_front_of,
    wait_for_cluster,
)

SOON = 120.0  # seconds, on a machine that is busy with other tests
SHORT = timedelta(milliseconds=200)  # deadline of calls that are to fail
HOUR = timedelta(hours=1)
NAME = "job:one"
CALLS: dict[str, Callable[[Coordination], Awaitable[object]]] = {
    "reserve": lambda engine: engine.reserve({NAME: PermitRequest(1, 9)}),
    "renew": lambda engine: engine.renew({NAME: ["one"]}),
    "release": lambda engine: engine.release({NAME: ["one"]}),
    "held": lambda engine: engine.held(NAME),
    "take": lambda engine: engine.take("bucket", rate=1.0, burst=9),
    "recall": lambda engine: engine.recall(["one", "other"]),
    "remember": lambda engine: engine.remember({"one": b"1", "other": b"2"}, life=HOUR),
    "notify": lambda engine: engine.notify("runs", ["one"]),
    "notifications": lambda engine: anext(engine.notifications(["runs"])),
    "announce": lambda engine: engine.announce(a_member(), life=HOUR),
    "members": lambda engine: engine.members(),
}


async def answered(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until the server answers it."""
    async with asyncio.timeout(SOON):
        while True:
            try:
                await call()
                return
            except Unavailable:
                await asyncio.sleep(0.01)  # there is nothing to wait on but the server


@asynccontextmanager
async def under_load(coordination: RedisCoordination) -> AsyncIterator[list[str]]:
    """Calls of every kind, many at once, until the end; the names of those that were answered."""
    done: list[str] = []
    stopping = asyncio.Event()

    async def repeat(dice: Random) -> None:
        while not stopping.is_set():
            name = dice.choice(list(CALLS))
            with suppress(Unavailable):
                await CALLS[name](coordination)
                done.append(name)
            await asyncio.sleep(0.01)

    # A call that raises anything else ends the group, and the test.
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        for seed in range(20):
            group.create_task(repeat(Random(seed)))
        try:
            yield done
        finally:
            stopping.set()


async def more_of(done: list[str], count: int = 100) -> None:
    expected = len(done) + count
    while len(done) < expected:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_of_a_server_that_does_not_answer_ends_in_time(
    own_valkey: Valkey, name: str
) -> None:
    async with coordination_at(own_valkey.url, deadline=SHORT) as coordination:
        await answered(lambda: CALLS[name](coordination))
        own_valkey.suspend()
        async with asyncio.timeout(SOON):
            with pytest.raises(Unavailable, match=f"127.0.0.1:{own_valkey.port} does not answer"):
                await CALLS[name](coordination)
        own_valkey.resume()
        await answered(lambda: CALLS[name](coordination))
        own_valkey.kill()
        async with asyncio.timeout(SOON):
            with pytest.raises(Unavailable):
                await CALLS[name](coordination)
        own_valkey.start()
        await answered(lambda: CALLS[name](coordination))


async def test_calls_under_way_fail_as_unavailable_and_later_ones_succeed(
    own_valkey: Valkey,
) -> None:
    async with (
        coordination_at(own_valkey.url, deadline=SHORT) as coordination,
        under_load(coordination) as done,
    ):
        for _ in range(3):
            await more_of(done)
            own_valkey.kill()
            own_valkey.start()
            await more_of(done)
            own_valkey.suspend()
            await asyncio.sleep(2 * SHORT.total_seconds())  # longer than calls wait
            own_valkey.resume()


async def test_one_node_of_a_cluster_fails_and_returns() -> None:
    with a_cluster() as servers:
        url = f"{servers[0].url}?cluster=true"
        async with (
            coordination_at(url, deadline=SHORT) as coordination,
            under_load(coordination) as done,
        ):
            # The first node is the one that the client was told of.
            for server in (servers[1], servers[0]):
                await more_of(done)
                server.kill()
                server.start()
                await asyncio.to_thread(wait_for_cluster, server)
                await more_of(done)
                server.suspend()
                await asyncio.sleep(2 * SHORT.total_seconds())
                server.resume()
                await more_of(done)


async def test_a_node_that_is_away_does_not_keep_calls_of_other_nodes_from_succeeding() -> None:
    with a_cluster() as servers, ExitStack() as stack:
        nodes = [stack.enter_context(server.client()) for server in servers]
        for node in nodes:
            node.config_set("cluster-require-full-coverage", "no")
        url = f"{servers[0].url}?cluster=true"
        async with coordination_at(url, deadline=SHORT) as coordination:
            await answered(lambda: reserve(coordination, NAME, want=1, cap=9))
            slot = int(nodes[0].execute_command("CLUSTER", "KEYSLOT", NAME))
            dead = slot * len(nodes) // SLOTS
            elsewhere = [name for name in map(str, range(20)) if _node_of(nodes, name) != dead]
            servers[dead].kill()
            for call in (
                lambda: coordination.release({NAME: ["one"]}),
                lambda: reserve(coordination, NAME, want=1, cap=9),
            ):
                with pytest.raises(Unavailable):
                    await call()
            # The release above is overdue, and the node did not answer a moment ago.
            cached = [f"{{{name}}}" for name in elsewhere[:3]]
            assert await coordination.recall(cached) == {}
            for name in elsewhere[:3]:
                assert len(await reserve(coordination, name, want=1, cap=1)) == 1
            servers[dead].start()
            await asyncio.to_thread(wait_for_cluster, servers[dead])
            await answered(lambda: coordination.release({NAME: ["one"]}))
            assert not coordination._unreleased


def _node_of(nodes: Sequence["Redis"], name: str) -> int:
    slot = int(nodes[0].execute_command("CLUSTER", "KEYSLOT", name))  # type: ignore[no-untyped-call]
    return slot * len(nodes) // SLOTS


async def test_a_slot_that_moves_to_another_node_is_followed() -> None:
    with a_cluster() as servers, ExitStack() as stack:
        nodes = [stack.enter_context(server.client()) for server in servers]
        slot = int(nodes[0].execute_command("CLUSTER", "KEYSLOT", NAME))
        source = nodes.pop(slot * len(nodes) // SLOTS)
        target = nodes[0]
        source_id, target_id = (
            node.execute_command("CLUSTER", "MYID") for node in (source, target)
        )
        async with coordination_at(f"{servers[0].url}?cluster=true") as coordination:
            granted = await reserve(coordination, NAME, want=2, cap=2)
            await coordination.release({NAME: granted})

            target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
            source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
            assert len(await reserve(coordination, NAME, want=1, cap=2)) == 1
            assert await coordination.held(NAME) == 1

            for node in (target, source, *nodes):
                node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
            assert len(await reserve(coordination, NAME, want=5, cap=2)) == 1
            assert await coordination.held(NAME) == 2


# Permits.


async def test_permits_whose_answer_was_lost_are_released_with_the_next_call(
    own_valkey: Valkey,
) -> None:
    async with (
        coordination_at(own_valkey.url, deadline=SHORT) as coordination,
        coordination_at(own_valkey.url) as observer,
    ):
        await answered(lambda: reserve(coordination, "job:other", want=1, cap=1))
        own_valkey.suspend()
        with pytest.raises(Unavailable):
            await reserve(coordination, NAME, want=5, cap=5)
        own_valkey.resume()
        # The server finds the request in its connection, and grants permits that nobody knows of.
        async with asyncio.timeout(SOON):
            while await observer.held(NAME) < 5:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
        granted: Sequence[str] = ()

        async def reserve_all() -> None:
            nonlocal granted
            granted = await reserve(coordination, NAME, want=5, cap=5)

        await answered(reserve_all)
        assert len(granted) == 5
        assert await observer.held(NAME) == 5


async def test_permits_of_a_call_that_was_cancelled_are_released_with_the_next(
    own_valkey: Valkey,
) -> None:
    async with coordination_at(own_valkey.url) as coordination:
        kept = await reserve(coordination, NAME, want=1, cap=5)
        own_valkey.suspend()
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(reserve(coordination, NAME, want=4, cap=5)),
                group.create_task(coordination.release({NAME: kept})),
            ]
            await asyncio.sleep(0.1)  # until the requests are in the server's connection
            for call in calls:
                call.cancel()
        own_valkey.resume()
        assert len(await reserve(coordination, NAME, want=9, cap=5)) == 5
        assert await coordination.held(NAME) == 5


async def test_no_more_permits_than_a_bound_are_kept_to_be_released(own_valkey: Valkey) -> None:
    async with coordination_at(own_valkey.url, deadline=SHORT) as coordination:
        own_valkey.kill()
        for number in range(4):
            with pytest.raises(Unavailable):
                await reserve(coordination, f"job:{number}", want=MOST_UNRELEASED // 2, cap=99)
        kept = coordination._unreleased
        assert {name: len(ids) for name, ids in kept.items()} == {
            "job:0": MOST_UNRELEASED // 2,
            "job:1": MOST_UNRELEASED // 2,
        }


async def test_after_an_empty_restart_a_renewal_reserves_permits_again(own_valkey: Valkey) -> None:
    async with (
        coordination_at(own_valkey.url) as coordination,
        coordination_at(own_valkey.url) as another,
    ):
        granted = await reserve(coordination, NAME, want=3, cap=3)
        own_valkey.kill()
        own_valkey.start()
        assert len(await reserve(another, NAME, want=1, cap=3)) == 1
        await coordination.renew({NAME: granted})
        assert await coordination.held(NAME) == 4
        assert list(await reserve(another, NAME, want=1, cap=3)) == []


# Calls.


async def test_a_server_that_forgot_the_scripts_is_sent_them_again(own_valkey: Valkey) -> None:
    async with coordination_at(own_valkey.url) as coordination:
        wants = {f"job:{number}": PermitRequest(2, 2) for number in range(5)}
        granted = await coordination.reserve(wants)
        with own_valkey.client() as client:
            client.script_flush()
        await coordination.renew(granted)
        await coordination.release(granted)
        again = await coordination.reserve(wants)
        assert {name: len(ids) for name, ids in again.items()} == dict.fromkeys(wants, 2)


async def test_a_cancelled_call_does_not_give_its_answer_to_another(valkey: Valkey) -> None:
    dice = Random(5)
    async with coordination_at(f"{valkey.url}?prefix=cancelled") as coordination:
        values = {str(number): str(number).encode() * 50 for number in range(50)}
        await coordination.remember(values, life=HOUR)

        async def read(name: str) -> None:
            assert await coordination.recall([name]) == {name: values[name]}

        for _ in range(20):
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(read(name)) for name in values]
                for _ in range(dice.randrange(30)):
                    await asyncio.sleep(0)
                for call in dice.sample(calls, 25):
                    call.cancel()


async def test_connections_are_bounded_whatever_the_number_of_calls(own_valkey: Valkey) -> None:
    async with coordination_at(own_valkey.url) as coordination:
        await asyncio.gather(*(coordination.held(str(number)) for number in range(1_000)))
        with own_valkey.client() as client:
            assert client.info("clients")["connected_clients"] <= CONNECTIONS + 1


async def test_calls_that_can_do_without_the_server_do_not_wait_for_one_that_is_away(
    own_valkey: Valkey,
) -> None:
    url = own_valkey.url
    async with coordination_at(url, deadline=SHORT) as coordination:
        await coordination.recall(["one"])
        own_valkey.suspend()
        with pytest.raises(Unavailable, match="does not answer"):
            await coordination.recall(["one"])
        for call in ("recall", "take", "remember", "notify"):
            with pytest.raises(Unavailable, match="did not answer a moment ago"):
                await CALLS[call](coordination)
        with pytest.raises(Unavailable, match="does not answer"):
            await coordination.held(NAME)  # workers wait for it: it is tried every time
        own_valkey.resume()
        await answered(lambda: coordination.held(NAME))
        await coordination.recall(["one"])


async def test_a_replica_that_cannot_write_is_left_for_a_new_connection(own_valkey: Valkey) -> None:
    async with coordination_at(own_valkey.url) as coordination:
        await coordination.renew({NAME: ["one"]})
        with own_valkey.client() as client:
            client.config_set("replica-read-only", "yes")
            client.replicaof("127.0.0.1", "1")
            before = client.info("stats")["total_connections_received"]
            with pytest.raises(Unavailable, match="read only replica"):
                await coordination.renew({NAME: ["one"]})
            client.replicaof("NO", "ONE")
            await coordination.renew({NAME: ["one"]})
            assert client.info("stats")["total_connections_received"] > before


# Credentials.


async def test_a_password_is_used_and_never_shown() -> None:
    password = "S3C/R@T:p%ss"  # with characters that a URL must escape
    with a_valkey("--requirepass", password) as server:
        host = f"127.0.0.1:{server.port}"
        async with coordination_at(f"redis://:S3C%2FR%40T%3Ap%25ss@{host}") as coordination:
            await coordination.renew({NAME: ["one"]})
        for url in (f"redis://:S3CRET@{host}", f"redis://{host}", f"redis://nobody:S3CRET@{host}"):
            async with coordination_at(url) as coordination:
                with pytest.raises(Unavailable) as refused:
                    await coordination.held(NAME)
                told = "".join(traceback.format_exception(refused.value))
                assert "WRONGPASS" in told or "NOAUTH" in told or "Authentication" in told
                assert "S3CRET" not in told
                assert password not in told


async def test_a_server_whose_certificate_is_not_trusted_is_not_used(
    valkey: Valkey, tmp_path: Path
) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    authority, stranger = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    async with tls_in_front_of(valkey, authority.server("127.0.0.1")) as port:
        for url in (
            f"rediss://127.0.0.1:{port}",
            f"rediss://127.0.0.1:{port}?ca={stranger.trusted}",
            f"rediss://localhost:{port}?ca={authority.trusted}",
        ):
            async with coordination_at(url) as coordination:
                with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                    await coordination.held(NAME)


# Notifications.


async def test_a_subscriber_of_a_server_that_fails_subscribes_again_and_knows_what_it_missed(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "QUIET", timedelta(milliseconds=50))
    async with coordination_at(own_valkey.url, deadline=SHORT) as coordination:
        for fail, mend in (
            (own_valkey.suspend, own_valkey.resume),
            (own_valkey.kill, own_valkey.start),
        ):
            async with (
                asyncio.timeout(SOON),
                aclosing(coordination.notifications(["runs"])) as notifications,
            ):
                assert await anext(notifications) == Notification("runs", None)
                await answered(lambda: coordination.notify("runs", ["one"]))
                assert await anext(notifications) == Notification("runs", frozenset({"one"}))
                fail()
                with pytest.raises(Unavailable):
                    await anext(notifications)
            mend()
            await answered(lambda: coordination.held(NAME))


async def test_a_quiet_subscription_stays(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "QUIET", timedelta(milliseconds=1))
    async with (
        coordination_at(own_valkey.url) as coordination,
        aclosing(coordination.notifications(["runs"])) as notifications,
        asyncio.timeout(SOON),
        asyncio.TaskGroup() as group,
    ):
        assert await anext(notifications) == Notification("runs", None)

        async def next_one() -> Notification:
            return await anext(notifications)

        waiting = group.create_task(next_one())
        with own_valkey.client() as client:
            while _pings(client) < 20:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
        await coordination.notify("runs", ["one"])
        assert await waiting == Notification("runs", frozenset({"one"}))


async def test_a_message_of_another_version_means_that_anything_may_have_changed(
    valkey: Valkey,
) -> None:
    async with (
        coordination_at(f"{valkey.url}?prefix=versions") as coordination,
        aclosing(coordination.notifications(["runs"])) as notifications,
    ):
        assert await anext(notifications) == Notification("runs", None)
        with valkey.client() as client:
            client.publish("versions:notify:runs", b'{"of": "another version"}')
        assert await anext(notifications) == Notification("runs", None)


def _pings(client: "Redis") -> int:
    return int(client.info("commandstats").get("cmdstat_ping", {}).get("calls", 0))
