"""How coordination on Redis is opened, and when it is refused."""

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from conveyor.adapters.redis.coordination import RedisCoordination
from conveyor.app.engines import check_engines, open_engines
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.settings import Settings


async def test_a_service_opens_while_its_server_is_down(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), coordination="redis://:S3CRET@127.0.0.1:1/0")
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        assert isinstance(engines.coordination, RedisCoordination)
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 does not answer") as away:
            await engines.coordination.held("one")
        assert "S3CRET" not in str(away.value)


def test_a_wrong_address_is_refused_without_its_secrets() -> None:
    with pytest.raises(RefusedToStart, match=r"redis://\[user:password@\]host") as refused:
        check_engines(Settings(coordination="redis://:S3CRET@host/0?prefx=a"))
    assert "S3CRET" not in str(refused.value)


async def test_without_the_driver_the_refusal_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "conveyor.adapters.redis.coordination", None)
    settings = Settings(data=str(tmp_path), coordination="redis://host")
    async with AsyncExitStack() as stack:
        with pytest.raises(RefusedToStart, match=r"pip install 'conveyor-batch\[redis\]'"):
            await open_engines(settings, stack)
