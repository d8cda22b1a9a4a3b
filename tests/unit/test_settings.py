"""Settings: where they come from, which source wins, and what is refused with which words."""

import ast
import re
import traceback
from datetime import timedelta
from pathlib import Path
from typing import cast, get_args, get_origin, get_type_hints

import pytest

from conveyor import settings_loader
from conveyor.app.engines import GATEWAYS
from conveyor.domain.params import HONOURED, HONOURED_BY_DIRECT, KNOWN
from conveyor.errors import RefusedToStart
from conveyor.settings import DIRECT, Settings, masked, shown, without_secrets
from conveyor.settings_loader import MAY_BE_ZERO, load_settings


def test_nothing_given_is_the_defaults() -> None:
    assert load_settings({}, environ={}) == Settings()


def test_a_service_is_local_unless_it_is_told_otherwise() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert Settings(host=host).is_local
    for host in ("0.0.0.0", "::", "", "192.0.2.1", "example.com"):
        assert not Settings(host=host).is_local


def test_a_file_yields_to_variables_and_variables_to_flags(tmp_path: Path) -> None:
    file = _file(tmp_path, 'host = "of-file"\nport = 1\ndata = "of-file"\n')
    environ = {"CONVEYOR_PORT": "2", "CONVEYOR_DATA": "of-variable"}
    settings = load_settings({"data": "of-flag"}, file=file, environ=environ)
    assert (settings.host, settings.port, settings.data) == ("of-file", 2, "of-flag")


def test_a_flag_that_was_not_given_overrides_nothing() -> None:
    settings = load_settings({"port": None}, environ={"CONVEYOR_PORT": "2"})
    assert settings.port == 2


def test_the_file_can_be_named_by_a_variable_and_better_by_a_flag(tmp_path: Path) -> None:
    by_variable = {"CONVEYOR_CONFIG": _file(tmp_path, "port = 1\n", "one.toml")}
    by_flag = _file(tmp_path, "port = 2\n", "two.toml")
    assert load_settings({}, environ=by_variable).port == 1
    assert load_settings({}, file=by_flag, environ=by_variable).port == 2


def test_variables_of_others_are_left_alone() -> None:
    environ = {"CONVEYOR_ROLE": "dev", "PORT": "1", "CONVEYORS_PORT": "2", "conveyor_port": "3"}
    assert load_settings({}, environ=environ) == Settings()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("PROT", "port"), ("APIKEYS", "api_keys"), ("RESULT_URL_LIVE", "result_url_life")],
)
def test_an_unknown_setting_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(RefusedToStart, match=f"did you mean '{nearest}'"):
        load_settings({}, environ={f"CONVEYOR_{name}": "1"})


def test_an_unknown_setting_unlike_any_other_gets_no_hint(tmp_path: Path) -> None:
    with pytest.raises(RefusedToStart, match=r"'zzz' is not a setting$"):
        load_settings({}, file=_file(tmp_path, "zzz = 1\n"), environ={})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("30 s", 30),
        (" 1.5m ", 90),
        ("2h", 7200),
        ("14d", 1_209_600),
        ("45", 45),
        ("0", 0),
    ],
)
def test_a_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    settings = load_settings({}, environ={"CONVEYOR_GRACE": text})
    assert settings.grace == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2_592_000, "30d"), (5_400, "90m"), (7_200, "2h"), (20, "20s"), (0.25, "0.25s"), (0, "0s")],
)
def test_a_duration_is_shown_as_a_setting_takes_it(seconds: float, text: str) -> None:
    assert masked("body_life", timedelta(seconds=seconds)) == text


def test_a_duration_in_a_file_may_be_a_plain_number_of_seconds(tmp_path: Path) -> None:
    file = _file(tmp_path, 'grace = 5\nresult_url_life = "1h"\nsweep_every = 0.5\n')
    settings = load_settings({}, file=file, environ={})
    assert settings.grace == timedelta(seconds=5)
    assert settings.result_url_life == timedelta(hours=1)
    assert settings.sweep_every == timedelta(seconds=0.5)


