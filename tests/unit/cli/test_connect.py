"""Which service and which key: what wins over what, and what is refused without telling a key."""

from pathlib import Path

import pytest

from conveyor.cli.connect import DEFAULT_URL, Endpoint, connect
from conveyor.errors import RefusedToStart
from conveyor.settings import Settings
from conveyor.settings_loader import load_settings

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_without_a_url_it_is_the_local_service() -> None:
    assert _of(connect(None, "mine", None, environ={})) == (DEFAULT_URL, "mine")


def test_a_file_yields_to_variables_and_variables_to_flags(home: Path) -> None:
    kept = home / ".config" / "conveyor" / "cli.toml"
    kept.parent.mkdir(parents=True)
    kept.write_text('url = "http://of-file/v1"\nkey = "of-file"\n')
    environ = {"CONVEYOR_URL": "http://of-variable/v1/", "CONVEYOR_KEY": "of-variable"}
    empty = {"CONVEYOR_URL": "", "CONVEYOR_KEY": ""}
    assert _of(connect(None, None, None, environ=empty)) == ("http://of-file/v1", "of-file")
    assert _of(connect(None, None, None, environ=environ)) == (
        "http://of-variable/v1",
        "of-variable",
    )
    assert _of(connect("http://of-flag", "of-flag", None, environ=environ)) == (
        "http://of-flag",
        "of-flag",
    )


def test_a_named_file_is_the_only_one_read(home: Path) -> None:
    other = home / "other.toml"
    other.write_text('key = "of-other"\n')
    assert _of(connect(None, None, str(other), environ={})) == (DEFAULT_URL, "of-other")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "no such file"),
        ('ky = "s3cret"', "keys must be key or url, got 'ky'"),
        ("key = 1", "'key' must be a string"),
        ('key = "s3cret', "must be TOML"),
        ("key = s3cret", "must be TOML"),
    ],
)
def test_a_file_that_will_not_do_is_refused(home: Path, content: str | None, word: str) -> None:
    file = home / "mine.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RefusedToStart, match=word) as refusal:
        connect(None, None, str(file), environ={})
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "ftp://x/v1", "http://", "http://x/v1?apikey=s3cret", "http://u:s3cret@x/",
     "http://x:99999/v1", "http://x y/v1"],
)  # fmt: skip
def test_a_base_url_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(RefusedToStart, match="base URL must be like") as refusal:
        connect(url, None, None, environ={})
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("url", ["http://[::1]:8080/v1", "https://a.example", "http://a:1/b/v1/"])
def test_a_base_url_may_have_any_host_port_and_path(url: str) -> None:
    assert connect(url, "mine", None, environ={}).url == url.rstrip("/")


@pytest.mark.parametrize("key", ["s3cret\n", "s3cret\r\nX: y", "s3cret\u2026", "s3cret" * 100])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(RefusedToStart, match="printable") as refusal:
        connect(None, key, None, environ={})
    assert SECRET not in str(refusal.value)


def test_the_variables_of_the_commands_are_no_settings_of_the_service() -> None:
    environ = {"CONVEYOR_URL": "http://x/v1", "CONVEYOR_KEY": "k"}
    assert load_settings({}, environ=environ) == Settings()


def _of(service: Endpoint) -> tuple[str, str | None]:
    return service.url, service.key
