"""The experiments: tasks, baselines, metrics, runs that can be resumed, a report, and an audit of the estimate.

    python -m scone.evaluate evaluate sentiment --methods topk10 bon scone --out runs/one
    python -m scone.evaluate report runs/one
    python -m scone.evaluate audit sentiment --out runs/audit

`docs/evaluation.md` explains every table.
"""
