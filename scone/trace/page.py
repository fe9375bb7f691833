"""The page: its three files and the data put into one that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.resources import files

__all__ = ["page"]


def page(data: str, title: str, texts: Sequence[str]) -> str:
    """The page for JSON data; `texts` are what is read where scripts are off.

    Whatever models wrote is data: it reaches the page as JSON, is set as text, and the page runs no script but its own.
    """
    style, script = _file("page.css"), _file("page.js")
    filled = {
        "POLICY": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "PLAIN": "\n".join(f"<p>{html.escape(text)}</p>" for text in texts),
        "DATA": data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
    }
    parts = _file("page.html").split("{{")
    rest = (part.partition("}}") for part in parts[1:])  # in one pass: what is filled in is not looked at again
    return parts[0] + "".join(filled[name] + after for name, _, after in rest)


def _file(name: str) -> str:
    return files("scone.trace").joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"
