"""A front: a process that has clients of a gateway, and hands their operations to the gateway for order."""
