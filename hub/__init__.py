"""Folders in the forms in which Hugging Face's hub serves kernels and decoding loops."""
