"""The official client against a real service, with only the base URL changed."""

import json
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from zenrows.batch import BatchAPIError, RunPaused, ZenRowsBatchClient
from zenrows.batch._typed_dicts import TaskInputDict, WebhookDict
from zenrows.batch.models import (
    ExportStatus,
    Format,
    IngestStatus,
    JobStatus,
    JobType,
    PauseState,
    ResultType,
    RunStatus,
    SubmitJobRequest,
    TaskStatus,
)

from tests.harness.programs import Program


def code_of(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(BatchAPIError) as caught:
        call()
    assert caught.value.problem is not None
    assert caught.value.problem.type
    assert caught.value.problem.title
    return caught.value.status_code, caught.value.code


def test_a_submitted_job_is_followed_to_its_end_and_read(client: ZenRowsBatchClient) -> None:
    job = client.submit_regular(
        [
            {"url": "https://ok.example/a", "external_id": "a-1", "metadata": {"row": "7"}},
            {"url": "https://flaky.example/b?fails=1"},
            {"url": "https://permanent.example/c"},
        ],
        name="three pages",
        external_id="order-1",
        metadata={"team": "red"},
    )
    assert job.accepted_tasks == 3
    run = job.run.wait(timeout=200, poll_interval=0.05)
    assert run.data.status is RunStatus.COMPLETED
    assert (run.data.stats.total, run.data.stats.successful, run.data.stats.failed) == (3, 2, 1)
    assert run.data.stats.failure_reasons == {"bad_target": 1}
    assert run.data.stats.spend is not None
    assert run.data.stats.spend.credits == 2
    assert run.data.stats.spend.cost == pytest.approx(0.0002)
    data = client.get_job(job.job_id).data
    assert (data.type, data.status, data.format) == (JobType.REGULAR, JobStatus.CLOSED, Format.HTML)
    assert (data.name, data.external_id, data.metadata) == (
        "three pages",
        "order-1",
        {"team": "red"},
    )
    assert data.next_scheduled_run is None


def test_results_come_in_order_with_their_ids_errors_and_bodies(client: ZenRowsBatchClient) -> None:
    job = client.submit_regular(
        [
            {"url": "https://ok.example/a", "external_id": "a-1", "metadata": {"row": "7"}},
            {"url": "https://permanent.example/c"},
        ]
    )
    job.run.wait(timeout=200, poll_interval=0.05)
    good, bad = client.iter_results(job.job_id)
    assert (good.status, good.type, good.external_id) == (
        TaskStatus.SUCCESSFUL,
        ResultType.HTML,
        "a-1",
    )
    assert good.metadata == {"row": "7"}
    assert good.method is None
    assert b"https://ok.example/a" in job.run.download_task_to_memory(good)
    assert bad.status is TaskStatus.FAILED
    assert bad.result_url is None
    assert bad.error is not None
    assert (bad.error.code, bad.error.status) == ("RESP002", 404)


def test_pages_are_filtered_by_status(client: ZenRowsBatchClient) -> None:
    job = client.submit_regular(
        [f"https://{kind}.example/{n}" for n in range(150) for kind in ("ok", "permanent")]
    )
    job.run.wait(timeout=200, poll_interval=0.05)
    good = list(client.iter_results(job.job_id, status="successful"))
    bad = list(client.iter_results(job.job_id, status="failed"))
    every = list(client.iter_results(job.job_id))
    assert (len(good), len(bad), len(every)) == (150, 150, 300)
    assert [row.task_id for row in every] == sorted(row.task_id for row in every)
    assert len(client.list_results(job.job_id, status="failed").results) == 100
    assert list(client.iter_results(job.job_id, status="processing")) == []


def test_bodies_are_downloaded_to_a_folder(client: ZenRowsBatchClient, tmp_path: Path) -> None:
    job = client.submit_regular([f"https://ok.example/{n}?size=50" for n in range(4)])
    job.run.wait(timeout=200, poll_interval=0.05)
    assert job.run.download_to_dir(tmp_path, concurrency=2) == 4
    assert len(list(tmp_path.iterdir())) == 4


def test_all_results_are_downloaded_as_one_file(client: ZenRowsBatchClient, tmp_path: Path) -> None:
    job = client.submit_regular(
        [*(f"https://ok.example/{n}" for n in range(4)), "https://permanent.example/c"]
    )
    run = job.run.wait(timeout=200, poll_interval=0.05)
    path = client.download_all_results(
        job.job_id, run.run_id, tmp_path / "all.zip", poll_interval=0.05
    )
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 5
        assert len(archive.read("manifest.ndjson").splitlines()) == 5


def test_an_export_is_started_followed_and_downloaded_step_by_step(
    client: ZenRowsBatchClient, stranger: ZenRowsBatchClient, tmp_path: Path
) -> None:
    job = client.submit_regular(["https://ok.example/a"])
    job.run.wait(timeout=200, poll_interval=0.05)
    export = job.run.start_export()
    done = export.wait(timeout=200, poll_interval=0.05)
    assert done.status is ExportStatus.COMPLETED
    assert done.data.error is None
    assert (done.data.expires_at - done.data.created_at).total_seconds() == 12 * 3600
    assert zipfile.is_zipfile(done.download_to_path(tmp_path / "one.zip"))
    ids = (job.job_id, export.run_id, export.export_id)
    assert code_of(lambda: stranger.get_results_export(*ids)) == (404, "not_found")


def test_history_tells_each_attempt_with_its_spend(client: ZenRowsBatchClient) -> None:
    job = client.submit_regular([f"https://flaky.example/{uuid.uuid4()}?fails=2"])
    job.run.wait(timeout=200, poll_interval=0.05)
    [row] = client.iter_results(job.job_id)
    events = job.run.task_history(row.task_id).events
    assert [event.attempt for event in events] == [1, 2, 3]
    assert [event.error.code if event.error else None for event in events] == [
        "RESP001",
        "RESP001",
        None,
    ]
    assert [event.spend.credits for event in events if event.spend] == [0, 0, 1]
    assert all(event.started_at <= event.ended_at for event in events)


def test_an_open_job_takes_tasks_until_it_is_closed(client: ZenRowsBatchClient) -> None:
    job = client.submit_open(["https://ok.example/1"])
    job.run.wait(target_statuses={"pending"}, timeout=200, poll_interval=0.05)
    added = job.add_tasks(
        {"tasks": [{"url": "https://ok.example/2"}, {"url": "https://ok.example/3"}]}
    )
    assert (added.accepted_tasks, added.job_status) == (2, JobStatus.OPEN)
    assert added.latest_run.stats.total == 3
    assert job.close().data.status is JobStatus.CLOSED
    run = job.run.wait(timeout=200, poll_interval=0.05)
    assert (run.data.status, run.data.stats.successful) == (RunStatus.COMPLETED, 3)
    assert code_of(lambda: job.add_tasks({"tasks": [{"url": "https://ok.example/4"}]})) == (
        409,
        "job_not_open",
    )
    assert job.close().data.status is JobStatus.CLOSED


def test_the_last_batch_closes_the_job(client: ZenRowsBatchClient) -> None:
    job = client.submit_open()
    assert job.load().data.latest_run is not None
    added = job.add_tasks({"tasks": [{"url": "https://ok.example/1"}], "last_batch": True})
    assert added.job_status is JobStatus.CLOSED
    assert job.run.wait(timeout=200, poll_interval=0.05).data.status is RunStatus.COMPLETED
    late = lambda: job.add_tasks({"tasks": [{"url": "https://ok.example/2"}]})  # noqa: E731
    assert code_of(late) == (409, "last_batch_received")


def test_closing_an_empty_open_job_completes_it(client: ZenRowsBatchClient) -> None:
    job = client.submit_open()
    latest = job.close().data.latest_run
    assert latest is not None
    assert (latest.status, latest.stats.total) == (RunStatus.COMPLETED, 0)


def test_a_stopped_run_keeps_what_it_has_and_takes_up_nothing_new(
    client: ZenRowsBatchClient,
) -> None:
    job = client.submit_regular([f"https://slow.example/{n}?ms=300" for n in range(2000)])
    stopped = job.run.stop()
    assert stopped.data.status is RunStatus.STOPPED
    assert job.run.cancel().data.status is RunStatus.STOPPED
    assert stopped.data.stats.total == 2000
    assert code_of(lambda: job.add_tasks({"tasks": [{"url": "https://ok.example/"}]})) == (
        409,
        "job_not_open",
    )
    done = client.submit_regular(["https://ok.example/1"])
    done.run.wait(timeout=200, poll_interval=0.05)
    assert code_of(done.run.stop) == (409, "run_not_stoppable")


def test_a_paused_run_waits_until_it_is_resumed(client: ZenRowsBatchClient) -> None:
    job = client.submit_open()
    assert job.run.pause().data.pause_state is PauseState.PAUSED
    job.add_tasks({"tasks": [{"url": f"https://ok.example/{n}"} for n in range(5)]})
    with pytest.raises(RunPaused):
        job.run.wait(timeout=5, poll_interval=0.05)
    job.close()
    assert client.get_job(job.job_id).data.latest_run.stats.completed == 0  # type: ignore[union-attr]
    assert job.run.resume().data.pause_state is None
    done = job.run.wait(timeout=200, poll_interval=0.05).data
    assert (done.status, done.stats.successful) == (RunStatus.COMPLETED, 5)
    assert code_of(job.run.pause) == (409, "conflict")


def test_a_large_submit_is_answered_at_once_and_its_rows_follow(client: ZenRowsBatchClient) -> None:
    urls: list[str | TaskInputDict] = [f"https://ok.example/{n}?size=10" for n in range(10_000)]
    job = client.submit_regular(urls, wait_for_ingest=True)
    assert job.submit_response is not None
    assert job.submit_response.latest_run is not None
    assert job.submit_response.latest_run.ingest_status is IngestStatus.PENDING
    assert job.submit_response.latest_run.stats.total == 10_000
    latest = client.get_job(job.job_id).data.latest_run
    assert latest is not None
    assert latest.ingest_status is IngestStatus.DONE
    assert sum(1 for _ in client.iter_results(job.job_id)) == 10_000
    assert job.run.wait(timeout=200, poll_interval=0.05).data.stats.successful == 10_000


def test_jobs_and_runs_are_listed_newest_first(client: ZenRowsBatchClient) -> None:
    made = [client.submit_regular([f"https://ok.example/{n}"]).job_id for n in range(3)]
    listed = client.list_jobs(limit=2)
    assert [job.job_id for job in listed.jobs] == made[:0:-1]
    assert listed.next_cursor
    following = client.list_jobs(limit=1, cursor=listed.next_cursor)
    assert [job.job_id for job in following.jobs] == made[:1]
    [run] = client.list_runs(made[0]).runs
    assert client.get_run(made[0], run_id=run.run_id).data.run_sequence == 1


def test_the_same_key_and_body_get_the_same_job(client: ZenRowsBatchClient) -> None:
    key = str(uuid.uuid4())
    first = client.submit_regular(["https://ok.example/1"], idempotency_key=key)
    again = client.submit_regular(["https://ok.example/1"], idempotency_key=key)
    assert first.submit_response == again.submit_response
    other = lambda: client.submit_regular(["https://ok.example/2"], idempotency_key=key)  # noqa: E731
    assert code_of(other) == (409, "idempotency_key_conflict")


def test_post_bodies_params_and_headers_reach_the_gateway(client: ZenRowsBatchClient) -> None:
    job = client.submit_regular(
        [
            {
                "url": "https://ok.example/search",
                "method": "POST",
                "body": {"query": "shoes"},
                "zenrows_params": {"custom_headers": {"X-Seen": "yes"}, "premium_proxy": True},
            }
        ],
        zenrows_params={"proxy_country": "es"},
    )
    job.run.wait(timeout=200, poll_interval=0.05)
    [row] = client.iter_results(job.job_id)
    assert row.method is not None
    assert row.method.value == "POST"
    page = job.run.download_task_to_memory(row).decode()
    for sent in ("POST", "shoes", "X-Seen", "yes", "premium_proxy", "proxy_country"):
        assert sent in page
    assert "an-api-key" not in page
    assert client.get_job(job.job_id).data.zenrows_params == {"proxy_country": "es"}


def test_params_in_the_spelling_of_other_clients_reach_the_gateway(
    client: ZenRowsBatchClient,
) -> None:
    """Headers as JSON text, as the official CLI and MCP tools send them; booleans as Python's."""
    given: dict[str, str | bool | int | dict[str, str]] = {
        "custom_headers": '{"X-Seen": "yes"}',
        "premium_proxy": "True",
        "js_render": "FALSE",
        "extract": "auto",
        "extract_fields": "title,price",
    }
    job = client.submit_regular(["https://ok.example/1"], zenrows_params=given)
    job.run.wait(timeout=200, poll_interval=0.05)
    [row] = client.iter_results(job.job_id)
    sent = json.loads(job.run.download_task_to_memory(row))
    assert sent["headers"]["X-Seen"] == "yes"
    assert sent["params"] == {
        "custom_headers": "true",
        "premium_proxy": "true",
        "js_render": "false",
        "extract": "auto",
        "extract_fields": "title,price",
    }


@pytest.mark.parametrize(
    "task",
    [
        {"url": "https://ok.example/", "zenrows_params": {"js_render": "yes"}},
        {"url": "https://ok.example/", "zenrows_params": {"js_render": 1}},
        {"url": "https://ok.example/", "zenrows_params": {"custom_headers": "X-Seen: yes"}},
    ],
)
def test_what_is_no_boolean_and_no_header_is_refused(
    client: ZenRowsBatchClient, task: TaskInputDict
) -> None:
    with pytest.raises(BatchAPIError) as caught:
        client.submit_regular([task])
    assert caught.value.problem is not None
    assert caught.value.problem.extras is not None
    [bad] = caught.value.problem.extras["invalid_tasks"]
    assert bad["reason"] == "invalid_param_value"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nocredits", "insufficient_credits"),
        ("badkey", "subscription_inactive"),
        ("capped", "api_key_cap_reached"),
    ],
)
def test_an_account_error_fails_the_run_and_burns_no_task(
    running: Program, kind: str, reason: str
) -> None:
    # With a key of its own: of one that was refused so, the service asks little for a while.
    client = ZenRowsBatchClient(f"the-key-of-{kind}", base_url=running.url)
    job = client.submit_regular([f"https://{kind}.example/{n}" for n in range(300)])
    run = job.run.wait(timeout=200, poll_interval=0.05).data
    assert run.status is RunStatus.FAILED
    assert run.failure_reason is not None
    assert run.failure_reason.value == reason
    assert run.failure_detail
    assert run.stats.completed == 0
    assert {row.status for row in client.iter_results(job.job_id)} <= {
        TaskStatus.PENDING,
        TaskStatus.PROCESSING,
    }
    client.close()


