"""Lists in slots, as scripts to die in."""

from datetime import timedelta
from typing import Any

from conveyor.domain.batch import INGEST, Batch
from conveyor.steps.shared.work_limits import ENDLESS
from tests.crash.life import Answer, Life
from tests.crash.scenarios import LARGE, on, pages, scenario, submit, without_how_far
from tests.crash.snapshot import Picture

HOST = "http://localhost"
ROWS = 14
BAD = (3, 9)
LEASE = timedelta(minutes=1)


def urls(count: int, bad: tuple[int, ...] = ()) -> str:
    return "".join(
        f"ftp://{n}\n" if n in bad else f"https://ok.example/{n}\n" for n in range(count)
    )


async def filled_file_input(life: Life, content: str) -> str:
    file_input = await life.call("slot", "POST", "/v1/job_inputs", {"type": "txt"})
    link = file_input["upload"]["url"].removeprefix(HOST)
    # 409 when the list came, and only the word of it was lost.
    assert (await life.call("send", "PUT", link, content)).status in {200, 409}
    return str(file_input["file_input_id"])


async def submit_list(life: Life, file_input_id: str, **given: Any) -> Answer:
    body = {"file_input_id": file_input_id, **given}
    return await life.call("submit", "POST", "/v1/jobs", body, key="list")


def _without_lost_file_inputs(picture: Picture) -> Picture:
    """A file input whose caller never heard of it is empty, and gone after a day."""
    return picture | {
        "file_input": [file_input for file_input in picture["file_input"] if file_input["blob"]]
    }


@scenario(_without_lost_file_inputs)
async def fill_a_file_input(life: Life) -> None:
    life.begin()
    await filled_file_input(life, urls(3))


@scenario(_without_lost_file_inputs)
async def fill_a_file_input_twice_at_once(life: Life) -> None:
    file_input = await life.call("slot", "POST", "/v1/job_inputs", {"type": "txt"})
    link = file_input["upload"]["url"].removeprefix(HOST)
    life.begin()
    life.deaths.after("blobs.put", 1, lambda: life.call("other", "PUT", link, urls(3)))
    assert (await life.call("send", "PUT", link, urls(3))).status in {200, 409}


@scenario(_without_lost_file_inputs)
async def submit_a_small_list(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(3))
    life.begin()
    assert (await submit_list(life, file_input_id)).status == 201


@scenario(_without_lost_file_inputs)
async def take_in_a_list_with_bad_rows(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(ROWS, BAD))
    life.begin()
    job = await submit_list(life, file_input_id)
    assert (job.status, job["accepted_tasks"]) == (202, 0)
    await life.handle_messages()
    await life.drain()


@scenario(_without_lost_file_inputs)
async def take_in_a_list_that_must_be_whole(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(ROWS))
    await submit_list(life, file_input_id, on_invalid="fail")
    life.begin()
    await life.handle_messages()


@scenario(_without_lost_file_inputs)
async def refuse_a_list_that_must_be_whole(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(ROWS, BAD))
    await submit_list(life, file_input_id, on_invalid="fail")
    life.begin()
    await life.handle_messages()


@scenario(_without_lost_file_inputs)
async def end_a_list_of_too_many_rows(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(30))
    await submit_list(life, file_input_id)
    life.begin()
    await life.handle_messages()


@scenario(_without_lost_file_inputs)
async def read_a_list_again_after_a_stop(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(ROWS, BAD))
    job = await submit_list(life, file_input_id)
    await on(life, job, "stop")
    await life.handle_messages()
    life.begin()
    assert (await on(life, job, "rerun")).status == 202
    await life.handle_messages()


@scenario(_without_lost_file_inputs)
async def delete_a_job_and_leave_its_list_to_the_slot(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(ROWS, BAD))
    job = await submit_list(life, file_input_id)
    await life.handle_messages()
    life.begin()
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
    await life.handle_messages()


@scenario(_without_lost_file_inputs)
async def delete_a_job_with_its_list(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(ROWS, BAD))
    job = await submit_list(life, file_input_id)
    await life.handle_messages()
    life.advance(timedelta(hours=25))
    life.begin()
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
    await life.handle_messages()


@scenario(_without_lost_file_inputs)
async def go_on_with_a_list_after_ten_deaths(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(ROWS))
    await submit_list(life, file_input_id)
    if not life.is_past:
        [message] = await life.raw.control_queue.receive(1, lease=LEASE)
        await life.raw.control_queue.resend(message, message.payload, deliveries=10)
        for _ in range(4):  # each of which a piece would have written
            [batch] = await life.raw.metadata.page(Batch, limit=1)
            await life.raw.metadata.commit(batch)
    life.begin()
    await life.handle_messages()


@scenario(without_how_far)
async def write_a_piece_after_a_stop_and_the_end(life: Life) -> None:
    job = await submit(life, pages(LARGE))
    life.begin()
    life.deaths.before("tasks.add", 2, lambda: _stop_and_end(life, job))
    await life.handle_messages()
    assert (await on(life, job, "stop")).status == 200


async def _stop_and_end(life: Life, job: Answer) -> None:
    await on(life, job, "stop")
    payload = {"run_id": job["latest_run"]["run_id"], "first": "0"}
    await life.service.steps.control_worker.handlers[INGEST].handle(payload, ENDLESS)


@scenario()
async def copy_a_whole_run_in_place_of_a_cut_one(life: Life) -> None:
    job = await submit(life, pages(LARGE), status="open")
    await life.handle_messages()
    await on(life, job, "stop")
    cut = await on(life, job, "rerun", label="rerun-cut")
    if not life.is_past:
        payload = {"run_id": cut["latest_run"]["run_id"], "first": "0"}
        await life.service.steps.control_worker.handlers[INGEST].give_up(payload)
        for message in await life.raw.control_queue.receive(9, lease=LEASE):
            await life.raw.control_queue.ack(message)
    life.begin()
    assert (await on(life, job, "rerun")).status == 202
    await life.handle_messages()
