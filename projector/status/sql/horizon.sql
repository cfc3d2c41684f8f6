-- What keeps old row versions from being removed, oldest first: transactions of this database
-- (and, through replication, of standbys), prepared ones, and replication slots.
select * from (
  select 'session' as kind,
         pid,
         coalesce(nullif(application_name, ''), usename, backend_type) as name,
         state,
         left(regexp_replace(query, '\s+', ' ', 'g'), 80) as query,
         clock_timestamp() - xact_start as age,
         greatest(age(backend_xid), age(backend_xmin)) as xids
    from pg_stat_activity
   where (datname = current_database() or datname is null)
     and (backend_xid is not null or backend_xmin is not null)
     and pid <> pg_backend_pid()
     and backend_type <> 'autovacuum worker' -- the horizon passes over them
  union all
  select 'prepared', null, gid, 'prepared', null, clock_timestamp() - prepared, age(transaction)
    from pg_prepared_xacts
   where database = current_database()
  union all
  select 'slot', active_pid, slot_name, case when active then 'active' else 'inactive' end, null,
         null, greatest(age(xmin), age(catalog_xmin))
    from pg_replication_slots
   where xmin is not null or catalog_xmin is not null
) holders
order by xids desc nulls last, age desc nulls last
limit $1
