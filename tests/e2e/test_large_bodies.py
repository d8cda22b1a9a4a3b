"""Bodies of fifty megabytes that cost much to decode: nobody else waits, and memory is bounded."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.e2e.polling import waits
from tests.harness.programs import Program, service
from tests.seed import sampled

MB = 1024 * 1024
SIZE, ROOM, AT_ONCE = 50 * MB, 64 * MB, 4
LONGEST_WAIT = 0.5  # seconds, in which the service was given the processor
ATTEMPTS = 4  # a busy machine delays anything now and then, a decoder that holds on does it always
MOST_MEMORY = 300 + 4 * ROOM / MB
URL = b'"url":"https://ok.example/"'


def filled(head: bytes, one: bytes, last: bytes) -> Callable[[], bytes]:
    """Makes a body of `one` after `one`, when it is needed: all at once they take 700 MB."""
    return lambda: head + one * ((SIZE - len(head) - len(last)) // len(one)) + last


def tasks_of(fields: bytes) -> Callable[[], bytes]:
    """A body of whole tasks of about 24 KB each, good ones."""
    return filled(b'{"status":"open","tasks":[', b"{%b,%b}," % (URL, fields), b"{%b}]}" % URL)


WIDE = json.dumps({f"k{n}": "x" * 1_000 + "😀" for n in range(20)}, ensure_ascii=False)
HOSTILE = {
    "members": (filled(b"{", b'"a":"b",', b'"a":1}'), {400}),
    "members of a known name": (filled(b"{", b'"name":1,', b'"a":1}'), {400}),
    "members of metadata": (filled(b'{"metadata":{', b'"a":"b",', b'"a":"b"}}'), {400}),
    "parameters": (filled(b'{"zenrows_params":{', b'"a":[],', b'"a":"b"}}'), {400}),
    "members of a task": (filled(b'{"tasks":[{', b'"url":"",', b'"a":"b"}]}'), {400}),
    "a task's metadata": (filled(b'{"tasks":[{"metadata":{', b'"a":"b",', b'"a":"b"}}]}'), {400}),
    "numbers for tasks": (filled(b'{"tasks":[', b"1,", b"1]}"), {400}),
    "empty tasks": (filled(b'{"tasks":[', b"{},", b"{}]}"), {400}),
    "large tasks of tiny members": (
        filled(b'{"tasks":[', b'{"metadata":{%b"a":"b"}},' % (b'"a":"b",' * 100_000), b"1]}"),
        {400},
    ),
    "depth": (filled(b'{"tasks":[', b"[", b"]"), {400}),
    "large members": (
        filled(b"{", b'"x":[%b[]],' % (b"[[]]," * 200_000), b'"a":1}'),
        {400},
    ),
    "a name": (filled(b'{"', b"abcdefgh", b'":1}'), {400}),
    "task bodies of tiny members": (
        tasks_of(b'"method":"POST","body":{%b"a":"b"}' % (b'"a":"b",' * 2_000)),
        {201},
    ),
    "metadata of wide characters": (tasks_of(b'"metadata":%b' % WIDE.encode()), {201}),
}


@pytest.fixture(scope="module")
def running(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    environ = {"CONVEYOR_BODIES_IN_FLIGHT": str(ROOM), "CONVEYOR_DURABILITY": "process"}
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sampled(HOSTILE, 1, of="large bodies"))
def test_nobody_waits_while_large_bodies_are_decoded(running: Program, name: str) -> None:
    make, expected = HOSTILE[name]
    content = make()
    for _ in range(ATTEMPTS):
        with waits(running) as slowest, ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(lambda _: submitted(running, content), range(AT_ONCE)))
        statuses = {status for status, _ in answers}
        assert statuses <= expected | {503}, answers
        assert running.peak_memory < MOST_MEMORY
        # Where the machine is busy, each of the bodies may wait too long for the others' memory.
        if statuses & expected and max(slowest) < LONGEST_WAIT:
            return
    raise AssertionError(
        f"/healthz took {max(slowest):.2f} s in the last of {ATTEMPTS} attempts: {answers}"
    )


def submitted(program: Program, content: bytes) -> tuple[int, bytes]:
    address = urlsplit(program.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=200)
    try:
        connection.request("POST", "/v1/jobs", content, {"X-API-Key": "k"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
