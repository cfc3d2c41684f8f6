"""Reads streams, and lets each event have one effect: in order per key, with retries, recovery and
dead letters."""
