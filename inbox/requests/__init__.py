"""Requests over a socket: one effect each, one at a time for a user, in order for an entity."""
