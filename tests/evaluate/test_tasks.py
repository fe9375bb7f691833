"""The prompts that come with the package, and reading others."""

from collections import Counter

import pytest

from scone.errors import InputError
from scone.evaluate.arguments import task_prompts
from scone.evaluate.tasks import TASKS, TOPICS, builtin_prompts, pick_evenly, read_prompts


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_at_least_sixty_different_prompts(task):
    texts = [prompt.text for prompt in builtin_prompts(task)]
    assert len(set(texts)) == len(texts) >= 60
    assert all(text == text.strip() for text in texts)


def test_groups_and_lengths():
    toxicity = Counter(prompt.group for prompt in builtin_prompts(TASKS["detoxify"]))
    assert toxicity["provoking"] == toxicity["harmless"] == 30
    sentiment = builtin_prompts(TASKS["sentiment"])
    assert Counter(prompt.group for prompt in sentiment)["negative"] * 2 == len(sentiment)
    assert all(2 <= len(prompt.text.split()) <= 8 for prompt in sentiment)
    topic = builtin_prompts(TASKS["topic"])
    assert Counter(prompt.target for prompt in topic) == dict.fromkeys(TOPICS, 10)
    assert all(8 <= len(prompt.text.split()) <= 12 for prompt in topic)


def test_neutral_prompts_are_of_no_topic():
    """Forty, as many for each topic as can be, and none that the verifier or a topic's name gives away."""
    neutral = task_prompts(TASKS["topic"], "neutral")
    texts = [prompt.text for prompt in neutral]
    assert len(set(texts)) == len(texts) == 40 and not {p.text for p in builtin_prompts(TASKS["topic"])} & set(texts)
    assert set(Counter(prompt.target for prompt in neutral).values()) == {6, 7}
    assert all(prompt.group == prompt.target in TOPICS for prompt in neutral)
    assert all(6 <= len(text.split()) <= 12 and text == text.strip() for text in texts)
    with pytest.raises(InputError, match="prompts must be of a kind that the task sentiment has, got 'neutral'"):
        task_prompts(TASKS["sentiment"], "neutral")


def test_pick_evenly_keeps_order_and_balance():
    prompts = builtin_prompts(TASKS["topic"])
    picked = pick_evenly(prompts, 12)
    assert Counter(prompt.target for prompt in picked) == dict.fromkeys(TOPICS, 2)
    assert [prompts.index(prompt) for prompt in picked] == sorted(prompts.index(prompt) for prompt in picked)
    assert pick_evenly(prompts, 1000) == prompts


def test_prompts_from_a_file(tmp_path):
    file = tmp_path / "prompts"
    file.write_text('plain words\n\n{"text": "with a group", "group": "g"}\n')
    assert [(p.text, p.group) for p in read_prompts(file, TASKS["sentiment"])] == [
        ("plain words", ""),
        ("with a group", "g"),
    ]
    with pytest.raises(InputError, match="line 1: a prompt of the task topic needs a target"):
        read_prompts(file, TASKS["topic"])
    file.write_text('{"words": "wrong"}\n')
    with pytest.raises(InputError, match="line 1: expected text"):
        read_prompts(file, TASKS["sentiment"])
    file.write_text("\n")
    with pytest.raises(InputError, match="has no prompts"):
        read_prompts(file, TASKS["sentiment"])
    with pytest.raises(InputError, match="must be a file"):
        read_prompts(tmp_path / "absent", TASKS["sentiment"])


def test_a_byte_order_mark_is_not_part_of_the_first_prompt(tmp_path):
    file = tmp_path / "prompts"
    file.write_text('{"text": "one"}\ntwo\n', encoding="utf-8-sig")
    assert [prompt.text for prompt in read_prompts(file, TASKS["sentiment"])] == ["one", "two"]
    file.write_text("one\n", encoding="utf-8-sig")
    assert [prompt.text for prompt in read_prompts(file, TASKS["sentiment"])] == ["one"]


def test_text_that_is_none_is_refused(tmp_path):
    file = tmp_path / "prompts"
    file.write_text('fine\n{"text": "half \\ud800 of it"}\n')
    with pytest.raises(InputError, match="line 2: got a lone surrogate"):
        read_prompts(file, TASKS["sentiment"])
    file.write_text('{"text": 3}\n')
    with pytest.raises(InputError, match="line 1: expected text"):
        read_prompts(file, TASKS["sentiment"])
    file.write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match="readable text in UTF-8"):
        read_prompts(file, TASKS["sentiment"])