@pytest.mark.parametrize("text", ["soon", "", "-1s", "1 week", "1e3", "s", "1s1s", "٣s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RefusedToStart, match="grace must be a duration such as 30s"):
        load_settings({}, environ={"CONVEYOR_GRACE": text})


@pytest.mark.parametrize("text", ["1e9d", "99999999999999d"])
def test_a_duration_beyond_all_bounds_is_refused(text: str) -> None:
    with pytest.raises(RefusedToStart, match="grace"):
        load_settings({}, environ={"CONVEYOR_GRACE": text})


def test_keys_are_a_list_in_a_file_and_a_text_in_a_variable(tmp_path: Path) -> None:
    environ = {"CONVEYOR_API_KEYS": " one, two\nthree ,"}
    assert load_settings({}, environ=environ).api_keys == ("one", "two", "three")
    file = _file(tmp_path, 'api_keys = ["one", "two"]\n')
    assert load_settings({}, file=file, environ={}).api_keys == ("one", "two")
    assert load_settings({}, file=file, environ={"CONVEYOR_API_KEYS": ""}).api_keys == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("PORT", "80.5"),
        ("CONCURRENCY", "0"),
        ("LARGEST_BODY", "0"),
        ("LARGEST_BODY", "50 MB"),
        ("INLINE_TASKS", "0"),
        ("INLINE_BYTES", "-1"),
        ("SYNC_TASKS", "0"),
        ("OPEN_JOB_TASKS", "0"),
        ("GATEWAY", "nonsense"),
        ("GATEWAY", "ftp://example.com"),
        ("GATEWAY", "https://"),
        ("GATEWAY", "https://example.com:99999/v1"),
        ("GATEWAY", "https://:443/v1"),
        ("GATEWAY", "https://[::1/v1"),
        ("GATEWAY", f"https://{'x' * 64}.example/v1"),
        ("GATEWAY", "direct"),
        ("GATEWAY", "direct:https://example.com"),
        ("GATEWAY", "direct://"),
        ("DIRECT_USER_AGENT", ""),
        ("DIRECT_USER_AGENT", "7/1.0"),
        ("DIRECT_USER_AGENT", "Bot\r\nX: y"),
        ("DIRECT_ROBOTS", "perhaps"),
        ("DIRECT_PORTS", ""),
        ("DIRECT_PORTS", "80, http"),
        ("DIRECT_PORTS", "0"),
        ("DIRECT_PORTS", "65536"),
        ("DIRECT_ALLOW_PRIVATE", "10.0.0.0/33"),
        ("DIRECT_ALLOW_PRIVATE", "true"),
        ("PUBLIC_URL", "example.com"),
        ("PUBLIC_URL", ""),
        ("DURABILITY", "hope"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_a_value_that_will_not_do_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(RefusedToStart, match=name.lower()):
        load_settings({}, environ={f"CONVEYOR_{name}": value})


def test_a_lease_lasts_for_more_than_two_renewals() -> None:
    with pytest.raises(
        RefusedToStart, match=r"renewal must be less than half of lease \(20s\), got 10s"
    ):
        load_settings({}, environ={"CONVEYOR_LEASE": "20s", "CONVEYOR_RENEWAL": "10s"})
    load_settings({}, environ={"CONVEYOR_LEASE": "21s", "CONVEYOR_RENEWAL": "10s"})


# For each kind of setting a value that is none of it, as a variable or in a file.
OF_WRONG_TYPE: dict[str, list[object]] = {
    "int": ["much", "-1", "1.5", True, [1]],
    "float": ["much", "-1", [1]],
    "bool": ["perhaps", 7, []],
    "timedelta": ["soon", "-1s", "99999999d"],
    "str": [["one"], {"a": 1}],
    "tuple": [["a", {"b": 1}], {"a": 1}, 7],
}
# Settings of the right type that no service can work with, or not together.
CROSS_CHECKS: list[dict[str, object]] = [
    {"port": "65536"},
    {"concurrency": "0"},
    {"task_bytes": "49805"},
    {"task_bytes": str(2**21)},
    {"list_rows": str(2**62)},
    {"lease": "20s", "renewal": "10s"},
    {"direct_delay": "11s", "gateway_deadline": "40s"},
    {"gateway": "https://user:canary@"},
    {"public_url": "example.com"},
    {"auth": "open"},
    {"api_keys": "canary", "auth": "dev"},
    {"api_keys": "canary", "auth": "keys"},
    {"gateway_key": "canary", "auth": "forward"},
    {"gateway_key": "canary with a space", "auth": "keys"},
    {"encryption": "vault:x"},
    {"engines": "cloud"},
    {"engines": "aws", "bodies": "s3://bucket", "blobs": "s3://bucket"},
    {"engines": "postgres"},
    {"loops": ""},
    {"loops": "dispatch,sweep"},
    {"encryption": "file:relative"},
    {"encryption_key": "canary"},
    {"encryption_key": "canary+canary+canary="},
    {"direct_user_agent": "7/1.0"},
    {"direct_ports": ""},
    {"webhook_ports": "0"},
    {"direct_allow_private": "10.0.0.0/33"},
    {"webhook_allow_private": "true"},
    *(
        cast("dict[str, object]", {name: "0"})
        for name, kind in get_type_hints(Settings).items()
        if kind is timedelta
    ),
    *(
        cast("dict[str, object]", {name: "nonsense"})
        for name in ("durability", "log_level", "log_format", "step_functions")
    ),
]
REFUSAL = re.compile(r"settings: (\w+) must .+, got (.+)", re.DOTALL)


def _kind(name: str) -> str:
    kind = get_type_hints(Settings)[name]
    is_optional = type(None) in get_args(kind)
    base = get_args(kind)[0] if is_optional else kind
    return str(getattr(get_origin(base) or base, "__name__", base))


REFUSALS: list[dict[str, object]] = [
    *({name: bad} for name in Settings.__struct_fields__ for bad in OF_WRONG_TYPE[_kind(name)]),
    *CROSS_CHECKS,
]


@pytest.mark.parametrize("given", REFUSALS, ids=str)
def test_every_refusal_says_what_must_hold_and_what_was_given(given: dict[str, object]) -> None:
    if set(given) <= MAY_BE_ZERO and set(given.values()) == {"0"}:
        load_settings(given, environ={})
        return
    with pytest.raises(RefusedToStart) as refused:
        load_settings(given, environ={})
    text = str(refused.value)
    found = REFUSAL.fullmatch(text)
    assert found, text
    assert found[1] in given, text
    assert "canary" not in text
    value = given[found[1]]
    if isinstance(value, str) and "canary" not in value and "0s" not in found[2]:
        assert all(part in found[2] for part in re.split(r"[,\s]+", value)), text


def test_no_check_of_the_loader_escapes_the_test_of_its_words() -> None:
    """Every refusal is worded by `_refused`, and every call of it is reached by some case above."""
    tree = ast.parse(Path(settings_loader.__file__).read_text())
    worded = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "RefusedToStart"
    }
    # A file that cannot be read, and a name that is no setting, have no value to show.
    assert worded == {"_refused", "_from_file", "_check_names"}
    raised = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and ast.unparse(node).startswith("raise _")
    }
    reached = set[int]()
    for given in REFUSALS:
        try:
            load_settings(given, environ={})
        except RefusedToStart as refused:
            reached |= {line for _, line in traceback.walk_tb(refused.__traceback__)}
    assert raised <= reached


def test_a_refusal_never_shows_a_secret_nor_a_long_text() -> None:
    for name in ("api_keys", "encryption_key", "gateway_key"):
        with pytest.raises(RefusedToStart, match=r"got \*\*\*") as refused:
            load_settings({name: [{"canary": 1}]}, environ={})
        assert "canary" not in str(refused.value)
    with pytest.raises(RefusedToStart) as refused:
        load_settings({"log_level": "x" * 10_000}, environ={})
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "address",
    [
        "redis://user:canary@host:6379/0",
        "redis://:can/canary@host",
        "redis://:canary@canary@host",
        "redis:user:canary@host",
        "s3://bucket?key=canary",
    ],
)
def test_no_part_of_a_password_in_an_address_is_shown(address: str) -> None:
    told = without_secrets(address)
    assert "canary" not in told
    assert told.startswith(address.partition(":")[0])


