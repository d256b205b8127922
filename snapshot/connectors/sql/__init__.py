"""SQL databases: the sinks for PostgreSQL and SQLite."""
