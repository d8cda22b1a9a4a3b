"""Every public method of the official client, called and answered: none is left out, and a new
version that brings one more makes this fail.
"""

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from zenrows.batch import At, Calendar, Daily, Monthly, Rate, Weekly, ZenRowsBatchClient
from zenrows.batch import _resources as resources
from zenrows.batch.models import JobStatus, RunStatus, ScheduleState, TaskStatus

from tests.harness.programs import Program

KINDS = (
    ZenRowsBatchClient,
    resources.JobRef,
    resources.JobHandle,
    resources.RunRef,
    resources.RunHandle,
    resources.CurrentRun,
    resources.ScheduleControls,
    resources.ExportRef,
    resources.ExportHandle,
)
QUICK: dict[str, Any] = {"timeout": 60, "poll_interval": 0.05}
OK, BAD = "https://ok.example/", "https://permanent.example/"
CSV = b"url,id\nhttps://ok.example/c1,1\nhttps://ok.example/c2,2\n"


def _public(kind: type) -> dict[str, Any]:
    return {
        name: part
        for name, part in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(part) or isinstance(part, property))
    }


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of all methods and properties used so far."""
    seen: set[str] = set()

    def noted(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(part)
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.add(name)
            return part(*args, **kwargs)

        return call

    for kind in KINDS:
        for name, part in _public(kind).items():
            full = f"{kind.__name__}.{name}"
            if isinstance(part, property):
                assert part.fget is not None
                monkeypatch.setattr(kind, name, property(noted(full, part.fget)))
            else:
                monkeypatch.setattr(kind, name, noted(full, part))
    return seen


def test_every_public_method_is_answered_as_the_client_expects(
    telling: Program, receiver: str, called: set[str], tmp_path: Path
) -> None:
    client = ZenRowsBatchClient("every-method", base_url=telling.url)
    job = _submit(client)
    _read(client, job, tmp_path)
    _export(client, job, tmp_path)
    _again(client, job)
    _open(client)
    _lists(client, tmp_path)
    _live(client)
    _webhooks(client, job, receiver)
    _signing(client)
    _schedules(client)
    _delete(client, job)
    client.close()

    every = {f"{kind.__name__}.{name}" for kind in KINDS for name in _public(kind)}
    assert every - called == set()


def _submit(client: ZenRowsBatchClient) -> resources.JobRef:
    assert client.base_url.rstrip("/").endswith("/v1")
    body: Any = {"tasks": [{"url": OK + "1"}, {"url": BAD + "2", "external_id": "two"}]}
    assert client.estimate_cost(body).min == 2
    job = client.submit_job(body)
    assert (job.accepted_tasks, job.status) == (2, JobStatus.CLOSED)
    assert job.run.wait(**QUICK).status is RunStatus.COMPLETED
    assert client.wait_for_run(job.job_id, **QUICK).stats.total == 2
    return job


def _read(client: ZenRowsBatchClient, job: resources.JobRef, folder: Path) -> None:
    handle = client.get_job(job.job_id)
    assert client.job(job.job_id).load().status is handle.status is JobStatus.CLOSED
    assert client.list_jobs(limit=1).jobs[0].job_id == job.job_id
    assert job.job_id in {one.job_id for one in client.iter_jobs(page_size=50)}
    [run] = job.runs()
    assert client.list_runs(job.job_id).runs[0].run_id == run.run_id
    assert [one.run_id for one in client.iter_runs(job.job_id)] == [run.run_id]
    assert client.get_run(job.job_id, run_id=run.run_id).stats.failed == 1
    assert client.run(job.job_id, run.run_id).load().status is RunStatus.COMPLETED
    assert client.run(job.job_id, run.run_id).wait(**QUICK).stats.total == 2
    assert job.run.load().stats.successful == 1

    statuses = [TaskStatus.SUCCESSFUL, TaskStatus.FAILED]
    listed = client.list_results(job.job_id).results
    for rows in (
        listed,
        *map(list, (client.iter_results(job.job_id), job.run.results(), run.results())),
    ):
        assert [row.status for row in rows] == statuses
    for source in (job.run, run):
        kind = type(source).__name__
        assert len(source.task_history(listed[0].task_id).events) == 1
        assert source.download_to_dir(folder / kind)
        assert len(list(source.download_to_memory())) == 1
        source.download_task_to_file(listed[0], folder / f"{kind}.html")
        assert source.download_task_to_memory(listed[0]) == (folder / f"{kind}.html").read_bytes()


def _export(client: ZenRowsBatchClient, job: resources.JobRef, folder: Path) -> None:
    run = job.run.load()
    for export in (job.run.start_export(), run.start_export()):
        done = export.wait(**QUICK)
        assert done.status.value == export.load().status.value == "completed"
        run.export(export.export_id).download_to_path(folder / "0.zip")
    started = client.start_results_export(job.job_id, run.run_id)
    ids = (job.job_id, run.run_id, started.export_id)
    assert client.wait_for_export(*ids, **QUICK).status.value == "completed"
    assert client.get_results_export(*ids).status.value == "completed"
    client.download_all_results(job.job_id, run.run_id, folder / "a.zip")
    job.run.download_all_results(folder / "b.zip")
    run.download_all_results(folder / "c.zip")
    assert {path.stat().st_size > 0 for path in folder.glob("?.zip")} == {True}


def _again(client: ZenRowsBatchClient, job: resources.JobRef) -> None:
    assert job.retry_failed().wait(**QUICK).stats.total == 2
    last = job.rerun()
    assert last.wait(**QUICK).stats.successful == 1
    last.delete()
    assert last.run_id not in {run.run_id for run in job.runs()}


def _open(client: ZenRowsBatchClient) -> None:
    job = client.submit_open([OK + "a"])
    job.add_tasks({"tasks": [{"url": OK + "b"}]})
    assert job.close().status is JobStatus.CLOSED
    assert job.run.wait(**QUICK).stats.successful == 2


def _lists(client: ZenRowsBatchClient, folder: Path) -> None:
    path = folder / "list.csv"
    path.write_bytes(CSV)
    fields: dict[str, int | str] = {"url": "url", "external_id": "id"}
    file_input = client.create_job_input({"type": "csv", "csv": {"fields": {"url": 0}}})
    assert file_input.upload.method == "PUT"
    job = client.submit_regular(file_input_id=client.upload_csv(path, fields=fields, header=True))
    assert job.wait_for_ingest(timeout=200).job_id == job.job_id
    assert job.run.wait(**QUICK).stats.successful == 2
    assert job.add_file_input(path, fields=fields, header=True)


def _live(client: ZenRowsBatchClient) -> None:
    slow = [f"https://slow.example/{number}?ms=2000" for number in range(300)]
    for end in ("stop", "cancel"):
        job = client.submit_regular(list(slow))
        assert job.run.pause().status is RunStatus.RUNNING
        assert job.run.resume().status is RunStatus.RUNNING
        assert getattr(job.run, end)().status is RunStatus.STOPPED


def _webhooks(client: ZenRowsBatchClient, job: resources.JobRef, receiver: str) -> None:
    assert str(job.set_webhook(receiver, signature=False).url) == receiver
    assert str(job.get_webhook().url) == receiver
    job.delete_webhook()
    client.put_job_webhook(job.job_id, {"url": receiver, "signature": False})
    assert not client.get_job_webhook(job.job_id).signature
    client.delete_job_webhook(job.job_id)
    told = client.test_webhook({"url": receiver})
    assert (told.delivered, told.status_code) == (True, 200)


def _signing(client: ZenRowsBatchClient) -> None:
    first = client.rotate_hmac_key()
    if client.list_hmac_keys().active is None:
        client.finalize_hmac_key()
    second = client.rotate_hmac_key()
    assert client.finalize_hmac_key().active_kid == second.kid != first.kid
    client.rotate_hmac_key()
    client.cancel_hmac_rotation()
    client.cancel_hmac_rotation()  # without a candidate, too
    keys = client.list_hmac_keys()
    assert keys.active is not None
    assert (keys.active.kid, keys.candidate) == (second.kid, None)


def _schedules(client: ZenRowsBatchClient) -> None:
    tomorrow = (datetime.now().replace(microsecond=0) + timedelta(days=1)).isoformat()  # noqa: DTZ005
    for schedule in (
        At(tomorrow, "UTC"),
        Rate(15, "minute"),
        Calendar(["09:00", "18:00"], Daily(), "Europe/Berlin"),
        Calendar(["00:00"], Weekly(["mon", "fri"]), "America/New_York"),
        Calendar(["12:00"], Monthly([1, 31]), "Asia/Kolkata"),
    ):
        job = client.submit_scheduled(schedule, [OK + "s"])
        assert job.load().data.next_scheduled_run is not None
    assert job.schedule.pause().data.schedule_state is ScheduleState.PAUSED
    assert job.schedule.resume().data.schedule_state is ScheduleState.ACTIVE
    assert job.schedule.update(Rate(1, "day")).data.schedule is not None
    assert job.rerun().wait(**QUICK).stats.successful == 1


def _delete(client: ZenRowsBatchClient, job: resources.JobRef) -> None:
    job.delete()
    assert job.job_id not in {one.job_id for one in client.iter_jobs()}