def test_errors_have_the_codes_of_the_contract(
    client: ZenRowsBatchClient, stranger: ZenRowsBatchClient
) -> None:
    job = client.submit_regular(["https://ok.example/1"])
    job.run.wait(timeout=200, poll_interval=0.05)
    assert code_of(lambda: stranger.get_job(job.job_id)) == (404, "not_found")
    assert code_of(lambda: client.get_job("01ARZ3NDEKTSV4RRFFQ69G5FAV")) == (404, "not_found")
    assert code_of(lambda: client.list_jobs(limit=0)) == (400, "invalid_argument")
    assert code_of(lambda: client.list_jobs(cursor="?")) == (400, "invalid_argument")
    webhook: WebhookDict = {"url": "http://example.com/hook", "signature": False}
    submit = lambda: client.submit_regular(["https://ok.example/1"], webhook=webhook)  # noqa: E731
    assert code_of(submit) == (400, "callback_url_must_be_https")


def test_a_full_rerun_is_a_run_of_its_own_under_the_same_ids(client: ZenRowsBatchClient) -> None:
    job = client.submit_open([{"url": "https://ok.example/1", "external_id": "one"}])
    job.close()
    first = job.run.wait(timeout=200, poll_interval=0.05)
    before = [(row.task_id, row.external_id) for row in first.results()]

    second = job.rerun(wait_for_ingest=True)

    assert second.run_id != first.run_id
    done = second.wait(timeout=200, poll_interval=0.05).data
    assert (done.status, done.run_sequence, done.stats.successful) == (RunStatus.COMPLETED, 2, 1)
    assert [(row.task_id, row.external_id) for row in second.results()] == before
    assert [row.source_run_id for row in second.results()] == [None]
    assert [run.run_id for run in job.runs()] == [second.run_id, first.run_id]


