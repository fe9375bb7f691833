"""Recipes that train the embedded masked LM, verifiers and judges: `python -m recipes`."""
