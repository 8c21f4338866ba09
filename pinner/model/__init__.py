"""What manifests, locks, observations and drift are: frozen types, no clock, no disk, no network."""
