"""Tools around compiling and training: each module is one, and loads what it needs where it needs it."""
