"""Webhooks of a real service, told to real receivers, as the official client sets them up."""

import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook
from zenrows.batch import WebhookEvent, ZenRowsBatchClient, verify_webhook_signature

from tests.certificates import Authority
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of, problem_of
from tests.e2e.polling import ended, until
from tests.e2e.receiver import Receiver, Told, receiving
from tests.harness.programs import Program, mock_gateway, service

OK = "https://ok.example/1"
RARE = "no-such-host.invalid"
ATTEMPTS = 4  # a busy machine delays anything now and then, a poll does it always


def _answer(told: Told) -> int:
    """What the path asks for: `/404` and its like; `/flaky` takes an event the second time."""
    if told.path.startswith("/flaky"):
        _refused.append(told.event_id)
        return 503 if _refused.count(told.event_id) == 1 else 200
    return int(told.path[1:4]) if told.path[1:4].isdigit() else 200


_refused: list[str] = []


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    with receiving(authority, answer=_answer) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "service.log"


@pytest.fixture(scope="module")
def running(
    gateway: Program, receiver: Receiver, log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    data = tmp_path_factory.mktemp("data")
    environ = FAST_RETRIES | SHORT_GRACE | receiver.environ
    with service(data=data, gateway=gateway.url, environ=environ, log=log) as program:
        yield program


@pytest.fixture
def client(running: Program, request: pytest.FixtureRequest) -> Iterator[ZenRowsBatchClient]:
    """A caller of its own: its keys are its own too."""
    key = f"key of {request.node.name}"
    with ZenRowsBatchClient(key, base_url=running.url, retries=0) as client:
        yield client


@pytest.fixture
def api(running: Program, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with client_of(running, key=f"key of {request.node.name}") as client:
        yield client


def test_the_official_client_sets_tests_signs_and_rotates(
    client: ZenRowsBatchClient, receiver: Receiver
) -> None:
    assert client.list_hmac_keys().active is None
    first = client.rotate_hmac_key()
    url = receiver.url("/official")
    job = client.submit_regular([OK], webhook={"url": url, "signature": True}, external_id="mine")
    job.run.wait(timeout=200, poll_interval=0.05)
    [told] = until(lambda: receiver.told_of("/official"))

    secrets = {first.kid: first.secret}
    assert verify_webhook_signature(told.body, told.headers["x-signature"], secrets)
    assert Webhook(f"whsec_{first.secret}").verify(told.body, dict(told.headers))
    event = WebhookEvent.model_validate_json(told.body)
    assert event.event_type.value == "run.completed"
    assert (event.event_id, event.job_id) == (told.event_id, job.job_id)
    assert event.external_id == "mine"
    snapshot = client.get_job(job.job_id).data
    run = snapshot.latest_run
    assert run is not None
    assert event.stats == run.stats
    assert event.occurred_at == run.updated_at

    config = client.get_job_webhook(job.job_id)
    assert (str(config.url), config.signature) == (url, True)
    assert snapshot.webhook == config

    second = client.rotate_hmac_key()
    keys = client.list_hmac_keys()
    assert keys.active is not None
    assert keys.candidate is not None
    assert (keys.active.kid, keys.candidate.kid) == (first.kid, second.kid)
    tested = client.test_webhook({"url": url, "signature": True})
    assert (tested.delivered, tested.status_code, tested.error) == (True, 200, None)
    told = receiver.told_of("/official")[1]
    assert told.event_id == tested.event_id
    assert WebhookEvent.model_validate_json(told.body).event_type.value == "webhook.test"
    assert verify_webhook_signature(told.body, told.headers["x-signature"], secrets)
    for key in first, second:
        assert Webhook(f"whsec_{key.secret}").verify(told.body, dict(told.headers))

    assert client.finalize_hmac_key().active_kid == second.kid
    client.test_webhook({"url": url, "signature": True})
    told = receiver.told_of("/official")[2]
    assert not verify_webhook_signature(told.body, told.headers["x-signature"], secrets)
    newer = {second.kid: second.secret}
    assert verify_webhook_signature(told.body, told.headers["x-signature"], newer)

    client.rotate_hmac_key()
    client.cancel_hmac_rotation()
    assert client.list_hmac_keys().candidate is None
    client.delete_job_webhook(job.job_id)
    client.delete_job_webhook(job.job_id)


def test_a_webhook_can_be_put_on_a_job_that_is_at_work(
    client: ZenRowsBatchClient, receiver: Receiver
) -> None:
    job = client.submit_open([OK])
    url = receiver.url("/later")
    put = client.put_job_webhook(job.job_id, {"url": url, "signature": False})
    assert (str(put.url), put.signature) == (url, False)
    job.close()
    [told] = until(lambda: receiver.told_of("/later"))
    assert "x-signature" not in told.headers


def test_an_account_that_cannot_scrape_is_told(api: httpx.Client, receiver: Receiver) -> None:
    webhook = {"url": receiver.url("/failed")}
    tasks = [{"url": "https://nocredits.example/"}]
    own = {"X-API-Key": "a-key-without-credits"}  # a refused key takes no other work
    api.post("/jobs", json={"tasks": tasks, "webhook": webhook}, headers=own).raise_for_status()
    [told] = until(lambda: receiver.told_of("/failed"))
    event = WebhookEvent.model_validate_json(told.body)
    assert event.event_type.value == "run.failed"
    assert event.failure_reason is not None
    assert event.failure_reason.value == "insufficient_credits"
    assert event.failure_detail


def test_what_was_not_taken_is_listed_and_sent_again(api: httpx.Client, receiver: Receiver) -> None:
    job = _submitted(api, {"url": receiver.url("/flaky?secret=1")})
    ended(api, job["job_id"])
    path = f"/jobs/{job['job_id']}/webhook/deliveries"

    def is_noted() -> dict[str, Any] | None:
        [event] = api.get(path).json()["events"]
        return dict(event) if event["attempts"] else None

    event = until(is_noted)
    assert event["status"] == "owed"
    assert event["event_type"] == "run.completed"
    [attempt] = event["attempts"]
    assert (attempt["attempt"], attempt["status_code"]) == (1, 503)
    assert attempt["error"] == "http_5xx:503"
    assert event["next_attempt_at"] > attempt["started_at"]

    again = api.post(f"{path}/{event['event_id']}/redeliver")
    assert again.status_code == 202
    assert again.json()["event_id"] == event["event_id"]
    done = until(lambda: _first(api, path, "delivered"))
    assert [one.get("error") for one in done["attempts"]] == ["http_5xx:503", None]
    assert "next_attempt_at" not in done
    told = receiver.told_of("/flaky?secret=1")
    assert len({(one.event_id, one.body) for one in told}) == 1
    problem_of(api.post(f"{path}/{'0' * 26}/redeliver"), 404, "not_found")
    problem_of(api.get(path, params={"limit": "0"}), 400, "invalid_argument")


def test_a_receiver_that_is_gone_is_shown_as_disabled(
    api: httpx.Client, receiver: Receiver
) -> None:
    job = _submitted(api, {"url": receiver.url("/410")})
    path = f"/jobs/{job['job_id']}/webhook"
    shown = until(lambda: api.get(path).json().get("disabled_at") and api.get(path).json())
    assert shown["url"] == receiver.url("/410")
    body = {"url": receiver.url("/410b"), "signature": False}
    assert "disabled_at" not in api.put(path, json=body).json()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url": "http://ok.example/"}, "callback_url_must_be_https"),
    ({"url": "ftp://ok.example/"}, "callback_url_must_be_https"),
    ({"url": "https://{none}:{port}/"}, "callback_url_unresolvable"),
    ({"url": "https://10.1.2.3:{port}/"}, "callback_url_unresolvable"),
    ({"url": "https://169.254.169.254:{port}/latest/meta-data"}, "callback_url_unresolvable"),
    ({"url": "https://127.0.0.1:{port}/", "signature": True}, "webhook_signing_requires_active_key"),
    ({"url": "https://127.0.0.1:1/"}, "invalid_argument"),
    ({"url": "https://a:b@127.0.0.1:{port}/"}, "invalid_argument"),
    ({"url": "nothing"}, "invalid_argument"),
    ({"url": 7}, "invalid_argument"),
    ({}, "invalid_argument"),
    ({"url": "https://127.0.0.1:{port}/", "secret": "x"}, "invalid_argument"),
]  # fmt: skip


@pytest.mark.parametrize(("webhook", "code"), REFUSED)
def test_a_bad_webhook_is_refused_wherever_it_is_given(
    api: httpx.Client, receiver: Receiver, webhook: dict[str, Any], code: str
) -> None:
    given = dict(webhook)
    if isinstance(given.get("url"), str):
        given["url"] = given["url"].format(none=RARE, port=receiver.port)
    before = len(api.get("/jobs").json()["jobs"])
    tasks = [{"url": OK}]
    answer = api.post("/jobs", json={"tasks": tasks, "webhook": given})
    problem_of(answer, 400, code)
    assert "10.1.2.3" not in answer.json()["detail"]
    problem_of(api.post("/webhook/test", json=given), 400, code)
    assert len(api.get("/jobs").json()["jobs"]) == before

    job = api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()
    path = f"/jobs/{job['job_id']}/webhook"
    problem_of(api.put(path, json={"signature": False, **given}), 400, code)
    problem_of(api.get(path), 404, "not_found")


def test_both_halves_of_a_webhook_are_set(api: httpx.Client, receiver: Receiver) -> None:
    job = _submitted(api, None)
    path = f"/jobs/{job['job_id']}/webhook"
    problem_of(api.put(path, json={"url": receiver.url()}), 400, "invalid_argument")
    problem_of(api.put(path, content=b"{"), 400, "invalid_argument")
    assert api.delete(path).status_code == 204


def test_a_test_that_fails_says_how(api: httpx.Client, receiver: Receiver) -> None:
    answer = api.post("/webhook/test", json={"url": receiver.url("/404")}).json()
    assert answer.pop("elapsed_ms") >= 0
    assert answer.pop("event_id")
    assert answer == {"delivered": False, "status_code": 404, "error": "http_4xx:404"}
    nobody = receiver.url(host="127.0.0.77")
    answer = api.post("/webhook/test", json={"url": nobody}).json()
    assert answer["error"] == "transport_error:Connection refused"
    assert "status_code" not in answer


def test_rotations_that_cannot_be_are_refused(api: httpx.Client) -> None:
    problem_of(api.post("/hmac/keys/rotate/finalize"), 409, "no_candidate")
    assert api.delete("/hmac/keys/rotate").status_code == 204, "there is nothing to cancel"
    assert api.get("/hmac/keys").json() == {}
    assert api.post("/hmac/keys/rotate").status_code == 201
    assert api.post("/hmac/keys/rotate").status_code == 201
    problem_of(api.post("/hmac/keys/rotate"), 409, "candidate_pending")


def test_a_delivery_begins_within_milliseconds(api: httpx.Client, receiver: Receiver) -> None:
    for attempt in range(ATTEMPTS):
        for number in range(10):
            _submitted(api, {"url": receiver.url(f"/quick{attempt}/{number}")})
        told = until(lambda: _all(receiver, f"/quick{attempt}/", 10))  # noqa: B023 - called at once
        late = sorted(_delay(one) for one in told)
        if late[4] < 0.25:  # seconds; the idle poll alone would take half a second
            return
    raise AssertionError(f"in each of {ATTEMPTS} attempts, at last {late}")


def test_metrics_and_the_log_tell_of_deliveries_and_no_secrets(
    running: Program, api: httpx.Client, receiver: Receiver, log: Path
) -> None:
    secret = api.post("/hmac/keys/rotate").json()["secret"]
    _submitted(api, {"url": receiver.url("/logged?token=hush"), "signature": True})
    until(lambda: receiver.told_of("/logged?token=hush"))
    until(lambda: "outbox.delivered" in log.read_text())
    text = log.read_text()
    assert "webhook.private.allowed" in text
    assert "hush" not in text
    assert secret not in text
    metrics = httpx.get(running.url.replace("/v1", "/metrics")).text
    [line] = [one for one in metrics.splitlines() if 'outcome="delivered"' in one]
    assert float(line.split()[-1]) >= 1


def test_kills_while_it_is_sending_lose_nothing_and_make_no_second_event(tmp_path: Path) -> None:
    dice, count = random.Random(5), 40
    authority = Authority(tmp_path)
    with mock_gateway() as gateway, receiving(authority, answer=_slowly) as receiver:
        data = tmp_path / "data"
        environ = SHORT_GRACE | receiver.environ | {"CONVEYOR_WEBHOOK_TIMEOUT": "1s"}
        jobs: list[str] = []
        for _ in range(6):
            with service(data=data, gateway=gateway.url, environ=environ) as program:
                with client_of(program) as api:
                    jobs += [
                        _submitted(api, {"url": receiver.url("/slow")})["job_id"]
                        for _ in range(count // 6)
                    ]
                time.sleep(dice.uniform(0.0, 0.5))  # the moment of death must be any moment
                program.kill()
        with (
            service(data=data, gateway=gateway.url, environ=environ) as program,
            client_of(program) as api,
        ):
            events = {}
            for job_id in jobs:
                run = ended(api, job_id)
                path = f"/jobs/{job_id}/webhook/deliveries"
                event = until(partial(_first, api, path, "delivered"))
                assert len(api.get(path).json()["events"]) == 1
                assert event["run_id"] == run["run_id"]
                events[event["event_id"]] = job_id
    told = {one.event_id: one.event["job_id"] for one in receiver.told}
    assert told == events
    assert len({one.body for one in receiver.told}) == len(jobs)


def test_one_dead_endpoint_of_fifty_delays_no_other(tmp_path: Path) -> None:
    hosts = [f"127.0.1.{number}" for number in range(1, 50)]
    dead = "127.0.1.99"
    authority = Authority(tmp_path)
    with (
        mock_gateway() as gateway,
        receiving(authority, *hosts) as receiver,
        socket.create_server((dead, receiver.port)),  # it listens, and never answers
    ):
        environ = SHORT_GRACE | receiver.environ
        data = tmp_path / "data"
        with (
            service(data=data, gateway=gateway.url, environ=environ) as program,
            client_of(program) as api,
        ):
            for host in hosts:
                for _ in range(4):
                    _submitted(api, {"url": receiver.url("/dead", host=dead)})
                _submitted(api, {"url": receiver.url(f"/of/{host}", host=host)})
            told = until(lambda: _all(receiver, "/of/", len(hosts)))
            problem = api.get("/jobs", params={"limit": "2"}).json()["jobs"][1]
            path = f"/jobs/{problem['job_id']}/webhook/deliveries"
            assert api.get(path).json()["events"][0]["status"] == "owed"
    assert Counter(one.host for one in told) == Counter(hosts)
    assert max(map(_delay, told)) < 12  # seconds; a delivery to the dead endpoint takes 15


def _slowly(_: Told) -> int:
    time.sleep(0.1)
    return 200


def _submitted(api: httpx.Client, webhook: dict[str, Any] | None) -> dict[str, Any]:
    body = {"tasks": [{"url": OK}], **({"webhook": webhook} if webhook else {})}
    job: dict[str, Any] = api.post("/jobs", json=body).raise_for_status().json()
    assert job.get("webhook", {}).get("url") == (webhook or {}).get("url")
    return job


def _first(api: httpx.Client, path: str, status: str) -> dict[str, Any] | None:
    [event] = api.get(path).raise_for_status().json()["events"]
    return dict(event) if event["status"] == status else None


def _all(receiver: Receiver, path: str, count: int) -> list[Told] | None:
    told = [one for one in tuple(receiver.told) if one.path.startswith(path)]
    return told if len(told) >= count else None


def _delay(told: Told) -> float:
    return told.at - datetime.fromisoformat(told.event["occurred_at"]).timestamp()
