"""What concerns the transport over aiohttp alone; the other tests here run over both."""

import aiohttp
import pytest

from conveyor.adapters.http.client.aiohttp_transport import AiohttpTransport
from conveyor.adapters.http.client.pool import ConnectionPool
from conveyor.adapters.http.client.resolver import CheckedResolver
from conveyor.adapters.system.clock import SystemClock
from conveyor.app.engines import open_gateway
from conveyor.errors import RefusedToStart
from conveyor.ports.gateway import PageRequest
from conveyor.settings import DIRECT
from conveyor.settings_loader import load_settings
from tests.gateway.site import Names
from tests.gateway.stage import OK, Line, playing
from tests.harness.gateways import KEY, Spools, opened


@pytest.mark.parametrize("gateway", [DIRECT, "https://gateway.example/"])
def test_a_setting_chooses_it(gateway: str) -> None:
    def chosen(**environ: str) -> object:
        settings = load_settings({"gateway": gateway}, environ=environ)
        return open_gateway(settings, SystemClock())._opens  # type: ignore[attr-defined]

    assert chosen() is ConnectionPool
    assert chosen(CONVEYOR_HTTP_CLIENT="aiohttp") is AiohttpTransport
    with pytest.raises(RefusedToStart, match="http_client must be one of conveyor, aiohttp"):
        chosen(CONVEYOR_HTTP_CLIENT="httpx")


async def test_a_version_that_cannot_be_kept_from_repeating_requests_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "conveyor.adapters.http.client.aiohttp_transport.PRIVATE", ("_gone", "_factory")
    )
    with pytest.raises(RefusedToStart, match=f"_gone, got {aiohttp.__version__}"):
        _transport()


async def test_a_switch_of_aiohttp_is_off() -> None:
    transport = _transport()
    assert transport._session._retry_connection is False
    assert not transport._session.trust_env
    await transport.close()


@pytest.mark.parametrize(
    ("method", "body", "headers"),
    [
        ("GET", None, {}),
        ("GET", None, {"x-lower": "ü", "Accept": "a/b", "User-Agent": "", "Cookie": "a=b"}),
        ("POST", '{"a":1}', {}),
        ("POST", '""', {"Content-Type": "text/odd"}),
        ("POST", None, {}),
    ],
)
async def test_both_send_the_same_bytes(
    method: str, body: str | None, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []

    async def play(line: Line) -> None:
        head = await line.request()
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        heard.append(head + await line.reader.readexactly(length))
        await line.say(OK)

    request = PageRequest(
        url="https://a.example/%C3%BC?q=%2F",
        gateway_key=KEY,
        method=method,
        body=body,
        headers=headers,
        params={"css_extractor": '{"a":"b c"}'},
    )
    async with playing(play) as stage:
        for factory in (ConnectionPool, AiohttpTransport):
            monkeypatch.setattr("tests.harness.gateways.transport", factory)
            async with opened(stage.url) as gateway:
                await gateway.fetch(request, Spools())
    own, other = heard
    assert other == own


def _transport() -> AiohttpTransport:
    return AiohttpTransport(CheckedResolver(None, Names()), connections=1, wanted=frozenset())
