"""The texts and labels of each verifier, split by document.

A split is one of `train` (the verifiers learn from it), `judge` (the independent judges do), `validation` (calibration)
and `test` (what the cards report).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from recipes import text
from recipes.classifier import Example, Task
from recipes.written import written
from scone.embedded.names import LABELS

Groups = dict[str, list[Example]]


def _one_hot(label: int, classes: int) -> tuple[float, ...]:
    return tuple(float(index == label) for index in range(classes))


# --- sentiment -----------------------------------------------------------------------------------------------------


def sentiment_examples(split: str) -> Groups:
    """Critics' sentences, sentences that people rated, and the beginnings and ends of users' reviews."""
    groups: Groups = {"critic": [], "rated": [], "review": []}
    for review in text.reviews():
        if text.split_of(review.text) != split:
            continue
        target = _one_hot(review.label, 2)
        if review.origin == "sentence":
            groups["critic"].append(Example(review.text, target))
        else:
            groups["review"].extend(Example(part, target) for part in _excerpts(review.text))
    for sentence, rating, _ in text.rated_sentences():
        if text.split_of(sentence) == split and sentence:
            positive = 1.0 / (1.0 + math.exp(-2.0 * rating))
            groups["rated"].append(Example(sentence, (1.0 - positive, positive)))
    return groups


def _excerpts(review: str) -> Iterable[str]:
    """Where a review says what its writer thinks: at its beginning and at its end."""
    parts = text.sentences(review)
    yield " ".join(parts[:2])
    if len(parts) > 3:
        yield " ".join(parts[-2:])


def clear(examples: Iterable[Example]) -> list[Example]:
    """Those on whose polarity people agree: their mean rating is at least a point from neutral, on a scale of four."""
    return [example for example in examples if max(example.target) > 0.88]


# --- toxicity ------------------------------------------------------------------------------------------------------


def toxicity_examples(split: str) -> Groups:
    """Comments with and without insults, and sentences of articles and reviews that insult nobody present."""
    groups: Groups = {"toxic": [], "clean": [], "other": []}
    for comment in text.comments():
        if text.split_of(comment.text) == split:
            groups["toxic" if comment.label else "clean"].append(Example(comment.text, _one_hot(comment.label, 2)))
    for review in text.reviews():
        if review.origin == "sentence" and text.split_of(review.text) == split:
            groups["other"].append(Example(review.text, _one_hot(0, 2)))
    for article in text.wikipedia():
        if text.split_of(article.title) == split:
            groups["other"].append(Example(" ".join(text.sentences(article.paragraphs[0])[:2]), _one_hot(0, 2)))
    return groups


# --- topic ---------------------------------------------------------------------------------------------------------

CATEGORIES = {
    "politics": r"politic|government|election|parliament|prime minister|legislat|democra|constitution|diploma",
    "finance": r"econom|financ|\bbanks?\b|banking|business|currenc|accounting|market|invest|taxation|insurance|\bstock|money",
    "science": r"scien|physic|chemi|biolog|mathemat|astronom|comput|software|electron|genetic|algorithm|quantum|geolog",
    "food": r"food|cuisine|drink|beverage|dishes|cooking|fruit|vegetable|wine|beer|cheese|coffee|spice|restaurant|bread|meat",
    "history": r"histor|ancient|\bwars\b|\bbattles\b|empire|medieval|dynast|emperor|civilization|archaeolog",
    "industrial": r"industr|manufactur|engineering|mining|steel|textile|machine|automo|\bconstruction|metallurg|\btools\b|"
    r"\brail|engines|alloys|vehicles",
}
# people, works, places and creeds have categories of many kinds, and paragraphs that are about something else
UNFIT = re.compile(
    r"births|deaths|people|characters|saints|fiction|films|novels|music|albums|games?\b|television|literar|dance|"
    r"cities|islands|pseudoscience|social science|cryptid|legend|philosoph|religi|crim|customs|fighting|vitamin"
)
PARAGRAPHS_PER_ARTICLE, WORDS = 3, 40
PARAGRAPHS_FOR_THE_JUDGE = 60  # a bag of words knows nothing beforehand, and learns from more of each article


def topic_of(categories: Iterable[str]) -> str | None:
    """The one topic to which an article's categories point; None when they point to none or to several.

    >>> topic_of(["Cheeses", "Italian cuisine"]), topic_of(["Ancient Roman cuisine"])
    ('food', None)
    """
    names = [name.lower().replace("_", " ") for name in categories]
    if any(UNFIT.search(name) for name in names):
        return None
    hits = [topic for topic, pattern in CATEGORIES.items() if any(re.search(pattern, name) for name in names)]
    return hits[0] if len(hits) == 1 else None


def topic_examples(split: str) -> Groups:
    """Paragraphs of articles (`wikipedia`) and of the language model (`written`), by topic and origin."""
    labels = LABELS["topic"]
    groups: Groups = {f"{label} {origin}": [] for label in labels for origin in ("wikipedia", "written")}
    for article in text.wikipedia():
        topic = topic_of(article.categories)
        if topic and text.split_of(article.title) == split:
            target = _one_hot(labels.index(topic), len(labels))
            group = groups[f"{topic} wikipedia"]
            count = PARAGRAPHS_FOR_THE_JUDGE if split == "judge" else PARAGRAPHS_PER_ARTICLE
            begun = [" ".join(paragraph.split()[:WORDS]) for paragraph in article.paragraphs[:count]]
            group.extend(Example(paragraph, target) for paragraph in begun)
    for topic, subject, paragraph in written():
        if text.split_of(subject) == split:
            groups[f"{topic} written"].append(Example(paragraph, _one_hot(labels.index(topic), len(labels))))
    return groups


# --- the tasks -----------------------------------------------------------------------------------------------------

EXAMPLES: dict[str, Callable[[str], Groups]] = {
    "sentiment": sentiment_examples,
    "toxicity": toxicity_examples,
    "topic": topic_examples,
}


def held_out(name: str, split: str) -> dict[str, list[Example]]:
    """The texts of a held-out split on which a verifier is measured, by kind."""
    groups = EXAMPLES[name](split)
    if name == "sentiment":
        sentences = clear(groups["rated"])
        short = [example for example in sentences if 5 <= len(example.text.split()) <= 25]
        return {"sentences": sentences, "short": short, "critics": groups["critic"], "reviews": groups["review"][::6]}
    if name == "toxicity":
        return {"comments": groups["toxic"] + groups["clean"], "other": groups["other"][-300:]}
    paragraphs = [example for group in groups.values() for example in group]
    return {"paragraphs": paragraphs} | {
        origin: [example for name, group in groups.items() if name.endswith(origin) for example in group]
        for origin in ("wikipedia", "written")
    }


def task(name: str) -> Task:
    """A verifier's training and validation texts."""
    held = held_out(name, "validation")
    validation = held["sentences"] + held["critics"] if name == "sentiment" else next(iter(held.values()))
    groups: Groups = {}
    for group, examples in EXAMPLES[name]("train").items():
        groups.setdefault(group.split()[0], []).extend(examples)  # a topic's articles and the LM's paragraphs together
    return Task(name, LABELS[name], groups, validation)
