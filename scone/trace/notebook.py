"""What a notebook shows: tables without scripts for a step and for texts, and the page in a frame for a trace."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scone.output import Output, Step
    from scone.trace import Trace

__all__ = ["framed", "summary_of", "table_of"]

_HEIGHT = 640  # pixels: text, curve and ten candidates


def table_of(step: Step) -> str:
    """The candidates of a step."""
    rows = []
    for k, token in enumerate(step.tokens.tolist()):
        piece = html.escape(repr(step.pieces[k])) if step.pieces else str(token)
        judged = step.judged is None or bool(step.judged[k])
        q = f"{float(step.q[k]):.2f}" if judged else f"<i>{float(step.q[k]):.2f}</i>"
        mark = "→ " if k == step.chosen else ""
        p, p_star = float(step.log_p[k].exp()), float(step.log_p_star[k].exp())
        rows.append(f"<td>{mark}<code>{piece}</code></td><td>{p:.3f}</td><td>{q}</td><td>{p_star:.3f}</td>")
    return _table(("candidate", "p", "q", "p*"), rows)


def summary_of(output: Output) -> str:
    """The texts with their scores; `output.trace` shows how they came about."""
    rows = []
    for text, continuation, score, reason in zip(
        output.texts, output.continuations, output.scores.tolist(), output.finish_reasons
    ):
        prompt = text.removesuffix(continuation)
        told = f"<i>{html.escape(prompt)}</i>{html.escape(continuation)}"
        rows.append(
            f"<td style='text-align:left;white-space:pre-wrap'>{told}</td><td>{score:.2f}</td><td>{reason}</td>"
        )
    return _table(("text", "φ", "ended by"), rows)


def framed(trace: Trace) -> str:
    """The page in a frame of its own, so that neither style nor script touches the notebook."""
    source = html.escape(trace.to_html(), quote=True)
    return f'<iframe srcdoc="{source}" style="width:100%;height:{_HEIGHT}px;border:0" sandbox="allow-scripts"></iframe>'


def _table(heads: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"
