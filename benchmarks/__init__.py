"""Measurements, one file a question: ``python -m benchmarks NAME --json FILE``."""
