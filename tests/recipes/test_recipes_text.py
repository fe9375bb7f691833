import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from recipes import tasks, text
from recipes.classifier import break_off
from recipes.tokens import CLS, MASK, SEP, Windows, corrupt, tokenise

MARKUP = """{{Infobox|name=Cheddar|{{nested|x}}}}
'''Cheddar cheese''' is a hard [[cheese]] that was first made in the village of [[Cheddar, Somerset|Cheddar]].<ref>A
book</ref> It is eaten [http://example.org all over the world] &amp;mdash; with bread, with fruit and on its own.

== Making ==
* a list item which is long enough to be prose but is not, since it is a list item that begins with a star.
{| class="wikitable"
| cell || cell
|}
[[Image:cheddar.jpg|thumb|A [[cheese]] in a shop]]
Too short.
[[Category:Cheeses]] [[Category:English cuisine|Cheddar]] [[de:Cheddar]]"""


def test_article_is_prose_without_markup():
    article = text.parse_article("Cheddar cheese", MARKUP)
    assert article is not None
    assert article.categories == ("Cheeses", "English cuisine")
    (paragraph,) = article.paragraphs
    assert paragraph.startswith("Cheddar cheese is a hard cheese that was first made in the village of Cheddar.")
    assert paragraph.endswith("with bread, with fruit and on its own.")
    assert not set("[]{}|<>=") & set(paragraph)


@pytest.mark.parametrize(
    ("title", "markup"), [("A", "#REDIRECT [[B]]"), ("Talk:A", MARKUP), ("List of cheeses", MARKUP), ("A", "Short.")]
)
def test_pages_that_are_no_articles(title, markup):
    assert text.parse_article(title, markup) is None


def test_split_depends_on_the_letters_alone():
    assert text.split_of("It's a GREAT film .") == text.split_of("Its a great film.")
    counts = {name: 0 for name in ("train", "judge", "validation", "test")}
    for number in range(4000):
        counts[text.split_of(f"document number {number}")] += 1
    assert counts["train"] == pytest.approx(2400, abs=150)
    assert counts["judge"] == pytest.approx(1200, abs=150)
    assert counts["test"] == pytest.approx(200, abs=60)


def test_comments_are_unescaped():
    assert text._unescape_comment('"one\\\\xa0two\\\\n\\\\nthree"') == "one two three"
    assert text._unescape_comment('"caf\\xc3\\xa9\\xc2\\xa0noir"') == "café noir"
    assert text._unescape_comment("don\u2019t") == "don\u2019t"


def test_topics_come_from_categories():
    assert tasks.topic_of(["Cheeses", "English cuisine"]) == "food"
    assert tasks.topic_of(["Economy of Chad", "Politics of Chad"]) is None
    assert tasks.topic_of(["Italian cooks", "1970 births"]) is None
    assert tasks.topic_of([]) is None


def test_broken_off_texts_are_beginnings():
    random = np.random.default_rng(0)
    words = " ".join(f"w{index}" for index in range(20))
    cut = [break_off(words, random, chance=1.0) for _ in range(50)]
    assert all(words.startswith(part) and len(part.split()) >= 6 for part in cut)
    assert len(set(cut)) > 5
    assert break_off(words, random, chance=0.0) == words
    assert break_off("too short", random, chance=1.0) == "too short"


@pytest.fixture
def store():
    vocabulary = {"[UNK]": 0} | {f"w{index}": 1000 + index for index in range(500)} | {".": 1900}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    random = np.random.default_rng(0)
    documents = []
    for _ in range(60):
        sizes = random.integers(4, 18, size=8)
        documents.append(
            [
                " ".join([f"w{word}" for word in random.integers(0, 500, size=size)]).capitalize() + " ."
                for size in sizes
            ]
        )
    return tokenise(documents, tokenizer)


def test_windows_stay_within_documents_and_end_where_they_should(store):
    windows, random = Windows(store, shortest=4, longest=60), np.random.default_rng(1)
    whole = windows.whole_sentences(40, 22, random)
    assert whole.shape == (40, 22)
    assert (whole[:, 0] == CLS).all() and (whole[:, -1] == SEP).all()
    assert (whole[:, -2] == 1900).all(), "a run of whole sentences ends with a full stop"
    cut = windows.cut_off(40, 30, random)
    assert cut.shape == (40, 30)
    starts = {tuple(store.ids[begin : begin + 5]) for begin in store.starts[:-1]}
    assert all(tuple(row[1:6]) in starts for row in cut), "a window begins with a sentence"
    ends = dict(zip(store.starts[:-1].tolist(), store.ends.tolist()))
    assert max(ends.values()) == len(store.ids)


def test_corruption_hides_what_it_asks_for_and_nothing_else(store):
    windows, random = Windows(store, shortest=4, longest=60), np.random.default_rng(2)
    window = windows.cut_off(200, 40, random)
    seen, chosen = corrupt(window, random)
    assert (seen[~chosen] == window[~chosen]).all()
    assert not chosen[:, 0].any() and not chosen[:, -1].any()
    assert 0.15 < chosen.mean() < 0.35
    hidden = (seen[chosen] == MASK).mean()
    assert 0.8 < hidden < 0.9
    rates = chosen.mean(axis=1)
    assert rates.max() > 0.4, "some rows lose close to half of their tokens"
