"""Secrets planted in a busy run with failures, then searched for in everything it left."""

import base64
import json
import sqlite3
import zipfile
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import httpx
import msgspec
import pytest

from conveyor.testing.local.ports import free_port
from tests.certificates import Authority
from tests.e2e.conftest import FAST_RETRIES, client_of
from tests.e2e.polling import ended, every_row, until
from tests.e2e.receiver import Receiver, receiving
from tests.e2e.test_keys import conveyor, create
from tests.harness.programs import Program, service

GATEWAY_KEY = "canary-gateway-1f6c2a"
SERVICES_KEY = "canary-services-2e7d3b"
TOKEN = "canary-task-token-3d8e4c"
AWS_SECRET = "canary-aws-4c9f5d"
HEADER = "canary-header-5b0a6e"
BODY = "canary-body-6a1b7f"
ROOT_KEY = base64.b64encode(b"canary-root-key-8c3d91-012345678").decode()
IN_HOOK = "canary-hook-7b2c80"
# Pages that come, that fail for good, that fail at first and that break off.
HOSTS = ("ok", "gzip", "flaky", "permanent", "dropped", "cut", "rubbish", "leaky", "captcha")
# A task's own headers and body are part of the task: they are in its row and in its list.
OF_TASKS = {HEADER, BODY}
PAGE = "page"
KNOWN = (
    "file conveyor.db",
    "file blobs/lists/",
    "file blobs/pins/",
    "file bodies/",
    f"answer {PAGE} ",
)
ROWS_OF_TASKS = {"task.params", "task.body"}


class Left(msgspec.Struct, frozen=True):
    """All that a service left behind, by where it is."""

    secrets: dict[str, str]
    places: dict[str, bytes]
    columns: dict[str, bytes]


