"""Updates of runs over the memory engine: who is told what, and what it costs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta

import msgspec
import pytest

from conveyor.api import render
from conveyor.domain.counts import ZERO
from conveyor.domain.ids import ApiKeyId, CallerId, JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.progress import RunProgress, Waiting, WaitReason, gone
from conveyor.domain.run import PauseState, Run
from conveyor.errors import NotFound, QuotaExceeded, Unavailable
from conveyor.steps.progress import HEARTBEAT, ROUND, ProgressFeed, Updates
from conveyor.steps.shared.attempt import FinishedAttempt
from conveyor.testing.clock import NOON
from conveyor.testing.factories import a_run
from tests.harness.memory_service import A_PAGE, CALLER, SOON, STRANGER, a_house, an_assignment

READS = ("metadata.get(Run)", "tasks.counts")


def shown(progress: RunProgress) -> bytes:
    done = progress.settled.done
    return f"{progress.run.status} {done} {progress.rate} {progress.eta}".encode()


class Watched:
    """A house with a watch, whose rounds a test makes."""

    def __init__(self, *, most: int = 0) -> None:
        self.house = a_house()
        self.reads = 0
        self.marks: dict[bytes, str] = {}
        self.revoked: set[ApiKeyId] = set()
        self.feed = ProgressFeed(
            metadata=self.house.metadata,
            tasks=self.house.tasks,
            clock=self.house.clock,
            render=self._render,
            count=self._count,
            is_good=self._is_good,
            most=most,
        )

    def _render(self, progress: RunProgress) -> bytes:
        self.marks[shown(progress)] = progress.mark
        return shown(progress)

    async def _is_good(self, key_id: ApiKeyId) -> bool:
        return key_id not in self.revoked

    def _count(self, reads: int) -> None:
        self.reads += reads

    async def listen(
        self,
        job_id: JobId,
        *,
        run_id: RunId | None = None,
        seen: str | None = None,
        api_key_id: ApiKeyId | None = None,
    ) -> Updates:
        return await self.feed.listen(CALLER, job_id, run_id, seen=seen, api_key_id=api_key_id)

    async def round(self) -> None:
        self.house.clock.advance(ROUND)
        await self.feed.step()

    async def scrape(self, run_id: RunId, count: int) -> None:
        house = self.house
        job = await house.job((await house.run(run_id)).job_id)
        tasks = await house.work.claim({run_id: count})
        await house.settle.settle(
            [FinishedAttempt(task, an_assignment(job), A_PAGE) for task in tasks]
        )


async def heard(news: Updates) -> list[bytes | None]:
    return [one async for one in news]


async def has_nothing_to_say(news: Updates) -> bool:
    """Whether one who listens is still waiting, when everybody who could act has acted."""
    waiting = asyncio.ensure_future(anext(news))
    for _ in range(10):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    return waiting.cancelled()


async def test_the_state_is_told_at_once_then_what_is_new_and_then_the_end() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(4)
    async with aclosing(await at.listen(job_id)) as news:
        assert await anext(news) == b"running 0 None None"
        await at.scrape(run_id, 1)
        await at.round()
        assert await anext(news) == b"running 1 1.0 3"
        await at.scrape(run_id, 3)
        await at.round()
        assert await anext(news) == b"completed 4 2.0 None"
        with pytest.raises(StopAsyncIteration):
            await anext(news)


async def test_rounds_without_change_tell_nothing() -> None:
    at = Watched()
    job_id, _ = await at.house.submit(4)
    news = await at.listen(job_id)
    await anext(news)
    for _ in range(10):
        await at.round()
    assert await has_nothing_to_say(news)


async def test_a_standstill_is_told_once() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(4)
    async with aclosing(await at.listen(job_id)) as news:
        await anext(news)
        await at.scrape(run_id, 2)
        await at.round()
        assert await anext(news) == b"running 2 2.0 1"
        for _ in range(10):
            await at.round()
        assert await anext(news) == b"running 2 0.0 None"
        await at.round()
        assert at.feed.followed[run_id].number == 3


async def test_a_wait_for_the_gateway_is_news_and_so_is_its_next_attempt_and_its_end() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(4)
    waits = [a_wait(next_attempt_at=NOON + timedelta(seconds=number)) for number in (1, 2)]
    now_waiting: list[Waiting | None] = [None]

    async def find(_runs: Sequence[tuple[Job, Run]]) -> Mapping[RunId, Waiting]:
        return {run_id: now_waiting[0]} if now_waiting[0] else {}

    at.feed.waits = find
    at.feed.render = render.event_shown
    news = await at.listen(job_id)
    assert b"waiting" not in (await anext(news) or b"")
    for wait in [*waits, None]:
        now_waiting[0] = wait
        await at.round()
        told = await anext(news) or b""
        assert (wait is not None) == (b'"waiting":{"reason":"gateway_unavailable"' in told)
        turn = at.feed.followed[run_id].number
        await at.round()
        assert at.feed.followed[run_id].number == turn


def test_only_a_running_run_is_shown_to_wait() -> None:
    wait = a_wait()
    running, idle = a_run(total=1), a_run(total=0, last_batch_received=False)
    waiting = render.run_shown(running, ZERO, wait).waiting
    assert waiting
    assert (waiting.reason, waiting.since) == (wait.reason, wait.since)
    assert render.run_shown(idle, ZERO, wait).waiting is None
    assert render.run_shown(gone(running), ZERO, wait).waiting is None
    shown = msgspec.json.decode(render.encode(render.run_shown(running, ZERO, wait)))
    assert shown["waiting"] == {
        "reason": "gateway_unavailable",
        "since": "2026-03-02T12:00:00Z",
        "detail": "It is away.",
    }


def a_wait(next_attempt_at: datetime | None = None) -> Waiting:
    return Waiting(
        reason=WaitReason.GATEWAY_UNAVAILABLE,
        since=NOON,
        detail="It is away.",
        next_attempt_at=next_attempt_at,
    )


@pytest.mark.parametrize("listeners", [1, 1000])
async def test_a_round_reads_a_run_once_whoever_listens(listeners: int) -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(9)
    all_news = [await at.listen(job_id) for _ in range(listeners)]
    assert {await anext(news) for news in all_news} == {b"running 0 None None"}
    at.house.trace.forget()
    at.reads = 0
    for number in range(1, 6):
        await at.scrape(run_id, 1)
        at.house.trace.forget()
        await at.round()
        assert sorted(at.house.trace.of(*READS)) == sorted(READS)
        assert {await anext(news) for news in all_news} == {
            f"running {number} 1.0 {9 - number}".encode()
        }
    assert at.reads == 5
    assert at.feed.listeners == listeners
    for news in all_news:
        await news.aclose()
    assert at.feed.listeners == 0


async def test_nothing_is_read_for_nobody() -> None:
    at = Watched()
    job_id, _ = await at.house.submit(2)
    news = await at.listen(job_id)
    await anext(news)
    await news.aclose()
    at.house.trace.forget()
    await at.round()
    assert at.house.trace.calls == []
    assert at.feed.followed == {}


async def test_one_who_is_slow_gets_the_newest_state_alone() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(9)
    news = await at.listen(job_id)
    await anext(news)
    for _ in range(5):
        await at.scrape(run_id, 1)
        await at.round()
    assert await anext(news) == b"running 5 1.0 4"
    assert await has_nothing_to_say(news)


async def test_one_who_has_seen_the_state_hears_nothing_until_it_changes() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(9)
    state = await anext(await at.listen(job_id))
    assert state
    seen = at.marks[state]

    assert await has_nothing_to_say(await at.listen(job_id, seen=seen))
    restarted = Watched()
    restarted.house = at.house
    restarted.feed.metadata, restarted.feed.tasks = at.house.metadata, at.house.tasks
    resumed = await restarted.listen(job_id, seen=seen)
    assert await has_nothing_to_say(resumed)
    resumed = await restarted.listen(job_id, seen=seen)
    first = asyncio.ensure_future(anext(resumed))
    await asyncio.sleep(0)
    await at.scrape(run_id, 1)
    await restarted.round()
    assert (await first or b"").startswith(b"running 1 ")


@pytest.mark.parametrize("seen", ["", "nonsense", "01ARZ3NDEKTSV4RRFFQ69G5FAV-1-0-0-0"])
async def test_a_mark_that_says_nothing_is_as_good_as_none(seen: str) -> None:
    at = Watched()
    job_id, _ = await at.house.submit(2)
    assert await anext(await at.listen(job_id, seen=seen)) == b"running 0 None None"


async def test_one_who_has_seen_the_end_hears_it_again() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(2)
    await at.scrape(run_id, 2)
    ended = await heard(await at.listen(job_id))
    assert ended == [b"completed 2 None None"]
    seen = at.marks[b"completed 2 None None"]
    assert await heard(await at.listen(job_id, seen=seen)) == ended
    assert at.feed.followed == {}


async def _stop(at: Watched, job_id: JobId) -> None:
    await at.house.lifecycle.stop(CALLER, job_id)


async def _pause(at: Watched, job_id: JobId) -> None:
    pause = at.house.lifecycle
    await pause.set_pause(CALLER, job_id, PauseState.PAUSED)


@pytest.mark.parametrize("turn", [_stop, _pause])
async def test_a_stop_and_a_pause_are_news(
    turn: Callable[[Watched, JobId], Awaitable[None]],
) -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(2)
    news = await at.listen(job_id)
    await anext(news)
    await turn(at, job_id)
    await at.round()
    await anext(news)
    assert at.feed.followed[run_id].is_over == (turn is _stop)


async def test_a_run_that_vanishes_ends_as_deleted_with_its_last_figures() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(4)
    news = await at.listen(job_id)
    await at.scrape(run_id, 1)
    await anext(news)
    await at.round()
    await anext(news)
    at.feed.metadata = a_house().metadata  # in which there is no such run
    at.feed.tasks = a_house().tasks
    await at.round()
    assert (await anext(news) or b"").startswith(b"deleted 1 ")
    assert await heard(news) == []


async def test_a_run_that_vanishes_before_it_was_ever_read_ends_as_deleted() -> None:
    """One who joins a post has nothing read; the other leaves, and then the run goes."""
    at = Watched()
    job_id, _ = await at.house.submit(4)
    first = await at.listen(job_id)
    await anext(first)
    second = await at.listen(job_id)
    await first.aclose()
    hearing = asyncio.ensure_future(heard(second))
    await asyncio.sleep(0)
    at.feed.metadata = a_house().metadata  # in which there is no such run
    at.feed.tasks = a_house().tasks
    await at.round()

    async with asyncio.timeout(SOON):
        [last] = await hearing
    assert (last or b"").startswith(b"deleted ")


async def test_the_line_is_shown_to_be_alive_when_there_is_no_news() -> None:
    at = Watched()
    job_id, _ = await at.house.submit(2)
    news = await at.listen(job_id)
    await anext(news)
    waiting = asyncio.ensure_future(anext(news))
    await asyncio.sleep(0)
    at.house.clock.advance(HEARTBEAT - timedelta(seconds=2))
    await at.round()
    assert not waiting.done()
    await at.round()
    assert await waiting is None


async def test_an_engine_that_is_away_costs_rounds_and_no_listener() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(2)
    news = await at.listen(job_id)
    await anext(news)
    for call in READS:
        at.house.trace.broken[call] = Unavailable("away")
        with pytest.raises(Unavailable):
            await at.round()
        del at.house.trace.broken[call]
    await at.scrape(run_id, 1)
    await at.round()
    assert (await anext(news) or b"").startswith(b"running 1 ")


async def test_closing_lets_everybody_go_and_nobody_in() -> None:
    at = Watched()
    job_id, _ = await at.house.submit(2)
    news = [await at.listen(job_id) for _ in range(3)]
    for one in news:
        await anext(one)
    waiting = [asyncio.ensure_future(heard(one)) for one in news]
    await asyncio.sleep(0)
    at.feed.close()
    assert await asyncio.gather(*waiting) == [[], [], []]
    assert await heard(await at.listen(job_id)) == []
    assert at.feed.followed == {}


async def test_a_post_that_went_while_one_came_is_told_by_the_next_round() -> None:
    at = Watched()
    job_id, _ = await at.house.submit(2)
    first = await at.listen(job_id)
    await anext(first)
    second = await at.listen(job_id)
    await first.aclose()
    waiting = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0)
    await at.round()
    assert await waiting == b"running 0 None None"


async def test_many_runs_are_read_in_groups() -> None:
    at = Watched()
    jobs = [await at.house.submit(1) for _ in range(150)]
    news = [await at.listen(job_id) for job_id, _ in jobs]
    for one in news:
        await anext(one)
    at.house.trace.forget()
    await at.round()
    assert len(at.house.trace.of("tasks.counts")) == 2
    assert len(at.house.trace.of("metadata.get(Run)")) == 150


@pytest.mark.parametrize("caller", [STRANGER, CallerId("")])
async def test_somebody_elses_run_is_not_there(caller: CallerId) -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(2)
    other_job, _ = await at.house.submit(2)
    with pytest.raises(NotFound):
        await at.feed.listen(caller, job_id, None, seen=None)
    with pytest.raises(NotFound):
        await at.feed.listen(CALLER, other_job, run_id, seen=None)
    assert await anext(await at.listen(job_id, run_id=run_id))


async def test_news_ends_when_its_key_is_revoked_and_only_then() -> None:
    at = Watched()
    job_id, _ = await at.house.submit(4)
    revoked, kept = ApiKeyId("revoked"), ApiKeyId("kept")
    ending = await at.listen(job_id, api_key_id=revoked)
    staying = await at.listen(job_id, api_key_id=kept)
    assert await anext(ending) == await anext(staying)

    at.revoked.add(revoked)
    await at.round()

    with pytest.raises(StopAsyncIteration):
        await anext(ending)
    assert await has_nothing_to_say(staying)
    await staying.aclose()
    assert (at.feed.keys, at.feed.callers, at.feed.refused) == ({}, {}, set())


async def test_a_caller_has_only_so_many_listeners() -> None:
    at = Watched(most=2)
    job_id, _ = await at.house.submit(4)
    listening = [await at.listen(job_id) for _ in range(2)]
    for news in listening:
        await anext(news)

    with pytest.raises(QuotaExceeded) as refused:
        await at.listen(job_id)
    assert refused.value.extras == {"quota": "event_listeners", "limit": 2, "used": 2}

    await listening[0].aclose()
    again = await at.listen(job_id)
    assert await anext(again) == b"running 0 None None"


async def test_a_run_that_was_notified_is_told_before_the_next_round() -> None:
    at = Watched()
    job_id, run_id = await at.house.submit(4)
    other_id, _ = await at.house.submit(4)
    async with (
        aclosing(await at.listen(job_id)) as news,
        aclosing(await at.listen(other_id)) as other,
    ):
        await anext(news)
        await anext(other)
        await at.house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
        reads = at.reads
        assert at.feed.notified([run_id, "another"])
        await at.feed.read_changed()
        assert await anext(news) == b"running 0 None None"
        assert at.reads == reads + 1
        assert await has_nothing_to_say(other)
        assert not at.feed.notified(["another"])
        assert at.feed.notified(None)
