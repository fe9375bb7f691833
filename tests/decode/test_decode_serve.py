"""The server: what is asked for, who is written with whom, and what clients of OpenAI's own library see."""

from __future__ import annotations

import asyncio
import copy
import json
import queue
import socket
import threading
import time
from urllib.request import urlopen

import openai
import pytest
import tiny
import uvicorn

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import InputError
from scone.lookahead import Expectation, Mix, Nothing
from scone.serve import Steering, build
from scone.serve.desk import Desk, Full
from scone.serve.guard import Guard
from scone.serve.orders import Completion, read


@pytest.fixture(scope="module")
def steering(positive):
    model, tokenizer = tiny.llama()
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    config = SconeConfig(
        particles=1, strength=24.0, min_mass=0, top_k=4, lookahead=Mix(Expectation(tokens=2), Nothing())
    )
    rude = Verifier(*tiny.classifier(seed=7), target="negative")
    return Steering(
        Scone((model, tokenizer), None, positive, config),
        verifiers={"kind": positive, "rude": rude},
        default=["kind"],
        name="tiny",
    )


def order(prompt="the movie was", *, seed=3, max_tokens=6, **fields):
    return read(Completion(prompt=prompt, seed=seed, max_tokens=max_tokens, **fields), seed=0)


def alone(steering, asked, **options):
    """What the engine writes for an order by itself."""
    engine, _ = steering.engine_for(asked)
    return engine.generate(
        asked.prompts,
        max_new_tokens=asked.max_new_tokens,
        seed=asked.seed,
        num_return_sequences=asked.n,
        stop=asked.stop,
        **options,
    )


class Client:
    """Somebody at the desk, who remembers what is told."""

    def __init__(self, desk, asked):
        self.told = queue.Queue()
        self.job = desk.submit(asked, self.told.put)

    def heard(self, texts=1):
        """The texts, once all have ended."""
        pieces, last = [""] * texts, {}
        while len(last) < texts:
            news = self.told.get(timeout=60)
            if isinstance(news, Exception):
                raise news
            pieces[news.index] += news.piece
            if news.finish_reason:
                last[news.index] = news
        return pieces, [last[i] for i in range(texts)]


@pytest.fixture
def desk(steering):
    opened = Desk(steering, batch=8, queue=40)
    yield opened
    opened.close()


@pytest.mark.parametrize("options", [{"verdict": "continuation"}, {"after": "e"}])
def test_what_is_judged_is_as_the_options_say(steering, options):
    """A server's φ is the engine's, by verdict and marker, and a verifier of conversations is told the prompt."""
    talk = Verifier.of_conversation(lambda prompt, replies: [len(r) / (9 + len(str(prompt)) + len(r)) for r in replies])
    own = Steering(
        steering.engine.with_config(**options),
        verifiers={"kind": steering.engine.verifier, "talk": talk},
        default=["kind"],
    )
    desk = Desk(own, batch=4)
    try:
        for names in (["kind"], ["kind", "talk"]):
            asked = order(scone={"attribute": names}, max_tokens=8)
            pieces, (last,) = Client(desk, asked).heard()
            engine = own.engine_for(asked)[0]
            out = engine.generate(asked.prompts, max_new_tokens=8, seed=asked.seed)
            assert pieces == out.continuations
            assert last.phi == pytest.approx(float(out.scores[0]), abs=1e-5)
            assert list(last.scores) == names
    finally:
        desk.close()


# What is asked for


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"scone": {"attribute": "nice"}}, "scone.attribute must be one of positive, negative"),
        ({"scone": {"attribute": "kind=strong"}}, "scone.attribute must have a strength above 0, got 'kind=strong'"),
        ({"scone": {"avoid": ["org/secret-model:bad"]}}, "scone.avoid must be one of"),
        ({"n": 9}, "n must leave at most 8 texts a request, got 9"),
    ],
)
def test_an_order_that_cannot_be_served_is_refused_before_it_waits(desk, fields, named):
    with pytest.raises(InputError, match=named):
        desk.check(order(**fields))


def test_orders_that_ask_for_the_same_share_an_engine(steering):
    first, wishes = steering.engine_for(order())
    assert list(wishes) == ["kind"] and wishes["kind"].strength == 24.0
    assert steering.engine_for(order("other", scone={"attribute": "kind"}))[0] is first
    second, wishes = steering.engine_for(
        order(scone={"attribute": ["kind=3"], "avoid": "rude", "strength": 5, "top_k": 2})
    )
    assert {name: wish.strength for name, wish in wishes.items()} == {"kind": 3.0, "not rude": 5.0}
    assert second.config.top_k == 2 and second.lm is first.lm
    assert steering.engine_for(order(temperature=0.5, top_p=0.9))[0].config.temperature == 0.5


