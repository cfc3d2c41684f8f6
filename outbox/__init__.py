"""Write events in the same SQLAlchemy transaction as your business changes."""
