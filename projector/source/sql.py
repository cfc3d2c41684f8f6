"""The statements of the PostgreSQL source, one each. `{log}` is the quoted table."""

from __future__ import annotations

from projector.source.batch import Row

_TIMELINE = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
"""The one that is written to now. It raises on a standby, and unlike the last checkpoint's timeline
it does not lag behind a promotion."""

WINDOW = f"""
select s::text,
       m + age((m % 4294967296)::text::xid),
       pg_current_wal_insert_lsn()::text,
       {_TIMELINE},
       pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()
  from (select s, pg_snapshot_xmax(s)::text::bigint as m from pg_current_snapshot() s) x
"""
"""The end of a new window, for all lanes. Alone in its transaction: age() is computed once per
transaction, so that inside an open one the upper bound of assigned xids would be too low."""

IDENTITY = f"""
select system_identifier::text, {_TIMELINE} from pg_control_system()
"""

FLUSHED = "select pg_current_wal_flush_lsn() >= $1::text::pg_lsn"

FLUSH = "select pg_logical_emit_message(false, '', '', true)"
"""Writes and flushes a message that nobody reads: how PostgreSQL ≥ 17 is made to flush."""

OLD_FLUSH = "select pg_logical_emit_message(true, '', '')"
"""The same before 17: a tiny transaction, whose commit flushes."""

WAITING = """
select lanes.lane
  from unnest($1::int[], $2::bigint[]) as lanes(lane, head)
 where exists (select from {log} o where o.lane = lanes.lane and o.id > lanes.head)
"""
"""Which lanes may have fresh rows: one cheap query for all lanes of a process."""

_COLUMNS = ", ".join(
    {
        "event_id": "event_id::text",
        "time": """to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    }.get(field, field)
    for field in Row._fields
)

# Each page says on which timeline it was read, also when it is empty: the connection may have been
# routed to a promoted standby since the window was opened.
_PAGE = f"""
select t.timeline, r.*
  from (select {_TIMELINE} as timeline) t
  left join lateral ({{page}}) r on true
 order by r.id
"""

_TOPICS = "({only}::text is null or topic = {only}) and topic <> all({without}::text[])"

FRESH = _PAGE.format(
    page=f"""
    select {_COLUMNS}
      from {{log}}
     where lane = $1 and id > $2 and pg_visible_in_snapshot(xid, $3::text::pg_snapshot)
       and {_TOPICS.format(only="$5", without="$6")}
     order by id limit $4"""
)
"""Rows above everything published. No `not visible in base` here: it would be redundant, and after
a crash that hands aborted xids out again it would hide new rows."""

LATE = _PAGE.format(
    page=f"""
    select l.*
      from unnest($5::text[]::xid8[]) as running(xid)
     cross join lateral (
        select {_COLUMNS}
          from {{log}} o
         where o.xid = running.xid and o.id > $2 and o.id <= $3 and o.lane = $1
           and {_TOPICS.format(only="$6", without="$7")}
         order by o.id limit $4) l
     order by l.id limit $4"""
)
"""Rows at or below the head whose transactions were running when the base was taken. By unnest and
lateral, so that statistics of an empty table cannot make the planner scan a full one."""
