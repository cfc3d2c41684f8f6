"""Relays committed events to Redis Streams."""
