-- Rows at or below the head whose transactions were running when the position was taken, and have
-- committed since. $1: per range its part, lane, transactions, bounds and topics; $2: how many rows
-- to look at per transaction.
select p.part,
       count(*) filter (where r.wanted) as found,
       max(r.number) as most,
       clock_timestamp() - min(r.created_at) filter (where r.wanted) as oldest
  from json_to_recordset($1::json)
       as p(part int, lane int, low bigint, high bigint, xids text[], "only" text, "without" text[])
 cross join lateral unnest(p.xids::xid8[]) as running(xid)
 cross join lateral (
        select o.created_at,
               (p.only is null or o.topic = p.only) and o.topic <> all(p.without) as wanted,
               row_number() over () as number
          from {log} o
         where o.xid = running.xid and o.id > p.low and o.id <= p.high and o.lane = p.lane
         limit $2) r
 group by p.part
