"""What a request may ask for: the fields of OpenAI's completions and chats, and those of ours under `scone`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scone.errors import InputError
from scone.prompts import Prompt

__all__ = ["Chat", "Completion", "Control", "Order", "read"]

_LENGTH = 128  # new tokens where a request names no number
_NEUTRAL: dict[str, Any] = {  # what we do not do, and the value that asks for nothing
    "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "logprobs": 0, "top_logprobs": 0, "echo": False,
    "suffix": "", "tools": [], "tool_choice": "none", "functions": [], "response_format": {"type": "text"},
}  # fmt: skip


class Control(BaseModel):
    """The extension field `scone`: what the text should be, and what happens where it is not."""

    model_config = ConfigDict(extra="forbid")

    attribute: str | list[str] | None = None  # NAME or NAME=STRENGTH; None: those the server was started with
    avoid: str | list[str] | None = None
    strength: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1, le=1000)
    threshold: float = Field(default=0.5, ge=0, le=1)
    verdict: Literal["report", "withhold"] = "report"
    hold_back: int = Field(default=8, ge=1, le=256)  # tokens that a stream lags behind where it may have to withhold


class _Common(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int = Field(default=1, ge=1)
    best_of: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    scone: Control = Control()

    @model_validator(mode="after")
    def _only_what_we_do(self) -> Any:
        for name, value in (self.model_extra or {}).items():
            if name in _NEUTRAL and value is not None and value != _NEUTRAL[name] and value:
                raise ValueError(f"{name} is not supported here, got {value!r}")
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of must be n={self.n} or left out, got {self.best_of}")
        return self


class Completion(_Common):
    """The body of /v1/completions."""

    prompt: str | list[str]


class Chat(_Common):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Order:
    """A request, understood."""

    prompts: Sequence[Prompt]
    n: int
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...]
    temperature: float | None
    top_p: float | None
    control: Control


def read(body: Completion | Chat, *, seed: int) -> Order:
    """What a body asks for; `seed` where it names none."""
    if isinstance(body, Chat):
        prompts: list[Prompt] = [[_message(message) for message in body.messages]]
        limit = body.max_completion_tokens or body.max_tokens
    else:
        prompts, limit = [body.prompt] if isinstance(body.prompt, str) else list(body.prompt), body.max_tokens
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not prompts or not all(stop):
        raise InputError(
            f"{'stop' if prompts else 'prompt'} must be non-empty strings, got {stop if prompts else prompts}"
        )
    return Order(
        prompts=prompts,
        n=body.n,
        max_new_tokens=limit or _LENGTH,
        seed=seed if body.seed is None else body.seed,
        stop=tuple(stop),
        temperature=body.temperature,
        top_p=body.top_p,
        control=body.scone,
    )


def _message(message: dict[str, Any]) -> dict[str, str]:
    """A message with its text in one piece."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return {"role": str(message.get("role", "user")), "content": content}
