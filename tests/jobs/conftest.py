"""A job's prompts, and an engine for them."""

from __future__ import annotations

import pytest
from fixed_words import FakeEngine


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def prompts(tmp_path):
    """Eleven lines, of which one is blank, one is no JSON, one too long for the LM and one a conversation."""
    lines = [f'{{"prompt": "Prompt {i}", "id": "p{i}"}}' for i in range(1, 12)]
    lines[1] = '"Käse"'
    lines[3] = ""
    lines[5] = "{broken"
    lines[7] = '{"prompt": "too long", "id": 8}'
    lines[9] = '{"messages": [{"role": "user", "content": "Hello"}]}'
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
