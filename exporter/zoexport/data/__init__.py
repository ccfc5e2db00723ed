"""Training data: other formats to the JSON Lines of a session, templates and checks (docs/cli.md)."""
