"""Benchmarks: `python -m bench NAME` runs bench/NAME.py; `pytest bench --benchmark-only` times single calls."""
