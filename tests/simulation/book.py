"""What callers were told and have seen, and what therefore must hold for ever after.

Not a copy of the program: it knows no claims, batches or messages. It holds what was acknowledged
and the last look at everything, and judges the next look by these.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from conveyor.domain.ids import task_index

Document = dict[str, Any]

LIVE = {"running", "pending"}
ENDED = {"completed", "stopped", "failed"}
FINAL = {"successful", "failed"}
GROWING = ("completed", "successful", "failed")  # figures that never fall
STEADY = ("run_id", "job_id", "run_sequence", "trigger", "created_at")


@dataclass(slots=True, eq=False)
class Lot:
    """Tasks handed in by one call. `whole`: their rows were on record when it was answered."""

    urls: list[str]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rerun was asked for: which rows to scrape again, and with what."""

    selects: Callable[[Document], bool] | None = None  # of a final row; None for all
    changes_wait: bool = False
    wait: int | None = None  # a parameter in place of the rows' own; None removes it


@dataclass(slots=True, repr=False, eq=False)
class KnownRun:
    id: str
    job: "KnownJob"
    lots: list[Lot] = field(default_factory=list)  # of a first run
    source: "KnownRun | None" = None  # of a rerun, the run it was made from
    asked: Asked = Asked()
    # Of the final rows of the source, before the rerun: whether it must scrape them again.
    judged: dict[str, bool] = field(default_factory=dict)
    copies: frozenset[str] | None = None  # all rows of the source
    seen: Document | None = None
    rows: dict[str, Document] = field(default_factory=dict)
    stopped: bool = False  # the caller was told so
    gone: bool = False  # the caller deleted it

    def look(self, shown: Document) -> None:
        """Judge the run as it is shown now by how it was shown before (I2, I3, I4)."""
        before, self.seen = self.seen, shown
        stats, status = shown["stats"], shown["status"]
        assert not self.gone, f"a deleted run is shown: {shown}"
        assert not self.stopped or status == "stopped", f"a stopped run is {status}"
        assert stats["completed"] == stats["successful"] + stats["failed"]
        assert stats["failed"] == sum(stats.get("failure_reasons", {}).values())
        assert stats["completed"] <= stats["total"], f"more done than there is: {shown}"
        if status == "completed":
            assert shown["last_batch_received"]
            assert shown.get("ingest_status") != "pending"
        if status == "pending":
            assert not shown["last_batch_received"]
            assert stats["completed"] == stats["total"]
        if self.reads_again and self.is_whole:
            assert stats["total"] == len(self.job.listed or ()), f"not all of its list: {shown}"
        elif self.copies is not None and self.is_whole:
            assert stats["total"] == len(self.copies), f"{len(self.copies)} to copy: {shown}"
        if not self.source and self.is_whole:
            promised = sum(len(lot.urls) for lot in self.lots)
            assert stats["total"] == promised, f"{promised} tasks promised: {shown}"
        if before:
            self._compare(before, shown)

    def _compare(self, before: Document, now: Document) -> None:
        assert all(before[name] == now[name] for name in STEADY), (before, now)
        assert now["last_batch_received"] or not before["last_batch_received"]
        assert before.get("ingest_status") != "done" or now["ingest_status"] == "done"
        assert _moment(before["updated_at"]) <= _moment(now["updated_at"]) + self.job.skew
        if before["status"] == "completed":
            assert now == before, f"a completed run changed: {before} -> {now}"
        if before["status"] in ENDED:
            assert now["status"] == before["status"], f"an ended run moved: {before} -> {now}"
            return
        for name in GROWING:
            assert before["stats"][name] <= now["stats"][name], (before, now)
        assert before["stats"]["spend"]["credits"] <= now["stats"]["spend"]["credits"]

    @property
    def reads_again(self) -> bool:
        """Whether it is made from its job's list, which the last run was cut short of."""
        source = self.source.seen if self.source else None
        is_cut = bool(source and source.get("cut_short"))
        return is_cut and self.asked.selects is None and self.job.listed is not None

    def parameter_of(self, task_id: str) -> str:
        """What a page of a row says of its parameter: that of the last rerun which replaced it."""
        row = self.rows.get(task_id)
        if row is None:
            return ""  # of a run that was deleted before anybody looked
        is_changed = "source_run_id" not in row and self.asked.changes_wait
        if not self.source or self.reads_again or is_changed:
            return f" {self.asked.wait} "
        return self.source.parameter_of(task_id)

    @property
    def is_whole(self) -> bool:
        """Whether nothing that was promised can have been cut off."""
        return (
            bool(self.seen) and self.status not in {"stopped", "failed"} and not self.is_ingesting
        )

    @property
    def status(self) -> str:
        return str(self.seen["status"]) if self.seen else "unknown"

    @property
    def is_ingesting(self) -> bool:
        return self.seen is not None and self.seen.get("ingest_status") == "pending"

    def look_at_rows(self, listed: list[Document], now: datetime) -> None:
        """Judge all rows of the run, listed just after it was looked at (I1, I2, I4, I10)."""
        indexes = [task_index(row["task_id"]) or 0 for row in listed]
        assert indexes == sorted(set(indexes)), f"rows out of order or doubled: {indexes}"
        for row in listed:
            self._judge(row, now)
        rows = {row["task_id"]: row for row in listed}
        missing = self.rows.keys() - rows.keys()
        assert not missing, f"rows of {self.id} are gone: {missing}"
        self.rows = rows
        if self.reads_again:
            self.lots = [Lot(self.job.listed or [])]
            self._judge_lots([row["url"] for row in listed])
        elif self.source:
            self._judge_copies()
        else:
            self._judge_lots([row["url"] for row in listed])
        self._judge_figures()

    def _judge(self, row: Document, now: datetime) -> None:
        assert row["run_id"] == self.id
        if row["status"] == "expired":
            ttl = self.job.ttl_days * 86_400
            age = now - _moment(made_at(row)) + self.job.skew
            assert age.total_seconds() >= ttl, f"expired too soon: {row}"
            row["status"] = "successful"
        row.pop("result_url")
        before = self.rows.get(row["task_id"])
        if before and before["status"] in FINAL:
            assert row == before, f"a final task changed: {before} -> {row}"

    def _judge_lots(self, urls: list[str]) -> None:
        """Every row is of some lot, and lots lie whole, or cut short, one after another."""
        place = {url: (lot, n) for lot in self.lots for n, url in enumerate(lot.urls)}
        written: dict[int, int] = {}
        last: Lot | None = None
        for url in urls:
            assert url in place, f"nobody handed in {url}"
            lot, number = place[url]
            assert lot is last or id(lot) not in written, "lots are mixed up"
            assert number == written.get(id(lot), 0), f"{url} is not where it belongs"
            written[id(lot)] = number + 1
            last = lot
        for lot in self.lots:
            if lot.whole or self.status == "completed":
                lost = lot.urls[written.get(id(lot), 0) :]
                assert not lost, f"accepted and lost: {lost} of {self.id}"

    def _judge_copies(self) -> None:
        assert self.source
        for task_id, row in self.rows.items():
            origin = self.source.rows.get(task_id)
            if self.source.gone and not origin:
                continue
            assert origin, f"{task_id} is not in the run it was copied from"
            assert row["url"] == origin["url"]
            again = self.judged.get(task_id)
            if again is None:
                continue
            assert again != ("source_run_id" in row), f"wrongly done again, or not: {row}"
            if not again:
                told = {**origin, "run_id": self.id, "source_run_id": row["source_run_id"]}
                told["scraped_at"] = origin.get("scraped_at", origin["updated_at"])
                told["updated_at"] = row["updated_at"]  # of the copy
                age = _moment(row["updated_at"]) - _moment(origin["updated_at"])
                assert age + self.job.skew >= timedelta(), f"copied before it stood: {row}"
                assert row == told, f"inherited otherwise than it stood: {origin} -> {row}"
        if self.is_whole and self.copies is not None:
            assert self.rows.keys() == self.copies

    def _judge_figures(self) -> None:
        if not self.seen or self.is_ingesting:
            return
        stats, rows = self.seen["stats"], self.rows.values()
        for status in ("successful", "failed"):
            count = sum(row["status"] == status for row in rows)
            assert count == stats[status], f"{count} rows {status}, told {stats} in {self.id}"
        if self.status == "completed":
            assert len(rows) == stats["total"], f"{len(rows)} rows of {stats['total']}"
            left = [row for row in rows if row["status"] not in FINAL]
            assert all("source_run_id" in row for row in left), f"completed too soon: {left}"


