"""What the outside is told, as scripts whose every call of a port is a point to die at."""

from datetime import timedelta
from typing import Any

from tests.crash.life import Answer, Life
from tests.crash.scenarios import on, pages, scenario, submit
from tests.crash.snapshot import Picture

HOOK = {"url": "https://ok.example/in"}


def _without_keys(picture: Picture) -> Picture:
    """A key whose secret nobody heard stays where it is: the caller makes another."""
    return {kind: rows for kind, rows in picture.items() if kind != "signing_keys"}


async def _ended(
    life: Life, hook: dict[str, Any] = HOOK, kind: str = "ok", count: int = 2
) -> Answer:
    job = await submit(life, pages(count, kind), name=f"job-{hook['url'][8:12]}", webhook=hook)
    await life.drain()
    return job


async def _event(life: Life, job: Answer) -> str:
    [event] = await life.raw.metadata.events(job["job_id"], limit=9)
    return event.id


@scenario()
async def tell_a_webhook_of_a_completed_run(life: Life) -> None:
    life.begin()
    await _ended(life)
    await life.deliver()


@scenario()
async def tell_a_webhook_of_a_failed_run(life: Life) -> None:
    life.begin()
    await _ended(life, kind="blocked", count=1)
    await life.deliver()


@scenario()
async def tell_a_webhook_that_takes_the_second_attempt(life: Life) -> None:
    await _ended(life, {"url": "https://flaky.example/in"})
    life.begin()
    await life.deliver()
    life.advance(timedelta(minutes=1))
    await life.deliver()


@scenario()
async def tell_a_webhook_that_is_gone(life: Life) -> None:
    await _ended(life, {"url": "https://gone.example/in"})
    life.begin()
    await life.deliver()


@scenario()
async def tell_one_receiver_of_many_ends(life: Life) -> None:
    for number in range(5):
        job = await submit(life, pages(1), name=f"job-{number}", webhook=HOOK)
        assert job.status == 201
    await life.drain()
    life.begin()
    await life.deliver()


@scenario()
async def clear_a_webhook_with_something_owed(life: Life) -> None:
    job = await _ended(life)
    life.begin()
    await life.call("clear", "DELETE", f"/v1/jobs/{job['job_id']}/webhook")
    await life.deliver()


@scenario()
async def set_a_webhook_of_a_live_run(life: Life) -> None:
    job = await submit(life, pages(2))
    life.begin()
    body = {"url": "https://ok.example/in", "signature": False}
    answer = await life.call("set", "PUT", f"/v1/jobs/{job['job_id']}/webhook", body)
    assert answer.status == 200
    await life.drain()
    await life.deliver()


@scenario()
async def deliver_an_event_again(life: Life) -> None:
    job = await _ended(life)
    await life.deliver()
    life.begin()
    again = f"webhook/deliveries/{await _event(life, job)}/redeliver"
    assert (await on(life, job, again, label="again")).status == 202
    listed = await life.call("list", "GET", f"/v1/jobs/{job['job_id']}/webhook/deliveries")
    assert listed.status == 200
    # Whoever was not answered asks once more: that is one delivery more, or not.


@scenario(_without_keys)
async def tell_with_a_signature(life: Life) -> None:
    life.begin()
    for label in ("first", "second"):
        answer = await life.call(label, "POST", "/v1/hmac/keys/rotate")
        if answer.status != 201:
            await life.call(f"{label} given up", "DELETE", "/v1/hmac/keys/rotate")
            await life.call(f"{label} again", "POST", "/v1/hmac/keys/rotate")
    await life.call("finish", "POST", "/v1/hmac/keys/rotate/finalize")
    hook = {"url": "https://ok.example/in", "signature": True}
    assert (await life.call("test", "POST", "/v1/webhook/test", hook)).status == 200
    await _ended(life, hook)
    await life.deliver()


@scenario()
async def delete_a_job_whose_webhook_was_told(life: Life) -> None:
    job = await _ended(life)
    await life.deliver()
    life.begin()
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
    await life.handle_messages()


@scenario()
async def sweep_events_that_are_over(life: Life) -> None:
    await _ended(life)
    await life.deliver()
    life.advance(timedelta(days=31))
    life.begin()
    await life.sweep()
