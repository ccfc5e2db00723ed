"""Errors, settings, types, the manifest and the noise specification, used by all other packages."""