def test_failed_tasks_are_retried_and_the_others_inherited(client: ZenRowsBatchClient) -> None:
    urls: list[str | TaskInputDict] = [f"https://ok.example/{n}" for n in range(3)]
    job = client.submit_regular([*urls, "https://permanent.example/x"])
    first = job.run.wait(timeout=200, poll_interval=0.05)
    key = str(uuid.uuid4())

    second = job.retry_failed(idempotency_key=key)

    assert second.data.stats.successful == 3, "inherited successes are there from the start"
    done = second.wait(timeout=200, poll_interval=0.05).data
    assert (done.stats.total, done.stats.successful, done.stats.failed) == (4, 3, 1)
    rows = list(second.results())
    assert [row.source_run_id for row in rows] == [first.run_id] * 3 + [None]
    assert {row.run_id for row in rows} == {second.run_id}
    assert [len(second.task_history(row.task_id).events) for row in rows] == [1, 1, 1, 1]
    scraped = {row.task_id: row.updated_at for row in first.results()}
    assert all(row.updated_at > scraped[row.task_id] for row in rows[:3])
    assert rows[0].result_url is not None
    assert job.retry_failed(idempotency_key=key).run_id == second.run_id
    other = lambda: job.rerun(status="pending", idempotency_key=key)  # noqa: E731
    assert code_of(other) == (409, "idempotency_key_conflict")
    assert code_of(first.delete) == (409, "run_has_descendants")
    assert code_of(lambda: job.rerun(status=["pending"])) == (409, "no_matching_tasks")
    assert code_of(lambda: job.rerun(status="nonsense")) == (400, "invalid_argument")


