"""The bodies of the commands: call one verb of the layer below, hand its result to render, give the exit code."""