@pytest.mark.parametrize("text", ["memory:", "s3://bucket/prefix", "https://a.example/v1/", "text"])
def test_an_address_without_a_secret_is_shown_whole(text: str) -> None:
    assert without_secrets(text) == text


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    broken, binary = _file(tmp_path, "port = ", "broken.toml"), tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (missing, broken, str(binary), str(tmp_path)):
        with pytest.raises(RefusedToStart, match=f"settings file {path}"):
            load_settings({}, file=path, environ={})


def test_a_table_in_a_file_is_no_setting(tmp_path: Path) -> None:
    with pytest.raises(RefusedToStart, match="'server' is not a setting"):
        load_settings({}, file=_file(tmp_path, "[server]\nport = 1\n"), environ={})


def test_the_direct_gateway_is_chosen_by_its_name() -> None:
    environ = {
        "CONVEYOR_GATEWAY": "direct:",
        "CONVEYOR_DIRECT_USER_AGENT": "MyBot/1.0 (+https://me.example/bot)",
        "CONVEYOR_DIRECT_ROBOTS": "false",
        "CONVEYOR_DIRECT_DELAY": "0",
        "CONVEYOR_DIRECT_PORTS": "80, 443 8080",
        "CONVEYOR_DIRECT_ALLOW_PRIVATE": "127.0.0.1, 10.0.0.0/8",
    }
    settings = load_settings({}, environ=environ)
    assert settings.gateway == DIRECT
    assert settings.direct_robots is False
    assert settings.direct_delay == timedelta()
    assert settings.direct_ports == (80, 443, 8080)
    assert settings.direct_allow_private == ("127.0.0.1", "10.0.0.0/8")
    assert shown(settings)["direct_allow_private"] == "127.0.0.1, 10.0.0.0/8"