def test_what_a_stop_left_is_taken_up_again(client: ZenRowsBatchClient) -> None:
    job = client.submit_regular([f"https://slow.example/{n}?ms=100" for n in range(300)])
    assert code_of(job.rerun) == (409, "run_not_terminal")
    job.run.stop()

    again = job.retry_failed(include_pending=True)

    assert again.wait(timeout=200, poll_interval=0.05).data.stats.successful == 300


def test_a_large_rerun_is_copied_while_it_runs(client: ZenRowsBatchClient) -> None:
    urls: list[str | TaskInputDict] = [f"https://ok.example/{n}?size=10" for n in range(10_000)]
    job = client.submit_regular([*urls, "https://permanent.example/x"])
    job.run.wait(timeout=200, poll_interval=0.05)

    second = job.rerun(status="failed")

    assert second.data.ingest_status is IngestStatus.PENDING
    assert second.data.stats.total > second.data.stats.completed == 10_000
    done = second.wait(timeout=200, poll_interval=0.05).data
    assert (done.ingest_status, done.stats.successful) == (IngestStatus.DONE, 10_000)
    assert sum(1 for _ in second.results()) == 10_001


def test_a_deleted_run_gives_way_to_the_one_before_it(client: ZenRowsBatchClient) -> None:
    job = client.submit_regular(["https://ok.example/1"])
    first = job.run.wait(timeout=200, poll_interval=0.05)
    second = job.rerun().wait(timeout=200, poll_interval=0.05)

    client.run(job.job_id, second.run_id).delete()
    client.run(job.job_id, second.run_id).delete()

    latest = client.get_job(job.job_id).data.latest_run
    assert latest is not None
    assert latest.run_id == first.run_id
    assert code_of(lambda: client.get_run(job.job_id, run_id=second.run_id)) == (404, "not_found")
    client.run(job.job_id, first.run_id).delete()
    assert client.get_job(job.job_id).data.latest_run is None
    assert code_of(job.rerun) == (409, "no_prior_run")
    assert list(job.runs()) == []


