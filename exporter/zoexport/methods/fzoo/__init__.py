"""FZOO: one-sided zeroth-order LoRA-FA along random signs, with steps over the deviation of the losses."""
