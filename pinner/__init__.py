"""Reproducible deployments of language models served with SGLang."""

__version__ = "0.1.0"
