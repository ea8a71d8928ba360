"""Tuning: which variant is fastest for a problem, measured on a GPU, and kept as records; begin at ``session.tune``."""
