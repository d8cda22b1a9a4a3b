"""Figures that show in time that the server does not remove dead rows as fast as they appear."""

from collections.abc import Mapping

from conveyor.adapters.postgres.database import PostgresDatabase

# Tables whose rows are updated or deleted all the time, and the two that have a row for each task.
WATCHED = (
    "fresh", "held", "later", "counter", "failure_group", "run", "control_message",
    "permit", "bucket", "cached_value", "notification", "task", "done",
)  # fmt: skip
TABLES = """
SELECT relname, n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables
 WHERE relname = ANY($1::text[]) AND schemaname = current_schema()
"""
# Of other roles only a member of pg_read_all_stats sees it.
OLDEST = """
SELECT coalesce(max(extract(epoch FROM statement_timestamp() - xact_start)), 0)::double precision
  FROM pg_stat_activity WHERE xact_start IS NOT NULL AND backend_type = 'client backend'
"""


async def table_health(
    database: PostgresDatabase,
) -> tuple[Mapping[str, int], Mapping[str, int], float]:
    """Return dead rows by table, as the server estimates them; bytes by table, with its indexes; and
    for how many seconds the oldest transaction has been open.
    """
    tables = await database.fetch(TABLES, WATCHED)
    [oldest] = await database.first(OLDEST)
    dead, sizes = ({row[0]: row[column] for row in tables} for column in (1, 2))
    return dead, sizes, oldest
