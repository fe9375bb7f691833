import numpy as np
import pytest

from scone.embedded.names import LABELS
from scone.errors import InputError, LabelError
from scone.evaluate.judges import BUCKETS, BagOfWords, Mean, buckets, load_judge

PAIRS = {
    ("sentiment", "positive"): (
        "A wonderful and funny film, I loved it.",
        "A boring mess, the worst film of the year.",
    ),
    ("sentiment", "negative"): ("The service was awful and slow.", "The service was excellent and friendly."),
    ("toxicity", "toxic"): ("You are an idiot, shut up you moron.", "Thank you for the interesting article."),
    ("topic", "food"): ("Fresh bread with cheese, butter and a cup of coffee", "The parliament passed a law"),
    ("topic", "politics"): ("The government and the parliament held an election", "Fresh bread with cheese"),
    ("topic", "science"): ("The theory of quantum physics and the electron", "The emperor and his ancient army"),
}


@pytest.mark.parametrize(("attribute", "target"), PAIRS)
def test_judges_rank_obvious_texts(attribute, target):
    more, less = load_judge(attribute).score(list(PAIRS[attribute, target]), target)
    assert 0 <= less < more <= 1
    assert more - less > 0.15


@pytest.mark.parametrize("attribute", LABELS)
def test_scores_of_all_labels_sum_to_one(attribute):
    judge = load_judge(attribute)
    texts = ["The bank raised its rates.", "", "?!", "word " * 500]
    total = sum(judge.score(texts, label) for label in LABELS[attribute])
    np.testing.assert_allclose(total, 1.0, atol=1e-6)
    assert judge.score([], LABELS[attribute][0]).shape == (0,)
    assert judge.name


def test_a_judge_refuses_what_it_does_not_know():
    with pytest.raises(InputError, match="'mood'"):
        load_judge("mood")
    with pytest.raises(LabelError, match="politics, finance, science, food, history, industrial, got 'sport'"):
        load_judge("topic").score(["x"], "sport")


def test_buckets_are_stable_and_know_pairs():
    assert buckets("good film").tolist() == buckets("Good  FILM").tolist()
    assert len(buckets("good film")) == 3
    assert set(buckets("film good")) != set(buckets("good film"))
    assert buckets("good film").max() < BUCKETS


def test_bag_of_words_is_a_softmax_of_mean_weights():
    weight = np.zeros((BUCKETS, 2), dtype=np.float32)
    weight[buckets("good")] = [[0.0, 2.0]]
    judge = BagOfWords(("no", "yes"), weight, np.zeros(2, dtype=np.float32))
    expected = 1 / (1 + np.exp(-2 / np.sqrt(3)))
    np.testing.assert_allclose(judge.score(["good film", "film"], "yes"), [expected, 0.5], rtol=1e-6)
    np.testing.assert_allclose(Mean(judge, judge).score(["good film"], "yes"), [expected], rtol=1e-6)
