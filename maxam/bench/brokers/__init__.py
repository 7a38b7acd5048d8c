"""The brokers that the load drives, each started in a folder of its own on 127.0.0.1 and ended after use."""