@pytest.fixture(scope="module")
def left(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    folder = tmp_path_factory.mktemp("canaries")
    data, log = folder / "data", folder / "service.log"
    environ = FAST_RETRIES | {
        "CONVEYOR_AUTH": "keys",
        "CONVEYOR_GATEWAY_KEY": SERVICES_KEY,
        "CONVEYOR_ENCRYPTION_KEY": ROOT_KEY,
        "CONVEYOR_LOG_LEVEL": "debug",
        "CONVEYOR_SYNC_TASKS": "20",
        "CONVEYOR_STEP_FUNCTIONS": "aws:",
        "CONVEYOR_SLOW_CALL": "0.001ms",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
        "AWS_ENDPOINT_URL_SFN": f"http://127.0.0.1:{free_port()}",
    }
    authority = Authority(folder)
    with (
        receiving(authority) as receiver,
        service(
            data=data, gateway=gateway.url, environ=environ | receiver.environ, log=log
        ) as program,
    ):
        made = create(data, "--caller", "ann", "--gateway-key", given=f"{GATEWAY_KEY}\n")
        with client_of(program, key=made["key"]) as api:
            hmac = api.post("/hmac/keys/rotate").raise_for_status().json()["secret"]
            answers = _be_busy(api, receiver)
            answers["metrics"] = httpx.get(program.url.removesuffix("/v1") + "/metrics").content
        rotated = conveyor("keys", "rotate-encryption", "--data", str(data), environ=environ)
        answers["rotation"] = rotated.stdout.encode() + rotated.stderr.encode()
        assert rotated.returncode == 0, rotated.stderr
        wrong = environ | {"CONVEYOR_ENCRYPTION_KEY": f"{ROOT_KEY}x"}
        answers["refused root key"] = conveyor("doctor", environ=wrong).stderr.encode()
        told = conveyor("doctor", "--data", str(data), "--json", environ=environ)
        answers["doctor"] = told.stdout.encode() + told.stderr.encode()
        files = {str(path.relative_to(data)): path for path in data.rglob("*") if path.is_file()}
        places = {f"file {name}": path.read_bytes() for name, path in files.items()}
        columns = _columns(data / "conveyor.db")
        places |= {f"answer {name}": content for name, content in answers.items()}
        places["log"] = log.read_bytes()
        secrets = {
            "own key": made["key"].rpartition("_")[2],
            "gateway key": GATEWAY_KEY,
            "service's gateway key": SERVICES_KEY,
            "hmac secret": hmac,
            "hmac secret, decoded": base64.b64decode(hmac).hex(),
            "task token": TOKEN,
            "AWS secret": AWS_SECRET,
            "root key": ROOT_KEY,
            "root key, decoded": base64.b64decode(ROOT_KEY).decode(),
            "header": HEADER,
            "body": BODY,
        }
        yield Left(secrets, places, columns)


def _be_busy(api: httpx.Client, receiver: Receiver) -> dict[str, bytes]:
    """Two jobs, in the body and streamed in, with trouble of many kinds; what they answered."""
    answers: dict[str, bytes] = {}
    hook = {"url": receiver.url("/in?token=" + IN_HOOK), "signature": True}
    for count in (1, 4):
        tasks: list[dict[str, object]] = [
            {"url": f"https://{host}.example/{number}"} for number in range(count) for host in HOSTS
        ]
        tasks.append({"url": "https://ok.example/post", "method": "POST", "body": {"b": BODY}})
        body = {
            "tasks": tasks,
            "zenrows_params": {"custom_headers": {"Authorization": HEADER}},
            "webhook": hook,
            "step_functions": {"task_token": TOKEN, "heartbeat_seconds": 5},
        }
        job = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
        run = ended(api, job)
        rows = every_row(api, job, limit="1000")
        assert {row["status"] for row in rows} == {"successful", "failed"}
        for row in rows:
            task = f"/jobs/{job}/tasks/{row['task_id']}"
            content = api.get(f"{task}/content")
            kind = PAGE if content.status_code == 200 else "refusal"
            answers[f"{kind} of {task}"] = content.content
            answers[f"{task}/history"] = api.get(f"{task}/history").content
        answers[f"results of {job}"] = json.dumps(rows).encode()
        pages = {page for name, page in answers.items() if name.startswith(PAGE)}
        answers[f"export of {job}"] = _exported(api, job, str(run["run_id"]), pages)
        # The webhook's own URL is the caller's to see, and nobody else is told its query.
        deliveries = f"/jobs/{job}/webhook/deliveries"
        answers[deliveries] = until(partial(_delivered, api, deliveries))
        answers[f"runs of {job}"] = api.get(f"/jobs/{job}/runs").content
        answers[f"again of {job}"] = api.post(f"/jobs/{job}/rerun", params={"status": "x"}).content
    answers["keys"] = api.get("/hmac/keys").content
    for wrong in ({"task_token": f"{TOKEN} "}, {"task_token": TOKEN, "x": 1}, TOKEN):
        refused = api.post("/jobs", json={"tasks": [{"url": "x"}], "step_functions": wrong})
        assert refused.status_code == 400
        answers[f"refusal of {len(answers)}"] = refused.content
    answers["refused key"] = api.get("/jobs", params={"apikey": GATEWAY_KEY}).content
    return answers


def _delivered(api: httpx.Client, path: str) -> bytes | None:
    content = api.get(path).raise_for_status().content
    return content if b"delivered" in content else None


def _exported(api: httpx.Client, job: str, run: str, pages: set[bytes]) -> bytes:
    """What is in an export beside the pages themselves."""
    path = f"/jobs/{job}/runs/{run}/exports"
    export = api.post(path).raise_for_status().json()["export_id"]

    def ready() -> str | None:
        url: str | None = api.get(f"{path}/{export}").raise_for_status().json().get("download_url")
        return url

    with zipfile.ZipFile(BytesIO(httpx.get(until(ready)).raise_for_status().content)) as packed:
        read = {name: packed.read(name) for name in packed.namelist()}
    assert pages & set(read.values())
    return b"".join(
        name.encode() + content for name, content in read.items() if content not in pages
    )


def _columns(database: Path) -> dict[str, bytes]:
    """Everything in every column of every table."""
    found: dict[str, bytes] = {}
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        connection.text_factory = bytes
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        for (table,) in tables.fetchall():
            rows = connection.execute(f"SELECT * FROM {table.decode()}")
            names = [part[0] for part in rows.description]
            for row in rows:
                for name, value in zip(names, row, strict=True):
                    content = value if isinstance(value, bytes) else str(value).encode()
                    place = f"{table.decode()}.{name}"
                    found[place] = found.get(place, b"") + content
    return found


def test_secrets_are_nowhere_in_clear(left: Left) -> None:
    assert len(left.places) > 100
    found = {
        (name, place)
        for name, secret in left.secrets.items()
        if secret not in OF_TASKS
        for place, content in (left.places | left.columns).items()
        if secret.encode() in content
    }
    assert found == set()
    assert b"apikey=***" in left.columns["task.final_url"], "else nothing was looked for"
    assert b"wrapped" in left.columns["encryption_keys.doc"]


def test_headers_and_bodies_of_tasks_are_in_their_rows_and_lists_alone(left: Left) -> None:
    """A job's own headers are in its row. The mock gateway's pages repeat what they were asked."""
    for secret in OF_TASKS:
        columns = {name for name, content in left.columns.items() if secret.encode() in content}
        assert columns <= ROWS_OF_TASKS | {"job.doc"}
        places = {name for name, content in left.places.items() if secret.encode() in content}
        strange = {name for name in places if not name.startswith(KNOWN)}
        assert strange == set()
    assert BODY.encode() in left.columns["task.body"], "else nothing was looked for"


def test_a_webhooks_query_is_in_no_log_and_no_metric(left: Left) -> None:
    for place in ("log", "answer metrics", "answer doctor"):
        assert IN_HOOK.encode() not in left.places[place]
    assert b"webhook." in left.places["log"]
