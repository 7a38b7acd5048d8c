"""The crash-safe record of everything accepted: Avro container segments and snapshots."""