def test_a_deleted_job_is_gone_with_its_live_run(
    client: ZenRowsBatchClient, stranger: ZenRowsBatchClient
) -> None:
    job = client.submit_regular([f"https://slow.example/{n}?ms=300" for n in range(500)])
    assert code_of(stranger.job(job.job_id).delete) == (404, "not_found")

    client.job(job.job_id).delete()
    client.job(job.job_id).delete()

    assert code_of(lambda: client.get_job(job.job_id)) == (404, "not_found")
    assert job.job_id not in {each.job_id for each in client.list_jobs().jobs}
    assert code_of(lambda: list(client.iter_results(job.job_id))) == (404, "not_found")


def test_every_bad_task_is_named_and_nothing_is_created(client: ZenRowsBatchClient) -> None:
    before = client.list_jobs(limit=1).jobs
    tasks = [
        {"url": "https://ok.example/1"},
        {"url": "ftp://files.example/1"},
        {"url": "https://ok.example/3", "zenrows_params": {"no_such_param": True}},
    ]
    with pytest.raises(BatchAPIError) as caught:
        client.submit_regular(tasks)  # type: ignore[arg-type]
    assert caught.value.code == "invalid_argument"
    assert caught.value.problem is not None
    assert caught.value.problem.extras is not None
    assert [
        (bad["index"], bad["reason"]) for bad in caught.value.problem.extras["invalid_tasks"]
    ] == [(1, "unsupported_scheme"), (2, "unknown_param")]
    assert client.list_jobs(limit=1).jobs == before


