"""Calls to DynamoDB: how much CPU does a request take, and how much of it is the signature?

A process with canned responses stands in for DynamoDB, so nothing here tells of latency. aiobotocore
pins another botocore than ours: it is measured in an environment of its own, where there is one
(`python -m venv .venv-peers/aiobotocore`, then its `pip install aiobotocore uvloop`).
"""

# ruff: noqa: PLC0415 - what a client needs is not in the environments of the others

import asyncio
import json
import logging
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

REQUESTS = int(os.environ.get("BENCH_REQUESTS", "1500"))
AT_ONCE, ROUNDS, WARM_UP = 32, 5, 200
PEER = Path(__file__).parent.parent / ".venv-peers" / "aiobotocore" / "bin" / "python"
REGION, ACCESS, SECRET = "eu-west-1", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG"
# Requests for each task: an insert of 25, a claim of 10, a settle group of 10 with its counter, and
# two reads of the completion check for each group.
PER_TASK = {"insert 25": 1 / 25, "claim 10": 1 / 10, "settle 10+1": 1 / 10, "get": 2 / 10}
OURS, UNSIGNED, AIOBOTOCORE = "our client", "our client, unsigned", "aiobotocore"
BOTOCORE = "our client, signatures by botocore"
GOAL = 300.0  # microseconds of a task, all its calls to DynamoDB

Call = Callable[[], Awaitable[object]]


def row(n: int) -> dict[str, dict[str, Any]]:
    """A task as it would be stored, about 450 bytes."""
    return {
        "pk": {"S": f"Job#01J0000000000000000000000A#TS{n % 8}"},
        "sk": {"S": f"T#01J0000000000000000000000B#{n:012d}-8f14e45fceea167a"},
        "st": {"S": "processing"},
        "cn": {"N": str(n % 3)},
        "tk": {"S": "01J0000000000000000000000C:17"},
        "due": {"N": "1790000000123"},
        "u": {"S": f"https://shop.example/products/{n}?page=1&sort=price"},
        "hi": {"L": [{"M": {"c": {"S": "ok"}, "s": {"N": "200"}, "d": {"N": "1234"}}}]},
        "sp": {"M": {"js": {"BOOL": True}, "proxy": {"S": "premium"}}},
    }


KEY = {name: row(1)[name] for name in ("pk", "sk")}
CONDITION = 'UPDATE "conveyor" SET st=? SET cn=? SET tk=? SET due=? WHERE pk=? AND sk=? AND cn=?'
STATEMENT = {
    "Statement": f"{CONDITION} RETURNING ALL NEW *",
    "Parameters": [row(1)[name] for name in ("st", "cn", "tk", "due", "pk", "sk", "cn")],
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}
NAMES = ", ".join(f"'{name}': ?" for name in row(1))
INSERT = {
    "Statement": f'INSERT INTO "conveyor" VALUE {{{NAMES}}}',
    "Parameters": list(row(1).values()),
}
UPDATE = {
    "TableName": "conveyor",
    "Key": KEY,
    "UpdateExpression": "SET st=:s, cn=:c, tk=:t, due=:d",
    "ConditionExpression": "attribute_exists(pk) AND cn=:w",
    "ExpressionAttributeValues": {
        ":s": {"S": "pending"},
        ":c": {"N": "2"},
        ":t": {"S": "01J0000000000000000000000C:18"},
        ":d": {"N": "1790000000999"},
        ":w": {"N": "1"},
    },
}
QUERY = {
    "TableName": "conveyor",
    "KeyConditionExpression": "pk=:p AND sk BETWEEN :a AND :b",
    "ExpressionAttributeValues": {":p": KEY["pk"], ":a": KEY["sk"], ":b": {"S": "T#~"}},
    "Limit": 100,
}
CALLS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "update": ("UpdateItem", UPDATE, {}),
    "get": ("GetItem", {"TableName": "conveyor", "Key": KEY}, {"Item": row(1)}),
    "insert 25": (
        "BatchExecuteStatement",
        {"Statements": [INSERT] * 25},
        {"Responses": [{"TableName": "conveyor"}] * 25},
    ),
    "claim 10": (
        "BatchExecuteStatement",
        {"Statements": [STATEMENT] * 10},
        {"Responses": [{"TableName": "conveyor", "Item": row(n)} for n in range(10)]},
    ),
    "settle 10+1": (
        "TransactWriteItems",
        {
            "TransactItems": [{"Update": UPDATE}] * 11,
            "ClientRequestToken": "0123456789abcdef0123456789abcdef",
        },
        {},
    ),
    "query 100": ("Query", QUERY, {"Items": [row(n) for n in range(100)], "Count": 100}),
}


def main() -> None:
    answers = {name: json.dumps(answer).encode() for name, (_, _, answer) in CALLS.items()}
    told: dict[str, dict[str, float]] = {}
    parent, child = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(child, answers))
    server.start()
    try:
        url = f"http://127.0.0.1:{parent.recv()}"
        for client in (OURS, BOTOCORE, UNSIGNED):
            told[client] = _measured(sys.executable, client, url)
        if PEER.exists():
            told[AIOBOTOCORE] = _measured(str(PEER), AIOBOTOCORE, url)
    finally:
        server.terminate()
        server.join()
    _report(told)


