"""The read API of the schema registry: its own routes and those of Confluent's."""
