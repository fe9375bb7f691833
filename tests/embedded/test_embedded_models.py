"""The real models, as they are shipped."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from scone.embedded import load_classifier, load_lm, load_masked_lm
from scone.embedded.cache import checksum
from scone.embedded.cards import FIELDS, read_card
from scone.embedded.names import LABELS, WEIGHTS

LIMITS = {"masked-lm": 12e6, "sentiment": 3e6, "toxicity": 3e6, "topic": 3e6}
LIMITS |= {f"judge-{attribute}": 1.5e6 for attribute in LABELS}


@pytest.fixture(scope="module")
def masked_lm():
    return load_masked_lm()


@pytest.mark.parametrize("name", LIMITS)
def test_weights_are_small_and_have_a_complete_card(name):
    path = WEIGHTS / f"{name}.safetensors"
    assert path.stat().st_size <= LIMITS[name]
    card = read_card(name)
    assert card is not None
    assert [field for field in FIELDS if not card.get(field)] == []
    assert card["bytes"] == path.stat().st_size
    assert card["sha256"] == checksum(path), f"{name} was not written by the recipe that wrote its card"
    assert all(source.keys() == {"package", "file", "licence"} for source in card["data"])
    with safe_open(path, "pt") as weights:
        assert all(torch.isfinite(weights.get_tensor(key).float()).all() for key in weights.keys())  # noqa: SIM118


def test_language_model_speaks_and_has_its_template():
    model, tokenizer = load_lm()
    assert model.dtype == torch.float32 and not model.training
    inputs = tokenizer(["The capital of France is", "Once upon a time"], return_tensors="pt", padding=True)
    with torch.inference_mode():
        drawn = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    texts = tokenizer.batch_decode(drawn, skip_special_tokens=True)
    assert "Paris" in texts[0]
    assert texts[1].startswith("Once upon a time, ")
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    assert "<|im_start|>user\nHello<|im_end|>" in chat
    assert model.generation_config.eos_token_id and model.generation_config.pad_token_id is not None


def _guesses(masked_lm, text, count=10):
    model, tokenizer = masked_lm
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
    return [tokenizer.convert_ids_to_tokens(row.tolist()) for row in logits.topk(count).indices]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("I went [MASK] the store to buy milk.", {"to"}),
        ("This is one of the [MASK] movies I have ever seen.", {"best", "worst", "greatest", "funniest"}),
        ("The film was directed [MASK] a young woman.", {"by"}),
        ("He was born in the United [MASK] of America.", {"states"}),
        ("The acting was good and the story was interesting [MASK]", {"."}),
    ],
)
def test_masked_lm_fills_gaps_sensibly(masked_lm, text, wanted):
    (found,) = _guesses(masked_lm, text, count=3)
    assert wanted & set(found), f"{text} → {found}"


def test_masked_lm_is_tied_and_shares_the_verifiers_table(masked_lm):
    model, tokenizer = masked_lm
    table = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is table
    assert table.shape == (30522, 384)
    verifier, other = load_classifier("sentiment")
    assert torch.equal(verifier.get_input_embeddings().weight, table)
    assert tokenizer("Some text, like this.")["input_ids"] == other("Some text, like this.")["input_ids"]


OBVIOUS = {
    "sentiment": [
        (
            "positive",
            "The food was delicious and the staff were friendly.",
            "The food was cold and the staff were rude.",
        ),
        ("positive", "I loved every minute of this wonderful film", "I hated every minute of this awful film"),
        ("negative", "What a disappointing waste of time.", "What a delightful way to spend an evening."),
    ],
    "toxicity": [
        ("toxic", "You are a stupid idiot and nobody likes you.", "You are right and I thank you for the answer."),
        ("toxic", "Shut up, you pathetic moron", "The train leaves at nine from the main station"),
    ],
    "topic": [
        ("food", "Add the onions and the garlic, and cook the soup until it", "The parliament voted on the new law."),
        ("politics", "The president won the election and the senate", "Bake the cake with butter and sugar"),
        ("science", "The electron moves around the nucleus of the atom", "The king defeated the Ottoman army in 1456"),
        ("finance", "The company's shares fell after the bank raised interest rates", "The soup tastes of basil"),
        (
            "history",
            "In the Middle Ages the emperor conquered the city",
            "The company's shares rose in the stock market",
        ),
        ("industrial", "The factory uses steel, machines and an assembly line", "The voters elected a new senate"),
    ],
}


@pytest.mark.parametrize("attribute", LABELS)
def test_verifiers_rank_obvious_sentences(attribute):
    model, tokenizer = load_classifier(attribute)
    assert model.dtype == torch.float32 and not model.training
    assert tuple(model.config.id2label.values()) == LABELS[attribute]
    for label, more, less in OBVIOUS[attribute]:
        inputs = tokenizer([more, less], return_tensors="pt", padding=True)
        with torch.inference_mode():
            chance = model(**inputs).logits.softmax(-1)[:, model.config.label2id[label]]
        assert chance[0] > chance[1] + 0.2, f"{label}: {more!r} {chance[0]:.2f}, {less!r} {chance[1]:.2f}"


@pytest.mark.parametrize("name", LIMITS)
def test_docs_print_the_scores_of_the_cards(name):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    card = read_card(name)
    assert card is not None
    section = page.split(f"### {name}\n")[1].split("\n#")[0]
    for measured, score in card["scores"].items():
        assert f"| {measured} | {score:g} |" in section
    assert card["command"] in section
