"""The guide to operations and the dashboard speak of metrics, labels and events that exist."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from conveyor.app.engines import CODES
from conveyor.domain.failure import Handling
from conveyor.telemetry.metrics import Metrics
from tests.docs.alarms import alarms
from tests.docs.chapters import OPERATIONS, column, section, tables
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
EVENTS = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
BOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana" / "conveyor.json").read_text())

METRIC = re.compile(r"\b((?:conveyor|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"instance", "job", "le"}  # labels that every series gets, or every bucket has
# Metrics that a service on SQLite has no series of, with their labels.
OF_POSTGRESQL = {"conveyor_dead_rows": {"table"}}
RARE = {"status"}  # not every status comes up in a test


ALARMS = alarms()
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    *((f"alarm: {alarm.name}", alarm.expression) for alarm in ALARMS),
    *(
        (f"panel: {panel['title']} {target['refId']}", target["expr"])
        for panel in PANELS
        for target in panel["targets"]
    ),
    *(("annotation", one["expr"]) for one in BOARD["annotations"]["list"]),
    *(
        (f"variable: {one['name']}", one["definition"])
        for one in BOARD["templating"]["list"]
        if one["type"] == "query"
    ),
]
every_expression = pytest.mark.parametrize(
    "expression", [text for _, text in EXPRESSIONS], ids=[name for name, _ in EXPRESSIONS]
)


@pytest.fixture(scope="module")
def exposed(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """The metrics of a service that ran a job, with a failure and a retry in it."""
    data = tmp_path_factory.mktemp("operated")
    environ = FAST_RETRIES | SHORT_GRACE
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        with client_of(program) as api:
            _a_job(api, "ok", "flaky", "permanent")

        def samples() -> list[Sample]:
            text = httpx.get(program.url.removesuffix("/v1") + "/metrics").text
            families = text_string_to_metric_families(text)
            return [sample for family in families for sample in family.samples]

        until(lambda: any(one.name == "conveyor_database_bytes" for one in samples()))
        return samples()


def _a_job(api: httpx.Client, *hosts: str) -> str:
    body = {"tasks": [{"url": f"https://{host}.example/operated"} for host in hosts]}
    job_id: str = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    ended(api, job_id)
    every_row(api, job_id)
    return job_id


@every_expression
def test_an_expression_names_series_that_are_exposed(
    exposed: list[Sample], expression: str
) -> None:
    named = METRIC.findall(expression)
    assert named or expression.startswith("up{"), expression
    for name, matchers in named:
        if name in OF_POSTGRESQL:
            assert {label for label, _, _ in MATCHER.findall(matchers)} <= OF_POSTGRESQL[name]
            continue
        series = [one for one in exposed if one.name == name]
        assert series, f"{name} is not exposed"
        for label, sign, value in MATCHER.findall(matchers):
            if label in OF_PROMETHEUS or "$" in value:
                continue
            assert label in series[0].labels, f"{name} has no label {label}"
            found = [one for one in series if _matches(one.labels[label], sign, value)]
            assert found or label in RARE, f"{name} is never {label}{sign}{value}"


def _matches(actual: str, sign: str, wanted: str) -> bool:
    if sign in {"=", "!="}:
        return (actual == wanted) is (sign == "=")
    return bool(re.fullmatch(wanted, actual)) is (sign == "=~")


@every_expression
def test_an_expression_groups_by_labels_of_its_metrics(
    exposed: list[Sample], expression: str
) -> None:
    named = {name for name, _ in METRIC.findall(expression)}
    known = {label for one in exposed if one.name in named for label in one.labels}
    known = known.union(*(OF_POSTGRESQL.get(name, set()) for name in named))
    for labels in GROUPED.findall(expression):
        assert set(labels.split(", ")) <= known | OF_PROMETHEUS


@every_expression
def test_an_expression_closes_what_it_opens(expression: str) -> None:
    open_ones = []
    for character in re.sub(r'"[^"]*"', '""', expression):
        if character in "([{":
            open_ones.append(character)
        elif character in ")]}":
            assert open_ones
            assert open_ones.pop() + character in {"()", "[]", "{}"}
    assert not open_ones
    assert expression.count('"') % 2 == 0


@every_expression
def test_counters_are_asked_for_their_rate_and_gauges_for_their_value(expression: str) -> None:
    bare = re.sub(r"\{[^}]*\}", "", expression)
    for name in re.findall(r"\b(?:conveyor|process)_\w+", bare):
        ranged = re.search(rf"\b(\w+)\({name}\[", bare)
        counts = name.endswith(("_total", "_bucket", "_count", "_sum"))
        if counts:
            assert ranged, f"{name} only ever rises"
            assert ranged[1] in {"rate", "increase"}
        elif ranged:
            assert ranged[1] in {"min_over_time", "predict_linear", "changes"}


def test_every_row_of_the_table_of_alarms_is_read() -> None:
    rows = [line for line in section("Alarms", OPERATIONS).splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == len(ALARMS) >= 20  # the first row is the heading
    assert len({alarm.name for alarm in ALARMS}) == len(ALARMS)


def test_the_alarm_for_the_account_rings_for_every_code_that_fails_a_run() -> None:
    [alarm] = [one for one in ALARMS if one.name == "Gateway refuses the account"]
    [(_, _, wanted)] = MATCHER.findall(alarm.expression)
    rings = {code for code in CODES if re.fullmatch(wanted, code)}
    assert rings == {code for code, rule in CODES.items() if rule.handling is Handling.ACCOUNT}


def test_every_metric_is_told_in_words() -> None:
    told = set(re.findall(r"conveyor_\w+", section("What the metrics mean", OPERATIONS)))
    ours = {
        sample
        for metric in Metrics().registry.collect()
        for sample in (f"{metric.name}_total" if metric.type == "counter" else metric.name,)
        if sample.startswith("conveyor_")
    }
    assert told == ours


def test_every_event_that_needs_a_person_is_told() -> None:
    need_a_person, _warnings = tables("Log", OPERATIONS)
    told = column(need_a_person, "event", "what to do").keys()
    severe = set(re.findall(r"^\| ([a-z._]+) \| (?:error|critical) \|", EVENTS, re.MULTILINE))
    assert told == severe


def test_every_event_that_is_named_exists() -> None:
    known = set(
        re.findall(
            r"^\| ([a-z._]+) \| (?:debug|info|warning|error|critical) \|", EVENTS, re.MULTILINE
        )
    )
    groups = (
        "http|job|run|task|tasks|gateway|control|sweeper|dispatcher|settle|port|loop|sample|attempt"
    )
    named = set(re.findall(rf"`((?:{groups})\.[a-z_.]+)`", GUIDE))
    assert named
    assert named <= known


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert BOARD["schemaVersion"] >= 39
    assert "id" not in BOARD
    [source] = [one for one in BOARD["templating"]["list"] if one["type"] == "datasource"]
    chosen = {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    for panel in PANELS:
        assert panel["datasource"] == chosen
        assert all(target["datasource"] == chosen for target in panel["targets"])
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.fixture
def backup(gateway: Program, tmp_path: Path) -> tuple[Path, str]:
    """A copy of the folder of a service that was stopped in the middle of a job."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with (
        service(data=data, gateway=gateway.url, environ=SHORT_GRACE) as program,
        client_of(program) as api,
    ):
        urls = ["https://ok.example/first", "https://slow.example/late?ms=60000"]
        body = {"tasks": [{"url": url} for url in urls]}
        job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
        until(lambda: every_row(api, job_id, status="successful"))
    shutil.copytree(data, copy)
    shutil.rmtree(data)
    return copy, job_id


def test_a_restored_copy_goes_on_where_it_was(gateway: Program, backup: tuple[Path, str]) -> None:
    copy, job_id = backup
    with (
        service(data=copy, gateway=gateway.url, environ=SHORT_GRACE) as program,
        client_of(program) as api,
    ):
        [row] = every_row(api, job_id, status="successful")
        content = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content")
        assert len(content.raise_for_status().content) == 2048
        [open_row] = every_row(api, job_id, status="processing")
        run = api.get(f"/jobs/{job_id}").json()["latest_run"]
        assert (run["status"], run["stats"]["successful"]) == ("running", 1)

        def calls() -> int:
            asked = httpx.get(gateway.url + "_mock/stats").raise_for_status().json()["urls"]
            return int(asked.get(open_row["url"], 0))

        until(lambda: calls() >= 2)
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
