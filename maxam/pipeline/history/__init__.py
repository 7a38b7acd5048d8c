"""The typed history: each message type as a Parquet table."""
