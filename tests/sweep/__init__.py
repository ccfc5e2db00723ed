"""Random tiny models, each compiled and compared with its method's reference."""
