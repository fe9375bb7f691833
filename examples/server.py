# needs: openai
"""A server on this machine and a client of OpenAI's own library: steered text, and text that is withheld."""

import socket
import threading
import time

import uvicorn
from openai import OpenAI

from scone.serve import Steering, build

with socket.socket() as free:  # from a shell: scone serve --attribute positive --port 8000
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = uvicorn.Server(uvicorn.Config(build(Steering.from_pretrained()), port=port, log_level="warning"))
thread = threading.Thread(target=server.run, daemon=True)
thread.start()
while not server.started:
    time.sleep(0.1)

with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
    asked = {"model": "embedded", "prompt": "I went to the restaurant and", "max_tokens": 20, "seed": 1}

    print(asked["prompt"], end="", flush=True)
    for piece in client.completions.create(**asked, stream=True, extra_body={"scone": {"attribute": "positive"}}):
        last = piece.choices[0]
        print(last.text, end="", flush=True)
    print("\n", last.finish_reason, last.scone)

    strict = {"attribute": "negative", "strength": 0, "threshold": 0.999, "verdict": "withhold", "hold_back": 4}
    withheld = client.completions.create(**asked, extra_body={"scone": strict}).choices[0]
    print(repr(withheld.text), withheld.finish_reason, withheld.scone["verdict"])

server.should_exit = True
thread.join()
