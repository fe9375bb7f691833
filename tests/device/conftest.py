"""Tests on the make-believe device run in a process that has made it up: test_device.py starts that."""

from __future__ import annotations

from tests.makebelieve import native

collect_ignore = [] if native.loaded else ["on_device"]
