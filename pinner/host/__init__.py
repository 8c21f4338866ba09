"""Everything that touches the machine, one effect a module."""
