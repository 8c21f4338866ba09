"""A stub of NVML, for tests on machines without GPUs."""
