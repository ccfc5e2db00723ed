"""Held-out loss of MeBP, P-RGE and MeZO against steps, FLOPs and time."""
