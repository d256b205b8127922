"""State as Arrow tables and Parquet files, for people, other backends and later versions."""
