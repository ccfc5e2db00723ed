"""The training graph: capture, checks, interpretation, and zoexport's own operators."""
