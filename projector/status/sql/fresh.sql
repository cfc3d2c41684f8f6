-- Rows above everything published. $1: per part its number, lane, id to start above and topics;
-- $2: how many rows to look at. Topics are told apart after the limit, so that a rare one does not
-- cost a scan of the whole lane.
select p.part,
       count(r.id) as scanned,
       count(r.id) filter (where r.wanted) as found,
       min(r.id) as first,
       max(r.id) as last,
       (select max(id) from {log} where lane = p.lane) as top,
       clock_timestamp() - min(r.created_at) filter (where r.wanted) as oldest,
       (select clock_timestamp() - created_at from {log} where lane = p.lane and id = p.above)
         as position_age
  from json_to_recordset($1::json)
       as p(part int, lane int, above bigint, "only" text, "without" text[])
  left join lateral (
        select o.id, o.created_at,
               (p.only is null or o.topic = p.only) and o.topic <> all(p.without) as wanted
          from {log} o
         where o.lane = p.lane and o.id > p.above
         order by o.id limit $2) r on true
 group by p.part, p.lane, p.above
