-- Whose tables these are, how many lanes they have, and the highest lane that has rows.
select (select name from {meta} limit 1) as name,
       (select lanes from {meta} limit 1) as lanes,
       (select max(lane) from {log}) as highest