def test_a_default_that_nobody_knows_is_a_mistake(steering):
    with pytest.raises(InputError, match="default must be one of"):
        Steering(steering.engine, default=["nice"])


# Who is written with whom


def test_everybody_gets_the_text_that_he_would_get_alone(desk, steering):
    asked = [order(f"the movie {i}", seed=i, max_tokens=3 + i % 5) for i in range(12)]
    inside = alone(steering, order("the food", max_tokens=12)).continuations[0][4:6]
    stopped = order("the food", max_tokens=12, stop=inside)
    assert alone(steering, stopped).finish_reasons == ["stop"]
    asked += [order("what a", n=2), order("my day", scone={"avoid": "rude"}), stopped]
    clients = [Client(desk, one) for one in asked]
    for one, client in zip(asked, clients):
        expected = alone(steering, one)
        pieces, ends = client.heard(one.n)
        assert pieces == expected.continuations
        assert [end.finish_reason for end in ends] == expected.finish_reasons
        assert [end.phi for end in ends] == pytest.approx(expected.scores.tolist(), abs=1e-4)
    assert desk.metrics.page({}).count('outcome="served"} 15') == 1


def test_a_temperature_of_zero_is_greedy(desk, steering):
    drawn = {
        alone(steering, order(seed=seed, max_tokens=12, scone={"strength": 0.5})).continuations[0] for seed in range(4)
    }
    greedy = order(temperature=0, max_tokens=12, scone={"strength": 0.5})
    expected = alone(steering, greedy, do_sample=False).continuations
    assert len(drawn) > 1 and expected[0] not in drawn
    assert Client(desk, greedy).heard()[0] == expected


def test_a_full_queue_turns_people_away_and_a_client_who_goes_makes_room(steering):
    desk = Desk(steering, batch=1, queue=1)
    try:
        first = Client(desk, order(max_tokens=200))
        first.told.get(timeout=60)  # it is being written
        second = Client(desk, order("second"))
        with pytest.raises(Full, match="the queue is full: 1 requests wait"):
            desk.submit(order("third"), print)
        desk.cancel(second.job)
        second = Client(desk, order("second"))  # the place of who has gone is free again
        desk.cancel(first.job)
        assert second.heard()[0] == alone(steering, order("second")).continuations
        page = desk.metrics.page(desk.gauges())
        assert 'outcome="cancelled"} 2' in page and 'outcome="rejected"} 1' in page and "scone_running_texts 0" in page
        assert first.job.new_tokens < 200
    finally:
        desk.close()


def test_who_fails_fails_alone(desk, steering, monkeypatch):
    wrong = order("wrong", scone={"avoid": "rude"})
    engine, _ = steering.engine_for(wrong)
    monkeypatch.setattr(type(engine.parts), "score_expected", _broken(engine.parts, type(engine.parts).score_expected))
    client, other = Client(desk, wrong), Client(desk, order("right"))
    with pytest.raises(RuntimeError, match="out of order"):
        client.heard()
    assert other.heard()[0] == alone(steering, order("right")).continuations
    assert desk.alive


def _broken(mine, score):
    def scored(parts, *given):
        if parts is mine:
            raise RuntimeError("out of order")
        return score(parts, *given)

    return scored


def test_a_prompt_that_is_too_long_is_told_to_its_client(desk):
    with pytest.raises(InputError, match="prompts must leave room"):
        Client(desk, order("the " * 400)).heard()


# What is shown


def test_a_guard_shows_what_lies_behind_and_gives_up_after_as_many_low_steps():
    guard, text = Guard(threshold=0.5, hold_back=3), ""
    shown = []
    for best in (0.9, 0.2, 0.2, None, 0.9, 0.2, 0.2, 0.4):
        assert not guard.tripped  # a step that is good begins the count anew
        text += "ab"
        shown.append(guard.shown(text, best))
    assert shown == [0, 0, 0, 2, 4, 6, 8, 10]  # always three tokens less than there are
    assert guard.tripped