def test_each_gateway_states_which_parameters_it_honours() -> None:
    assert HONOURED.keys() == GATEWAYS.keys()
    assert Settings().limits.honoured == KNOWN
    assert Settings(gateway="http://gateway.example/").limits.honoured == KNOWN
    assert Settings(gateway=DIRECT).limits.honoured == HONOURED_BY_DIRECT
    with pytest.raises(KeyError):  # a gateway that is missing there accepts nothing by default
        _ = Settings(gateway="other:").limits


def test_a_delay_that_no_page_could_wait_for_is_refused() -> None:
    load_settings({"direct_delay": "10s", "gateway_deadline": "40s"}, environ={})
    with pytest.raises(RefusedToStart, match="direct_delay must be at most a quarter"):
        load_settings({"direct_delay": "11s", "gateway_deadline": "40s"}, environ={})


def test_neither_a_url_nor_direct_is_told_what_a_gateway_may_be() -> None:
    with pytest.raises(
        RefusedToStart, match="gateway must be an http or https URL, or direct:, got 'directly'"
    ):
        load_settings({"gateway": "directly"}, environ={})


def test_limits_follow_the_settings() -> None:
    environ = {"CONVEYOR_INLINE_TASKS": "7", "CONVEYOR_SYNC_TASKS": "5"}
    limits = load_settings({}, environ=environ).limits
    assert (limits.inline_tasks, limits.sync_tasks) == (7, 5)


def _file(folder: Path, text: str, name: str = "conveyor.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_no_setting_refuses_what_the_contract_allows() -> None:
    assert load_settings({"task_bytes": 49_806}, environ={}).limits.task_bytes == 49_806
    with pytest.raises(RefusedToStart, match=r"task_bytes must be at least 49806.*got 49805"):
        load_settings({"task_bytes": 49_805}, environ={})


def test_one_setting_chooses_the_engines_of_all_kinds_and_each_kind_wins_over_it() -> None:
    given = {"bodies": "s3://pages", "blobs": "s3://lists", "coordination": "redis://host"}
    aws = load_settings({"engines": "aws", "control_queue": "sqs://mine", **given}, environ={})
    assert (aws.metadata, aws.tasks) == ("dynamodb://conveyor", "dynamodb://conveyor")
    assert (aws.control_queue, aws.queues) == ("sqs://mine", "sqs://conveyor")
    assert (aws.bodies, aws.blobs, aws.coordination) == tuple(given.values())
    assert (aws.lease, aws.permit_lease) == (timedelta(seconds=90), timedelta(seconds=30))
    assert load_settings(
        {"engines": "aws", "lease": "40s", **given}, environ={}
    ).lease == timedelta(seconds=40)

    postgres = load_settings(
        {"engines": "postgres", "metadata": "postgresql://db", **given}, environ={}
    )
    assert {postgres.metadata, postgres.tasks, postgres.control_queue} == {"postgresql://db"}
    assert (postgres.queues, postgres.coordination) == ("", "redis://host")
    del given["coordination"]
    alone = load_settings(
        {"engines": "postgres", "metadata": "postgresql://db", **given}, environ={}
    )
    assert alone.coordination == "postgresql://db"
    embedded = load_settings({}, environ={"CONVEYOR_ENGINES": "embedded"})
    assert embedded == Settings()


@pytest.mark.parametrize(
    ("lease", "renewal", "permits"),
    [
        ("30s", "10s", 30),
        ("90s", "10s", 30),
        ("2s", "500ms", 2),
        ("90s", "20s", 60),
        ("90s", "40s", 90),
    ],
)
def test_permits_are_valid_for_half_a_minute_unless_leases_or_renewals_say_otherwise(
    lease: str, renewal: str, permits: int
) -> None:
    settings = load_settings({"lease": lease, "renewal": renewal}, environ={})
    assert settings.permit_lease == timedelta(seconds=permits)
