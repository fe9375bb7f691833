"""Engines inside other people's tools: the harness of lm-eval, and genlm-control's particle filters."""
