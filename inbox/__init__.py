"""One effect per event, command, request and call."""
