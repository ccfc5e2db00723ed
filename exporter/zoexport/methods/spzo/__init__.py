"""SPZO: split-perturbation zeroth-order training, FedSPZO's client."""
