"""Reproducible deployments of language models served with SGLang."""
