"""Tools around compiling and training, one per module; heavy libraries are imported lazily."""
