"""How maxam comes to a machine: units, samples, bundle, the operator's guide."""