def test_a_text_that_stays_below_the_threshold_is_withheld(desk, steering):
    asked = order(max_tokens=20, scone={"threshold": 1.0, "verdict": "withhold", "hold_back": 4})
    (piece,), (end,) = Client(desk, asked).heard()
    assert (piece, end.finish_reason) == ("", "content_filter")
    whole = alone(steering, asked).continuations[0]
    late = order(max_tokens=6, scone={"threshold": 1.0, "verdict": "withhold", "hold_back": 16})
    (piece,), (end,) = Client(desk, late).heard()  # it ended before q had been low for long, and φ is too low
    assert (piece, end.finish_reason) == ("", "content_filter")
    fine = order(max_tokens=20, scone={"threshold": 0.0, "verdict": "withhold", "hold_back": 4})
    (piece,), (end,) = Client(desk, fine).heard()
    assert (piece, end.finish_reason) == (whole, "length")


# Over HTTP, with OpenAI's own client


@pytest.fixture(scope="module")
def url(steering):
    """A server that listens on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = build(steering, batch=16, queue=60, max_tokens=300)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as opened:
        yield opened


def test_a_completion(client, steering):
    asked = order(n=2)
    reply = client.completions.create(
        model="tiny",
        prompt="the movie was",
        max_tokens=6,
        seed=3,
        n=2,
        extra_body={"scone": {"attribute": "kind", "threshold": 0.0}},
    )
    expected = alone(steering, asked)
    assert [choice.text for choice in reply.choices] == expected.continuations
    ours = reply.choices[1].scone
    assert ours["phi"] == pytest.approx(float(expected.scores[1]), abs=1e-4) and ours["verdict"] == "pass"
    assert set(ours["scores"]) == {"kind"} and 0 <= ours["q"] <= 1
    assert reply.usage.completion_tokens == sum(map(len, expected.token_ids))
    assert reply.choices[0].finish_reason == expected.finish_reasons[0]


def test_a_chat_whole_and_as_a_stream(client):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "what a day"}], "max_tokens": 6, "seed": 1}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant"
    pieces = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert pieces[-2].choices[0].scone["phi"] == pytest.approx(whole.choices[0].scone["phi"], abs=1e-4)
    assert pieces[-1].usage == whole.usage


def test_fifty_streams_at_once_none_lost_or_mixed(url, steering):
    asked = [order(f"{'the movie' if i % 2 else 'my day'} {i}", seed=i, max_tokens=4 + i % 7) for i in range(50)]

    async def one(client, i):
        stream = await client.completions.create(
            model="tiny", prompt=asked[i].prompts[0], seed=i, max_tokens=asked[i].max_new_tokens, stream=True
        )
        return "".join([piece.choices[0].text async for piece in stream])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
            return await asyncio.gather(*(one(client, i) for i in range(50)))

    assert asyncio.run(all_of_them()) == [alone(steering, each).continuations[0] for each in asked]


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"extra_body": {"scone": {"attribute": "nice"}}}, 400, "scone.attribute must be one of"),
        ({"extra_body": {"scone": {"colour": "red"}}}, 400, "scone.colour"),
        ({"extra_body": {"scone": {"threshold": 2}}}, 400, "scone.threshold"),
        ({"max_tokens": 301}, 400, "max_tokens must be at most 300, got 301"),
        ({"prompt": "the " * 400}, 400, "prompts must leave room"),
        ({"prompt": "the " * 400, "stream": True}, 400, "prompts must leave room"),
        ({"stop": ""}, 400, "stop must be non-empty strings, got ['']"),
        ({"prompt": []}, 400, "prompt must be non-empty strings, got []"),
        ({"echo": True}, 400, "echo is not supported here"),
        ({"model": "gpt-5"}, 404, "model must be 'tiny', got 'gpt-5'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(client, fields, status, named):
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**{"model": "tiny", "prompt": "the", "max_tokens": 3, **fields})
    assert caught.value.status_code == status and named in str(caught.value)


def outcomes(url):
    page = urlopen(f"{url}/metrics").read().decode()
    return {
        line.split('"')[1]: int(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("scone_requests_total{")
    }


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_who_hangs_up_ends_his_text(url, stream):
    before, port = outcomes(url)["cancelled"], int(url.rsplit(":", 1)[1])
    body = json.dumps({"prompt": "the", "max_tokens": 200, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", port)) as line:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        if stream:
            assert line.recv(100)
        else:
            while "scone_running_texts 0" in urlopen(f"{url}/metrics").read().decode():
                time.sleep(0.01)
    while outcomes(url)["cancelled"] == before:  # the client has gone, and soon the text
        time.sleep(0.02)
    assert "scone_running_texts 0" in urlopen(f"{url}/metrics").read().decode()


def test_health_and_models(url, client):
    assert json.load(urlopen(f"{url}/health")) == {"status": "ok"}
    (model,) = client.models.list().data
    assert model.id == "tiny" and {"kind", "rude", "positive"} <= set(model.attributes)
