-- Does nothing. Servers refuse a script if its caller may not read and write each of its keys: this
-- one asks whether that is so.
--
-- KEYS     the keys

return 'ok'
