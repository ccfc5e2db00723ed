"""P-RGE: zeroth-order LoRA-FA inside an inference engine, and its sequential baseline MeZO."""
