"""What pip finds in place of setuptools, so that downloading a source archive runs nothing of it (build_meta.py)."""
