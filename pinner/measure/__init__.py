"""Measuring: load, evidence, records, statistics."""
