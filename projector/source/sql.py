"""The statements of the PostgreSQL source, one each.

`{log}` is the quoted table, `{largest}` how many bytes a row may have.
"""

from __future__ import annotations

from projector.source.batch import Row

_TIMELINE = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
"""The one that is written to now. It raises on a standby, and unlike the last checkpoint's timeline
it does not lag behind a promotion."""

_WRITTEN = """
select lsn - case (lsn - '0/0') % current_setting('wal_block_size')::int when 24 then 24 else 0 end
       as lsn
  from (select pg_current_wal_insert_lsn() as lsn) inserted
"""
"""The end of what is in the WAL. Where a record ends with its page, the next one will begin behind
the next page's header of 24 bytes, which nobody flushes before there is one: waiting for it would
take until somebody else writes."""

WINDOW = f"""
select s::text,
       m + age((m % 4294967296)::text::xid),
       written.lsn::text,
       {_TIMELINE} as timeline,
       pg_current_wal_flush_lsn() >= written.lsn as durable
  from (select s, pg_snapshot_xmax(s)::text::bigint as m from pg_current_snapshot() s) x
 cross join ({_WRITTEN}) written
"""
"""The end of a new window, for all lanes. Alone in its transaction: age() is computed once per
transaction, so that inside an open one the upper bound of assigned xids would be too low."""

PLAN_ONCE = "set plan_cache_mode = force_generic_plan"
PLAN_AS_BEFORE = "reset plan_cache_mode"
"""Left to itself, PostgreSQL plans a survey anew each time, which takes longer than running it; and
the best plan does not depend on the arguments."""

IDENTITY = f"""
select system_identifier::text, {_TIMELINE} from pg_control_system()
"""

FLUSHED = "select pg_current_wal_flush_lsn() >= $1::text::pg_lsn"

FLUSH = "select pg_logical_emit_message(false, '', '', true)"
"""Writes and flushes a message that nobody reads: how PostgreSQL ≥ 17 is made to flush."""

OLD_FLUSH = """
select set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, '', '')
"""
"""The same before 17: a tiny transaction, whose commit is made to flush."""

_COLUMNS = ", ".join(
    {
        "event_id": "event_id::text",
        # What is too large is not even fetched. The size of a stored value is known unread.
        "data": "case when octet_length(data) + octet_length(key) + octet_length(type)"
        " + coalesce(octet_length(headers), 0) <= {largest} then data end as data",
        "time": """to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    }.get(field, field)
    for field in Row._fields
)

# Each page says on which timeline it was read, also when it is empty: the connection may have been
# routed to a promoted standby since the window was opened.
#
# And each looks at a stretch of ids only, from the first one there is: statistics of a table that
# is usually empty make the planner collect and sort all that is left of a backlog, page by page.
# Within a stretch it may do as it likes. `bounds` says where the stretch begins and where all ends.
_PAGE = f"""
select t.timeline, bounds.first, bounds.last, r.*
  from (select {_TIMELINE} as timeline) t
 cross join ({{bounds}}) bounds
  left join lateral ({{page}}) r on true
 order by r.id
"""

_TOPICS = "($4::text is null or topic = $4) and topic <> all($5::text[])"

FRESH = _PAGE.format(
    bounds="select min(id) as first, max(id) as last from {log} where lane = $1 and id > $2",
    page=f"""
    select {_COLUMNS}
      from {{log}}
     where lane = $1 and id >= bounds.first and id < bounds.first + $6
       and pg_visible_in_snapshot(xid, $7::text::pg_snapshot) and {_TOPICS}
     order by id limit $3""",
)
"""Rows above everything published. No `not visible in base` here: it would be redundant, and after
a crash that hands aborted xids out again it would hide new rows."""

_RUNNING = "unnest($7::text[]::xid8[]) as running(xid)"

LATE = _PAGE.format(
    bounds=f"""
    select min(ids.first) as first, max(ids.last) as last
      from {_RUNNING}
     cross join lateral (
        select min(o.id) as first, max(o.id) as last
          from {{log}} o
         where o.xid = running.xid and o.id > $2 and o.id <= $8) ids""",
    page=f"""
    select l.*
      from {_RUNNING}
     cross join lateral (
        select {_COLUMNS}
          from {{log}} o
         where o.xid = running.xid and o.id >= bounds.first and o.id < bounds.first + $6
           and o.id <= $8 and o.lane = $1 and {_TOPICS}
         order by o.id limit $3) l
     order by l.id limit $3""",
)
"""Rows at or below the head ($8) whose transactions were running when the base was taken."""

# Not min(id) and max(id): of a correlated query, stale statistics make them read all rows.
_STRETCH = """
 cross join lateral (
    select o.id from {{log}} o where {which} order by o.id limit 1) first
 cross join lateral (
    select o.id from {{log}} o where {which} order by o.id desc limit 1) last
 cross join lateral (
    select {late}, {of}, o.lane, o.xid::text::bigint, last.id >= first.id + $4, {columns}
      from {{log}} o
     where {which} and o.id >= first.id and o.id < first.id + $4
     order by o.id limit $3) r"""

_FRESH_AHEAD = _STRETCH.format(
    late="false",
    of="lanes.lane::bigint",
    which="o.lane = lanes.lane and o.id > lanes.head",
    columns=_COLUMNS,
)
_LATE_AHEAD = _STRETCH.format(
    late="true",
    of="running.xid::text::bigint",
    # The cast keeps the planner from also collecting all rows of the lanes, by their index.
    which="o.xid = running.xid and o.lane::int = any($1::int[])",
    columns=_COLUMNS,
)

SURVEY = f"""
select w.*, r.*
  from ({WINDOW}) w
  left join (
    select r.* from unnest($1::int[], $2::bigint[]) as lanes(lane, head) {_FRESH_AHEAD}
     union all
    select r.* from unnest($5::text[]::xid8[]) as running(xid) {_LATE_AHEAD}
  ) r(late, of, lane, xid, more, {", ".join(Row._fields)}) on true
 order by r.id
"""
"""A window and the first rows of all lanes in it, in one statement and so in one snapshot: a row is
visible here exactly if it is visible in the window's end. Each lane, and each transaction that was
running, has a stretch of its own; `of` says whose, `more` that it goes on."""
