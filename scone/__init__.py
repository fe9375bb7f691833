"""SConE: semantic control of language models."""
