"""The server software that pinner can start."""
