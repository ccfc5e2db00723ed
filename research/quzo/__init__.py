"""QuZO's two gradient estimators on a small transformer block."""
