"""The stages: every module here is loaded, and each `@stage` in it is run."""
