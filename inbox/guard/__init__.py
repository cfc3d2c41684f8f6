"""`@idempotent`: the same call has one effect and one answer."""