@dataclass(slots=True, repr=False, eq=False)
class KnownJob:
    id: str
    caller: str
    ttl_days: int
    runs: dict[str, KnownRun] = field(default_factory=dict)
    closed: bool = False
    listed: list[str] | None = None  # kept by the job, to be read again
    deleted_at: datetime | None = None
    skew: timedelta = timedelta()  # by which clocks of services differ

    @property
    def newest(self) -> KnownRun | None:
        return next((run for run in reversed(self.runs.values()) if not run.gone), None)

    @property
    def is_live(self) -> bool:
        """As far as anybody has seen."""
        return self.newest is not None and self.newest.status not in ENDED

    def look(self, shown: Document) -> None:
        assert self.deleted_at is None, f"a deleted job is shown: {shown}"
        assert shown["job_id"] == self.id
        assert not self.closed or shown["status"] == "closed", "a closed job is open again"
        self.closed = shown["status"] == "closed"

    def look_at_runs(self, listed: list[Document]) -> None:
        """Judge all runs of the job, newest first (I5)."""
        live = [run["run_id"] for run in listed if run["status"] in LIVE]
        assert len(live) <= 1, f"live at once: {live}"
        assert not live or live[0] == listed[0]["run_id"], "a run that is not the latest is live"
        sequence = [run["run_sequence"] for run in listed]
        assert sequence == sorted(set(sequence), reverse=True), f"run sequence: {sequence}"
        known = {run.id for run in self.runs.values() if not run.gone}
        assert {run["run_id"] for run in listed} == known
        for shown in listed:
            self.runs[shown["run_id"]].look(shown)


def made_at(row: Document) -> str:
    """When a final row got its result, here or in the run it was inherited from."""
    return str(row.get("scraped_at") or row["updated_at"])


def _moment(shown: str) -> datetime:
    return datetime.fromisoformat(shown)
