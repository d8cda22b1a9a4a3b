"""The roles of deploy/aws/data.yaml allow what an api and two workers were seen to call."""

from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.aws.state_machines import a_machine
from tests.deploy.test_permissions import granted
from tests.e2e.polling import ended, until
from tests.emulators import Emulator
from tests.harness.aws_cluster import aws_cluster
from tests.harness.aws_gate import aws_gate
from tests.harness.programs import mock_gateway
from tests.harness.stacks import a_name, engines_at
from tests.harness.valkey import Valkey
from tests.s3_server import S3Server

TASKS = [{"url": f"https://flaky.example/{number}?fails=1"} for number in range(30)]
HEAVY = {"url": f"https://ok.example/{'x' * 1_500}"}  # not in its row
# What an api calls seldom: it redrives and drops dead letters, and deletes a queue 5 minutes after a
# run was stopped. Requests to S3 go to a server of its own and are not seen.
SELDOM = {"dynamodb:UpdateItem", "sqs:DeleteMessage", "sqs:DeleteQueue"}


@pytest.mark.long
def test_roles_allow_all_calls_that_were_seen(
    ministack: Emulator, valkey: Valkey, seaweedfs: S3Server, tmp_path: Path
) -> None:
    """One proxy stands before the api, another before the workers; KMS and Step Functions included."""
    key_id, name = ministack.client("kms").create_key()["KeyMetadata"]["KeyId"], a_name()
    with (
        aws_gate(ministack.url) as of_api,
        aws_gate(ministack.url) as of_workers,
        mock_gateway() as gateway,
    ):

        def of_each(process: str) -> Mapping[str, str]:
            url = (of_api if process == "api" else of_workers).url
            return {**engines_at(url, name), **ministack.environ, "AWS_ENDPOINT_URL": url}

        environ = {
            "CONVEYOR_ENCRYPTION": f"kms:{key_id}",
            "CONVEYOR_ENCRYPTION_KEY": "",
            "CONVEYOR_STEP_FUNCTIONS": "aws:",
            "CONVEYOR_SYNC_TASKS": "20",
        }
        with (
            aws_cluster(
                tmp_path,
                url=ministack.url,
                gateway=gateway,
                valkey=valkey,
                s3=seaweedfs,
                name=name,
                environ=environ,
                of_each=of_each,
            ) as group,
            httpx.Client(
                base_url=group.url, headers={"X-API-Key": "an-api-key"}, timeout=200
            ) as api,
        ):
            use_it_all(api, ministack)
    api_calls, worker_calls = set(of_api.actions), set(of_workers.actions)
    assert api_calls <= granted("ApiRole"), api_calls - granted("ApiRole")
    assert worker_calls <= granted("WorkerRole"), worker_calls - granted("WorkerRole")
    assert {"kms:Decrypt", "states:SendTaskSuccess"} <= api_calls | worker_calls
    unseen = {one for one in granted("ApiRole") - api_calls if not one.startswith("s3:")}
    assert unseen <= SELDOM, "the api is allowed what it does not need"
    assert {url.rpartition("/")[2] for url in of_api.received} == {f"{name}-dead"}


def use_it_all(api: httpx.Client, aws: Emulator) -> None:
    waiting = a_machine(aws).start()
    token = {"task_token": waiting.token}
    called = submitted(api, {"tasks": TASKS[:3], "step_functions": token})
    assert waiting.outcome(within=200)["next_state_saw"]["status"] == "completed"
    large = submitted(api, {"tasks": TASKS})
    opened = submitted(api, {"tasks": [*TASKS[:3], HEAVY], "status": "open"})
    api.post(f"/jobs/{opened}/tasks", json={"tasks": TASKS[3:6]}).raise_for_status()
    for action in ("pause", "resume", "close"):
        api.post(f"/jobs/{opened}/{action}").raise_for_status()
    scheduled = {"type": "scheduled", "schedule": {"rate": {"every": 1, "unit": "day"}}}
    api.delete(f"/jobs/{submitted(api, {'tasks': TASKS[:1], **scheduled})}").raise_for_status()
    runs = [ended(api, job_id)["run_id"] for job_id in (called, large, opened)]
    path = f"/jobs/{large}/runs/{runs[1]}/exports"
    export = api.post(path, json={}).raise_for_status().json()["export_id"]
    until(lambda: api.get(f"{path}/{export}").json()["status"] == "completed")
    api.get(f"/jobs/{large}/results").raise_for_status()
    api.get("/jobs").raise_for_status()
    api.post(f"/jobs/{called}/rerun").raise_for_status()
    ended(api, called)
    stopped = submitted(api, {"tasks": TASKS[:3], "status": "open"})
    api.post(f"/jobs/{stopped}/stop").raise_for_status()
    for job_id in (called, large, opened):
        api.delete(f"/jobs/{job_id}").raise_for_status()


def submitted(api: httpx.Client, body: Mapping[str, object]) -> str:
    answer = api.post("/jobs", json=body, headers={"Idempotency-Key": a_name()})
    return str(answer.raise_for_status().json()["job_id"])
