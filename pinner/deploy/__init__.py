"""The verbs from manifest to running server: resolve, materialize, check, launch."""