def _report(told: Mapping[str, Mapping[str, float]]) -> None:
    print(f"CPU of the client for a request, microseconds, median of {ROUNDS} rounds")
    for client, figures in told.items():
        shown = ", ".join(f"{name} {figure:.0f}" for name, figure in figures.items())
        print(f"  {client}: {shown}")
        task = sum(figures[name] * share for name, share in PER_TASK.items())
        print(f"    a task: {task:.0f} of {GOAL:.0f} (goal), {sum(PER_TASK.values()):.2f} requests")
    for client in (OURS, BOTOCORE):
        more = {name: told[client][name] - told[UNSIGNED][name] for name in PER_TASK}
        signing = sum(more[name] * share for name, share in PER_TASK.items())
        print(f"  {client}: signatures {signing:.0f} of a task, {signing / GOAL:.0%} of its goal")


def _measured(python: str, client: str, url: str) -> dict[str, float]:
    root = Path(__file__).parent.parent
    places = [str(root)] if client == AIOBOTOCORE else [str(root), str(root / "src")]
    done = subprocess.run(
        [python, "-m", "benchmarks.aws_client", client, url],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


async def _rounds(calls: Mapping[str, Call]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        await _made(call, WARM_UP)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            started = time.process_time()
            await _made(call, REQUESTS)
            taken[name].append((time.process_time() - started) / REQUESTS * 1e6)
    return {name: statistics.median(figures) for name, figures in taken.items()}


async def _made(call: Call, count: int) -> None:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await call()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(worker())


# Clients.


async def _ours(url: str, client_name: str) -> dict[str, float]:
    import structlog

    from conveyor.adapters.aws.client import DYNAMODB, AwsClient, open_client
    from conveyor.adapters.aws.credentials import RefreshedKeys
    from conveyor.adapters.shared.aws_credentials import Keys
    from conveyor.adapters.system.clock import SystemClock

    # As in the program: without it every response would be printed.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    clock = SystemClock()
    keys = RefreshedKeys(lambda: Keys(ACCESS, SECRET), clock)

    def made(client: AwsClient, name: str) -> Call:
        operation, request, _ = CALLS[name]
        return lambda: client.call(operation, request, repeatable=True)

    async with open_client(DYNAMODB, endpoint=url, region=REGION, keys=keys, clock=clock) as client:
        if client_name != OURS:
            signer = _Unsigned() if client_name == UNSIGNED else _BotocoreSigner(url)
            client._signer = signer  # type: ignore[assignment]  # noqa: SLF001
        return await _rounds({name: made(client, name) for name in CALLS})


class _Unsigned:
    """The same headers, not computed."""

    def headers(self, target: str, body: bytes, keys: object, now: object) -> dict[str, str]:
        del body, keys, now
        return {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": target,
            "X-Amz-Date": "20260302T120000Z",
            "Authorization": f"AWS4-HMAC-SHA256 Credential=x, Signature={'0' * 64}",
        }


class _BotocoreSigner:
    def __init__(self, url: str) -> None:
        from botocore.auth import SigV4Auth
        from botocore.credentials import Credentials

        self._url = url
        self._auth = SigV4Auth(Credentials(ACCESS, SECRET), "dynamodb", REGION)

    def headers(self, target: str, body: bytes, keys: object, now: object) -> dict[str, str]:
        from botocore.awsrequest import AWSRequest

        del keys, now
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": target}
        request = AWSRequest("POST", self._url, data=body, headers=headers)
        self._auth.add_auth(request)
        return dict(request.headers.items())


async def _aiobotocore(url: str) -> dict[str, float]:
    from aiobotocore.session import get_session  # type: ignore[import-not-found]
    from botocore.config import Config

    names = {
        "UpdateItem": "update_item",
        "GetItem": "get_item",
        "BatchExecuteStatement": "batch_execute_statement",
        "TransactWriteItems": "transact_write_items",
        "Query": "query",
    }
    async with get_session().create_client(
        "dynamodb",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        config=Config(max_pool_connections=AT_ONCE),
    ) as client:

        def made(name: str) -> Call:
            operation, request, _ = CALLS[name]
            call = getattr(client, names[operation])
            return lambda: call(**request)

        return await _rounds({name: made(name) for name in CALLS})


# The server.


def _serve(parent: Connection, answers: Mapping[str, bytes]) -> None:
    asyncio.run(_serving(parent, answers))


async def _serving(parent: Connection, answers: Mapping[str, bytes]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Canned(answers), "127.0.0.1", 0)
    parent.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Canned(asyncio.Protocol):
    """Answers each request at once, by what it is, as far as its size tells."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self._read = b""
        self._answers = {
            name: b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
            b"x-amzn-RequestId: 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEFG\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
            for name, content in answers.items()
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            start = head.index(b"content-length:") + 15
            length = int(head[start : (head + b"\r\n").index(b"\r\n", start)])
            if len(self._read) < end + 4 + length:
                return
            body = self._read[end + 4 : end + 4 + length]
            self._read = self._read[end + 4 + length :]
            self._transport.write(self._answers[_kind(head, body)])


def _kind(head: bytes, body: bytes) -> str:
    if b"batchexecute" in head:
        return "insert 25" if b"INSERT" in body[:200] else "claim 10"
    for operation, name in (
        (b"updateitem", "update"),
        (b"getitem", "get"),
        (b"transactwrite", "settle 10+1"),
    ):
        if operation in head:
            return name
    return "query 100"


def _run(client: str, url: str) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if client == AIOBOTOCORE:
            figures = runner.run(_aiobotocore(url))
        else:
            figures = runner.run(_ours(url, client))
    print(json.dumps(figures))


if __name__ == "__main__":
    match sys.argv[1:]:
        case [client, url]:
            _run(client, url)
        case _:
            main()
