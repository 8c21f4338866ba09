"""pocket: a small serving engine with SGLang's surface, for machines without a GPU."""

__version__ = "0.3.0"
