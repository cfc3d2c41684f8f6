"""The right to run one effect: who holds it, until when, and what came of it."""