def test_a_csv_is_uploaded_and_submitted(client: ZenRowsBatchClient, tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_text("sku;link\nA1;https://ok.example/1\nA2;https://permanent.example/2\n")
    file_input_id = client.upload_csv(
        file, fields={"url": "link", "external_id": "sku"}, header=True, delimiter=";"
    )
    job = client.submit_regular(file_input_id=file_input_id)
    assert job.accepted_tasks == 2
    run = job.run.wait(timeout=200, poll_interval=0.05)
    assert (run.data.stats.successful, run.data.stats.failed) == (1, 1)
    assert [row.external_id for row in client.iter_results(job.job_id)] == ["A1", "A2"]


def test_a_large_csv_is_taken_in_scraped_saved_retried_and_deleted(
    client: ZenRowsBatchClient, tmp_path: Path
) -> None:
    count = 12_000
    file = tmp_path / "list.csv"
    lines = (f"https://{_host(n)}.example/{n}" for n in range(count))
    file.write_text("\n".join(lines))
    job = client.submit_regular(file_input_id=client.upload_csv(file, fields={"url": 0}))
    assert job.accepted_tasks == 0
    taken = job.wait_for_ingest(timeout=200, poll_interval=0.05)
    assert taken.data.latest_run is not None
    assert taken.data.latest_run.ingest_status is IngestStatus.DONE
    run = job.run.wait(timeout=200, poll_interval=0.2)
    assert (run.data.status, run.data.stats.total) == (RunStatus.COMPLETED, count)
    assert (run.data.stats.successful, run.data.stats.failed) == (count - 12, 12)
    assert sum(1 for _ in client.iter_results(job.job_id)) == count

    again = job.retry_failed(wait_for_ingest=True).wait(timeout=200, poll_interval=0.2)
    assert (again.data.stats.total, again.data.stats.failed) == (count, 12)
    job.delete()
    assert code_of(lambda: client.get_job(job.job_id)) == (404, "not_found")


def _host(number: int) -> str:
    return "permanent" if number % 1000 == 0 else "ok"


def test_what_is_wrong_with_a_file_input_has_its_code(
    client: ZenRowsBatchClient, stranger: ZenRowsBatchClient, tmp_path: Path
) -> None:
    file = tmp_path / "list.csv"
    file.write_text("https://ok.example/1\n")
    file_input_id = client.upload_csv(file, fields={"url": 0})
    assert code_of(lambda: stranger.submit_regular(file_input_id=file_input_id)) == (
        404,
        "file_input_not_found",
    )
    empty = client.create_job_input({"type": "csv", "csv": {"fields": {"url": 0}}})
    assert code_of(lambda: client.submit_regular(file_input_id=empty.file_input_id)) == (
        409,
        "file_input_not_uploaded",
    )
    body = SubmitJobRequest.model_validate({"status": "open", "file_input_id": file_input_id})
    assert code_of(lambda: client.submit_job(body)) == (409, "file_input_unsupported_for_job_type")
