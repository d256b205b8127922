"""The parts that sinks are built with: staged rows, commit tokens, payloads and checks of tables."""
