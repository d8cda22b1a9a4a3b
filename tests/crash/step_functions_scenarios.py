"""Runs that a state of Step Functions waits for."""

from datetime import timedelta

from tests.crash.life import Answer, Life
from tests.crash.scenarios import LARGE, _without_the_dead_letter, on, pages, scenario, submit
from tests.crash.snapshot import Picture

TOKEN = "token"
BEAT = 30


def _however_often(picture: Picture) -> Picture:
    """A state that was told by a call whose end nobody saw is found closed by the next one: which
    of the two it was, and how often it was tried, depends on the death.
    """
    over = {"delivered": "over", "dropped": "over"}
    events = [
        {
            name: over.get(value, value) if name == "status" else value
            for name, value in event.items()
            if name not in {"deliveries", "tries"}
        }
        for event in picture["outbox_event"]
    ]
    return picture | {"outbox_event": events}


async def _awaited(life: Life, count: int = 2, *, beats: bool = False) -> Answer:
    field = {"task_token": TOKEN} | ({"heartbeat_seconds": BEAT} if beats else {})
    return await submit(life, pages(count), step_functions=field)


async def _told(life: Life, outcome: str) -> None:
    """The state hears of it in this life, or was told in an earlier one."""
    await life.deliver()
    # A service beside the one that died completes its runs by a sweep; a new one by its start.
    await (life.rest_swept() if life.waits else life.rest())
    assert life.states.outcome(TOKEN) == outcome


@scenario(_however_often)
async def complete_a_run_that_a_state_waits_for(life: Life) -> None:
    life.begin()
    await _awaited(life)
    await life.drain()
    await _told(life, "success")


@scenario(_however_often)
async def stop_a_run_that_a_state_waits_for(life: Life) -> None:
    job = await _awaited(life)
    life.begin()
    await on(life, job, "stop")
    await _told(life, "RunStopped")


@scenario(_however_often)
async def delete_a_job_that_a_state_waits_for(life: Life) -> None:
    job = await _awaited(life)
    life.begin()
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
    await life.handle_messages()
    await _told(life, "RunDeleted")


@scenario(_however_often)
async def delete_a_run_that_a_state_waits_for(life: Life) -> None:
    job = await _awaited(life)
    run_id = job["latest_run"]["run_id"]
    life.begin()
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}/runs/{run_id}")
    await life.handle_messages()
    await _told(life, "RunDeleted")


@scenario(_however_often)
async def keep_a_state_waiting_and_let_it_go(life: Life) -> None:
    life.begin()
    job = await _awaited(life, beats=True)
    life.advance(timedelta(seconds=BEAT))
    await life.deliver()
    await on(life, job, "stop")
    await life.deliver()
    life.advance(timedelta(seconds=BEAT))
    await _told(life, "RunStopped")


@scenario(_however_often)
async def keep_a_state_waiting_that_has_gone_on(life: Life) -> None:
    await _awaited(life, beats=True)
    if not life.is_past:
        await life.raw.step_functions.fail(TOKEN, error="another", cause="")
    life.begin()
    life.advance(timedelta(seconds=BEAT))
    await life.deliver()
    await life.drain()
    await _told(life, "another")


@scenario(lambda picture: _however_often(_without_the_dead_letter(picture)))
async def give_up_a_list_that_a_state_waits_for(life: Life) -> None:
    await _awaited(life, LARGE)
    if not life.is_past:
        keys = await life.raw.blobs.keys("", limit=9)
        await life.raw.blobs.delete(keys)
    life.begin()
    await life.handle_messages()
    await _told(life, "IngestFailed")
