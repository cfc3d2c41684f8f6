"""The demo: a small shop whose events are relayed and handled, while processes are killed."""
