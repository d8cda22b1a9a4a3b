"""Bugs to plant, each with the one suite that must catch it.

Most are what a change for many processes could break: a condition that is gone, an order that is
swapped, a fence that is skipped, an index that is trusted. The text of a bug stands once in its
module: if a change moves it, the table moves with it.
"""

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Bug:
    does: str
    module: str
    right: str
    wrong: str
    suite: str

    @property
    def path(self) -> Path:
        return SOURCE / (self.module.replace(".", "/") + ".py")

    def planted_in(self, source: str) -> str:
        count = source.count(self.right)
        assert count == 1, f"found {count} times in {self.module}: {self.right!r}"
        return source.replace(self.right, self.wrong)


BUGS = {
    # Claims.
    "settle-unfenced": Bug(
        "a settle writes whatever claim holds the task",
        "conveyor.adapters.sqlite.work",
        'WHERE task.claim_no = {AT["claim_no"]} AND task.status = 1 AND',
        "WHERE task.status = 1 AND",
        "tests/contracts/test_work.py",
    ),
    "settle-by-any-holder": Bug(
        "a settle ignores which process holds the claim",
        "conveyor.adapters.sqlite.work",
        " AND task.status = 1 AND ifnull(task.holder, ?2) = ?2",
        " AND task.status = 1 AND ?2 = ?2",
        "tests/contracts/test_work.py",
    ),
    "renew-unfenced": Bug(
        "a lost claim renews the lease of its successor",
        "conveyor.adapters.sqlite.work",
        "AND idx = ?3 AND claim_no = ?4 AND status = 1",
        "AND idx = ?3 AND ?4 = ?4 AND status = 1",
        "tests/contracts/test_work.py",
    ),
    "postgres-settle-by-any-holder": Bug(
        "a settle on PostgreSQL ignores which process holds the claim",
        "conveyor.adapters.postgres.work",
        " AND held.holder = $2\n",
        " AND $2 = $2\n",
        "tests/postgres/test_races.py",
    ),
    "postgres-renew-loses-settled": Bug(
        "a renewal on PostgreSQL takes a claim that is being settled for lost",
        "conveyor.adapters.postgres.work",
        """SELECT run_no, idx, claim_no FROM given
 WHERE EXISTS (SELECT 1 FROM held
                WHERE held.run_no = given.run_no AND held.idx = given.idx
                  AND held.claim_no = given.claim_no AND holder = $6 OFFSET 0)
""",
        "SELECT run_no, idx, claim_no FROM given JOIN alive USING (run_no, idx)\n",
        "tests/postgres/test_races.py",
    ),
    "postgres-join-by-equality": Bug(
        "a settle on PostgreSQL may be planned as a read of all claims",
        "conveyor.adapters.postgres.database",
        'return f"{left} >= {right} AND {left} <= {right}"',
        'return f"{left} = {right}"',
        "tests/postgres/test_plans.py",
    ),
    "postgres-claim-of-one-range": Bug(
        "a claim on PostgreSQL takes tasks of the first ranges only",
        "conveyor.adapters.postgres.work",
        "            (TAKE_FRESH, fresh, MORE_RANGES),\n",
        "",
        "tests/postgres/test_races.py",
    ),
    "postgres-feed-skips": Bug(
        "the feed of changed runs on PostgreSQL lists changes above those under way",
        "conveyor.adapters.postgres.metadata",
        "   AND changed_by < pg_snapshot_xmin(pg_current_snapshot())\n",
        "",
        "tests/postgres/test_races.py",
    ),
    "postgres-discard-without-lock": Bug(
        "a discard on PostgreSQL forgets a run while rows are added to it",
        "conveyor.adapters.postgres.tasks",
        "SELECT no FROM run_no WHERE run_id = $1 FOR UPDATE",
        "SELECT no FROM run_no WHERE run_id = $1",
        "tests/postgres/test_races.py",
    ),
    "claim-keeps-number": Bug(
        "a claim does not raise the number of the task",
        "conveyor.adapters.sqlite.work",
        "UPDATE task SET status = 1, claim_no = claim_no + 1,",
        "UPDATE task SET status = 1, claim_no = max(claim_no, 1),",
        "tests/contracts/test_work.py",
    ),
    "takeover-keeps-number": Bug(
        "taking over a lapsed claim does not raise its number",
        "conveyor.domain.task",
        '"claim_no": task.claim_no + 1,',
        '"claim_no": max(task.claim_no, 1),',
        "tests/unit/domain/test_task.py",
    ),
    "claims-of-closed-runs": Bug(
        "tasks of a closed run are claimed",
        "conveyor.adapters.sqlite.work",
        "FROM run_no WHERE run_id = ?1 AND open AND",
        "FROM run_no WHERE run_id = ?1 AND",
        "tests/contracts/test_work.py",
    ),
    "lost-workers-uncounted": Bug(
        "a task that loses its workers is claimed for ever",
        "conveyor.domain.task",
        "lost = task.lost + (task.status is TaskStatus.PROCESSING)",
        "lost = task.lost",
        "tests/unit/domain/test_task.py",
    ),
    # Queues.
    "acks-unfinished-tasks": Bug(
        "the message of a task that is tried again is acked",
        "conveyor.adapters.queued.work",
        "if ending.decision.status in FINAL and (receipt := self._receipt(ending)):",
        "if receipt := self._receipt(ending):",
        "tests/contracts/test_queued.py",
    ),
    "renewal-leaves-messages-visible": Bug(
        "a renewal does not hide the messages of its claims",
        "conveyor.adapters.queued.work",
        "_raise_bugs(await _side_by_side([partial(self._hide, *group) for group in known.items()]))",
        "del known",
        "tests/contracts/test_queued.py",
    ),
    "unavailable-claims-stay-visible": Bug(
        "messages whose tasks could not be claimed stay visible",
        "conveyor.adapters.queued.work",
        """            await self._bounce(run_id, messages.values())
            raise""",
        "            raise",
        "tests/contracts/test_queued.py",
    ),
    "released-without-message": Bug(
        "a task that was released gets no new message",
        "conveyor.adapters.queued.work",
        "await self._send(run_id, [(claim.task_id, timedelta()) for claim in released])",
        "pass",
        "tests/contracts/test_queued.py",
    ),
    "control-lease-unfenced": Bug(
        "a delivery that was taken over acks the message of its successor",
        "conveyor.adapters.sqlite.control_queue",
        'HELD = "WHERE id = ? AND deliveries = ? AND',
        'HELD = "WHERE id = ? AND deliveries >= ? AND',
        "tests/contracts/test_control_queue.py",
    ),
    "control-messages-twice": Bug(
        "a message is sent although one of its subject is live",
        "conveyor.adapters.memory.control_queue",
        "if await self.is_live(message.kind, message.subject):",
        "if False:",
        "tests/contracts/test_control_queue.py",
    ),
    "control-acks-first": Bug(
        "a message that failed is acked",
        "conveyor.steps.control",
        """        elif isinstance(outcome, CallerFault):
            await self._end(""",
        """        elif isinstance(outcome, Exception):
            await self._end(""",
        "tests/unit/steps/test_control.py",
    ),
    # Records.
    "commit-unconditional": Bug(
        "a record is replaced whatever its version is",
        "conveyor.adapters.sqlite.metadata",
        """before = f"version = ?{first + numbers['version']} - 1\"""",
        """before = f"version <= ?{first + numbers['version']}\"""",
        "tests/contracts/test_metadata.py",
    ),
    "keys-taken-over": Bug(
        "an idempotency key that is in use is claimed again",
        "conveyor.adapters.sqlite.metadata",
        "expires_at = ?6 WHERE expires_at <= ?7",
        "expires_at = ?6 WHERE ?7 = ?7",
        "tests/contracts/test_metadata.py",
    ),
    # The order of writes.
    "ack-before-the-check": Bug(
        "messages are acked before the run is checked for completion",
        "conveyor.steps.settle",
        "                await self._follow_up(ended, again=again)",
        """                await self._ack([attempt.task for attempt, _ in ended])
                await self._follow_up(ended, again=again)""",
        "tests/unit/steps/test_settle.py",
    ),
    "settled-bodies-removed": Bug(
        "a settle whose answer was lost removes the bodies that its rows refer to",
        "conveyor.steps.settle",
        "if not dropped or again:",
        "if not dropped:",
        "tests/unit/steps/test_settle.py",
    ),
    "message-before-row": Bug(
        "an ingest enqueues tasks before their rows exist",
        "conveyor.steps.ingest",
        """        await self.tasks.add(batch.run_id, chunk.rows)
        fresh, taken_over = await self._inherited_and_fresh(batch, chunk)
        await self.work.enqueue(batch.run_id, fresh)
""",
        """        fresh, taken_over = await self._inherited_and_fresh(batch, chunk)
        await self.work.enqueue(batch.run_id, fresh)
        await self.tasks.add(batch.run_id, chunk.rows)
""",
        "tests/unit/steps/test_ingest.py",
    ),
    "watermark-before-rows": Bug(
        "an ingest moves its watermark before it writes the rows",
        "conveyor.steps.ingest",
        """            batch = await self._write_chunk(batch, chunk)
""",
        """            moved = msgspec.structs.replace(
                batch, written=batch.written + len(chunk.rows), read=chunk.read
            )
            await self.metadata.commit(moved)
            batch = _stored(moved)
            await self.tasks.add(batch.run_id, chunk.rows)
            await self.work.enqueue(batch.run_id, [row.id for row in chunk.rows])
""",
        "tests/unit/steps/test_ingest.py",
    ),
    "submit-forgets-its-key": Bug(
        "a submit commits the job without its idempotency record",
        "conveyor.steps.submit",
        "*inputs, *heartbeats, *claims)",
        "*inputs, *heartbeats)",
        "tests/unit/steps/test_submit.py",
    ),
    "submit-removes-accepted-rows": Bug(
        "a submit whose answer was lost removes the rows of the job that it stored",
        "conveyor.steps.submit",
        "if await self.metadata.get(Job, draft.job.id):",
        "if draft.job is None:",
        "tests/unit/steps/test_submit.py",
    ),
    # Completion.
    "completion-unconditional": Bug(
        "a run is completed although tasks are left",
        "conveyor.steps.complete",
        "if not run_rules.is_complete(run, settled):",
        "if not run.is_live:",
        "tests/unit/steps/test_complete.py",
    ),
    "stale-completion-gives-up": Bug(
        "a completion check that meets another writer does not look again",
        "conveyor.steps.complete",
        """            except Stale:
                continue""",
        """            except Stale:
                return False""",
        "tests/unit/steps/test_complete.py",
    ),
    # Exports and deletes.
    "export-unfenced": Bug(
        "a worker that lost its export finishes it",
        "conveyor.steps.export",
        "not row.has_ended and row.claim_no == export.claim_no",
        "not row.has_ended",
        "tests/unit/steps/test_export.py",
    ),
    "delete-ignores-descendants": Bug(
        "a run is deleted whose results another run shows",
        "conveyor.steps.delete",
        "if run.id in other.inherited.sources:",
        "if not run.id:",
        "tests/unit/steps/test_delete.py",
    ),
    "delete-without-record": Bug(
        "a job is deleted without the record that its purge needs",
        "conveyor.steps.delete",
        "*ended, *events, deletion)",
        "*ended, *events)",
        "tests/unit/steps/test_delete.py",
    ),
    # The sweeper and the start.
    "sweeper-acts-at-once": Bug(
        "the sweeper repairs what it sees for the first time",
        "conveyor.steps.sweep.sweeper",
        "if key in cursor.suspects or action.at_first_sight or not patient:",
        "if key:",
        "tests/unit/steps/sweep/test_sweeper.py",
    ),
    "sweeper-ends-live-leases": Bug(
        "the sweeper releases claims whose lease has not lapsed",
        "conveyor.steps.sweep.sweeper",
        "await self.work.release_lapsed(run_id, overdue=OVERDUE,",
        "await self.work.release_lapsed(run_id, overdue=-OVERDUE,",
        "tests/unit/steps/sweep/test_sweeper.py",
    ),
    "orphans-by-age-alone": Bug(
        "rows count as orphans although their run exists",
        "conveyor.steps.sweep.orphans",
        "if not await self._is_run_gone(await self.metadata.get(Run, run_id)):",
        "if not run_id:",
        "tests/unit/steps/sweep/test_orphans.py",
    ),
    "start-sweeps-spools": Bug(
        "a start removes the unfinished files of other processes",
        "conveyor.app.storage",
        "    if address:\n        opening.sweep_unfinished",
        "    if not opening:\n        opening.sweep_unfinished",
        "tests/unit/app/test_storage.py",
    ),
    # The dispatcher.
    "trusts-the-index": Bug(
        "discovery serves a run as a listing shows it, without reading it",
        "conveyor.steps.dispatch.discovery",
        """        if is_news:
            await self.look_at(listed.id)""",
        """        if is_news:
            await self._join(listed)""",
        "tests/unit/steps/dispatch/test_discovery.py",
    ),
    "lost-claims-go-on": Bug(
        "calls of claims that were lost go on",
        "conveyor.steps.dispatch.dispatcher",
        "self.fetcher.drop_lost(lost)",
        "del lost",
        "tests/unit/steps/dispatch/test_dispatcher.py",
    ),
    "permits-not-renewed": Bug(
        "permits of running calls are not renewed",
        "conveyor.steps.dispatch.permits",
        "await self.coordination.renew(permits)",
        "pass",
        "tests/unit/steps/dispatch/test_permits.py",
    ),
    "permits-beyond-the-cap": Bug(
        "permits of other processes do not count against the cap",
        "conveyor.adapters.memory.coordination",
        "room = min(request.want, request.cap - self._live(name))",
        "room = min(request.want, request.cap)",
        "tests/unit/steps/dispatch/test_dispatcher.py",
    ),
    # Metadata on DynamoDB.
    "dynamodb-version-ignored": Bug(
        "a change replaces a row of any version",
        "conveyor.adapters.aws.dynamodb.commits",
        'Condition("#v = :v", ',
        'Condition("#v >= :v OR #v < :v", ',
        "tests/contracts/test_dynamodb_metadata.py",
    ),
    "dynamodb-key-taken-twice": Bug(
        "an idempotency key is taken although its record has not expired",
        "conveyor.adapters.aws.dynamodb.commits",
        "OR #x <= :now",
        "OR #x > :now",
        "tests/contracts/test_dynamodb_metadata.py",
    ),
    "dynamodb-token-ignored": Bug(
        "a commit does not recognise its own effect",
        "conveyor.adapters.aws.dynamodb.commits",
        '        if stored and stored.get(TOKEN) == {"S": token}:',
        "        if not token:",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-refusal-believed": Bug(
        "a refusal after a lost answer is believed",
        "conveyor.adapters.aws.dynamodb.commits",
        "if not failure.follows_unknown:",
        "if failure:",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-overtaken-is-stale": Bug(
        "a change that another writer overtook is called stale",
        "conveyor.adapters.aws.dynamodb.commits",
        "newer == 0 or newer > 1",
        "newer == 0",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-unknown-not-read-back": Bug(
        "a commit without an answer is not looked up",
        "conveyor.adapters.aws.dynamodb.commits",
        "            stored = await self._table.get(write.key)\n",
        "            raise\n            stored = await self._table.get(write.key)\n",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-expired-record-shown": Bug(
        "an expired idempotency record is found until it is removed",
        "conveyor.adapters.aws.dynamodb.metadata",
        "isinstance(record, IdempotencyRecord) and record.expires_at <= self._clock.now()",
        "isinstance(record, IdempotencyRecord) and not record",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-index-trusted": Bug(
        "a run is listed as live because an index has it",
        "conveyor.adapters.aws.dynamodb.metadata",
        "        return await records(self._table, RUN, listed, limit=limit, wanted=lambda run: run.is_live)",
        "        return await records(self._table, RUN, listed, limit=limit)",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-due-index-trusted": Bug(
        "an event is due because an index has it",
        "conveyor.adapters.aws.dynamodb.metadata",
        "limit=limit, wanted=_is_due(now), consistent=True",
        "limit=limit, consistent=True",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-no-overlap": Bug(
        "changes that an index shows late are missed",
        "conveyor.adapters.aws.dynamodb.changed_runs",
        "OVERLAP = timedelta(seconds=30)",
        "OVERLAP = timedelta()",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-mark-runs-ahead": Bug(
        "a clock that is ahead moves the mark past other changes",
        "conveyor.adapters.aws.dynamodb.changed_runs",
        "at = min(max([mark.at, *map(_time, new)]), max(mark.at, _now(clock)))",
        "at = max([mark.at, *map(_time, new)])",
        "tests/unit/adapters/aws/test_dynamodb_metadata.py",
    ),
    "dynamodb-pointer-left-out": Bug(
        "a new run is not listed below its job",
        "conveyor.adapters.aws.dynamodb.commits",
        "        if not change.version and (pointer := pointer_of(change)):",
        "        if change.version and (pointer := pointer_of(change)):",
        "tests/contracts/test_dynamodb_metadata.py",
    ),
    "dynamodb-shard-missed": Bug(
        "a listing leaves a partition out",
        "conveyor.adapters.aws.dynamodb.layout",
        "for number in range(INDEX_SHARDS)]",
        "for number in range(INDEX_SHARDS - 1)]",
        "tests/contracts/test_dynamodb_metadata.py",
    ),
    "dynamodb-two-shards-used": Bug(
        "the rows of every run are in two of its shards",
        "conveyor.adapters.aws.dynamodb.task_keys",
        "    return fnv32a(task_id) % place.shards if",
        "    return fnv32a(task_id) % 2 if",
        "tests/unit/adapters/aws/test_dynamodb_tasks.py",
    ),
    "dynamodb-message-layout-ignored": Bug(
        "the layout that a message names is looked up",
        "conveyor.adapters.aws.dynamodb.claims",
        "        place = place_in(stamp) or await",
        "        place = await",
        "tests/unit/adapters/aws/test_dynamodb_tasks.py",
    ),
    "dynamodb-layout-of-new-jobs": Bug(
        "a run is looked for where new jobs have their rows",
        "conveyor.adapters.aws.dynamodb.task_keys",
        'RunPlace(JobId(item["j"]["S"]), int(item["n"]["N"]), int(item["v"]["N"]))',
        'RunPlace(JobId(item["j"]["S"]), 8, int(item["v"]["N"]))',
        "tests/unit/adapters/aws/test_dynamodb_tasks.py",
    ),
    "dynamodb-settle-unfenced": Bug(
        "a settle writes whatever claim holds the task",
        "conveyor.adapters.aws.dynamodb.claims",
        "                condition=self._held_condition(claim.claim_no),",
        '                condition=Condition("attribute_exists(pk)"),',
        "tests/unit/adapters/aws/test_dynamodb_races.py",
    ),
    "dynamodb-settle-not-read-back": Bug(
        "a settle whose answers are lost is taken to have failed",
        "conveyor.adapters.aws.dynamodb.task_writes",
        "            if not _has_token(stored, token):\n                raise",
        "            raise",
        "tests/unit/adapters/aws/test_dynamodb_tasks.py",
    ),
    "dynamodb-doubtful-counter-used": Bug(
        "a counter is used again although its last write may have taken effect",
        "conveyor.adapters.aws.dynamodb.task_writes",
        "        counter.is_known = False  # until the outcome is",
        "        counter.is_known = True",
        "tests/unit/adapters/aws/test_dynamodb_tasks.py",
    ),
    "dynamodb-purge-looks-once": Bug(
        "rows that were added during a purge stay until the sweeper finds them",
        "conveyor.adapters.aws.dynamodb.tasks",
        "        return not await TaskRange(self._table, place, run_id).next(1)",
        "        return True",
        "tests/unit/adapters/aws/test_dynamodb_races.py",
    ),
    "dynamodb-entry-stays-closed": Bug(
        "a run to which rows were added after its purge is not listed",
        "conveyor.adapters.aws.dynamodb.tasks",
        "        await self._directory.restore(run_id, place)\n",
        "",
        "tests/unit/adapters/aws/test_dynamodb_tasks.py",
    ),
    "dynamodb-late-rows-unseen": Bug(
        "nobody looks at closed entries again",
        "conveyor.adapters.aws.dynamodb.late_rows",
        "                self._found.add(run_id)",
        "                pass",
        "tests/unit/adapters/aws/test_dynamodb_purges.py",
    ),
    "dynamodb-gate-ignored": Bug(
        "two reservations at the same time both succeed",
        "conveyor.adapters.aws.dynamodb.permits",
        '        is_same = Condition("v = :v", values={":v": gate["v"]}) if gate else IS_NEW',
        "        is_same = None",
        "tests/unit/adapters/aws/test_dynamodb_coordination.py",
    ),
    "dynamodb-resync-each-second": Bug(
        "many notifications make all processes read everything each second",
        "conveyor.adapters.aws.dynamodb.coordination",
        "if not is_all and elapsed >= RESYNC_EVERY.total_seconds():",
        "if not is_all:",
        "tests/unit/adapters/aws/test_dynamodb_coordination.py",
    ),
    "dynamodb-oldest-notes-read": Bug(
        "a poll reads the oldest notifications, of which it knows most",
        "conveyor.adapters.aws.dynamodb.coordination",
        "forward=False, page=MOST_NOTES",
        "forward=True, page=MOST_NOTES",
        "tests/unit/adapters/aws/test_dynamodb_coordination.py",
    ),
    # The sweeper.
    "sweeper-begins-again": Bug(
        "a sweeper begins long listings again instead of where the last one ended",
        "conveyor.steps.sweep.sweeper",
        "            self.cursors |= await self.saved.load()",
        "            await self.saved.load()",
        "tests/unit/steps/sweep/test_saved_cursors.py",
    ),
}
