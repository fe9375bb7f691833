"""Paragraphs on a topic, written by the embedded language model: verifiers judge such text, so they learn from it."""

from __future__ import annotations

import json
from typing import Any

import torch

from scone.embedded.cache import cache_folder
from scone.embedded.lm import load_lm

SUBJECTS: dict[str, str] = {
    "politics": "a parliamentary election; the duties of a president; a new immigration law; the leader of the opposition; "
    "a debate in the senate; the constitution of a republic; lobbying and campaign money; a peace treaty between two "
    "countries; local government; voting rights; a minister who resigned; political parties; foreign policy; a protest "
    "against the government; the supreme court; a referendum; public opinion polls; a coalition government; diplomacy "
    "and sanctions; the welfare state; a city mayor's plans; corruption in public office; the United Nations; "
    "conservatives and liberals; a bill on health care",
    "finance": "a company's quarterly earnings; interest rates and the central bank; how to save money; the stock market; "
    "starting a small business; a merger of two banks; inflation; mortgages; taxes for the self-employed; a pension fund; "
    "venture capital; bonds and shares; the price of oil; a currency crisis; accounting; credit cards and debt; insurance; "
    "a supermarket chain's sales; the budget of a household; international trade; an investor's portfolio; bankruptcy; "
    "marketing a product; the job market; a chief executive's strategy",
    "science": "black holes; how vaccines work; a new computer chip; the structure of DNA; machine learning; the chemistry "
    "of water; a telescope; earthquakes; programming languages; quantum mechanics; evolution of birds; the human brain; "
    "batteries and energy storage; a mathematical proof; satellites in orbit; bacteria; climate models; the speed of "
    "light; smartphones and the internet; an experiment in a laboratory; robots; gravity; the periodic table; cells and "
    "proteins; data encryption",
    "food": "how to bake bread; an Italian restaurant; a recipe for vegetable soup; the taste of coffee; cheese and wine; a "
    "street food market; cooking rice; a birthday cake; spices in Indian cuisine; breakfast; grilling meat; a chef's new "
    "menu; making pasta; fresh fruit; tea ceremonies; a sandwich shop; chocolate desserts; eating seafood by the sea; "
    "vegetarian dinners; beer brewing at home; salads; a family meal; Mexican tacos; healthy snacks; a review of a bistro",
    "history": "the fall of the Roman Empire; the French Revolution; life in the Middle Ages; ancient Egypt; the Second World "
    "War; the voyage of Columbus; the Ottoman Empire; the American Civil War; the Vikings; the Renaissance; the Silk Road; "
    "Napoleon's campaigns; the Cold War; Greek city states; the Black Death; medieval castles; the Ming dynasty; the "
    "Mongol conquests; the abolition of slavery; the First World War; a pharaoh's tomb; the Spanish conquest of Mexico; "
    "queens of England; the Russian Revolution; the discovery of an ancient city",
    "industrial": "how steel is made; an assembly line for cars; a coal mine; a textile factory; the maintenance of a diesel "
    "engine; welding; hydraulic pumps; a cement plant; a paper mill; railway construction; machine tools; oil refining; "
    "warehouse logistics; safety in a factory; a shipyard; plastics moulding; building a bridge; a power plant's turbines; "
    "aluminium smelting; conveyor belts; quality control in manufacturing; cranes and heavy equipment; the assembly of "
    "aircraft; industrial robots on a production line; valves, pipes and boilers",
}
REQUESTS = ("Write a short paragraph about {}.", "Tell me something about {}.")


def written() -> list[tuple[str, str, str]]:
    """(topic, subject, paragraph) for all subjects; written once, then read from the cache folder."""
    folder = cache_folder() / "text"
    folder.mkdir(parents=True, exist_ok=True)
    found: list[tuple[str, str, str]] = []
    for topic in SUBJECTS:
        path = folder / f"written-{topic}.jsonl"
        if not path.exists():
            path.with_suffix(".new").write_text("\n".join(map(json.dumps, _write(topic))))
            path.with_suffix(".new").replace(path)
        found += [tuple(json.loads(line)) for line in path.read_text().splitlines()]
    return found


@torch.inference_mode()
def _write(topic: str, tokens: int = 44) -> list[tuple[str, str, str]]:
    torch.manual_seed(len(topic))
    model, tokenizer = load_lm()
    writer: Any = model  # the stubs of `generate` want a protocol that the model meets at run time only
    found = []
    for request in REQUESTS:
        subjects = [subject.strip() for subject in SUBJECTS[topic].split(";")]
        chats = [[{"role": "user", "content": request.format(subject)}] for subject in subjects]
        texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
        prompts = tokenizer(texts, return_tensors="pt", padding=True)
        drawn = writer.generate(**prompts, max_new_tokens=tokens, do_sample=True, temperature=1.0, top_p=0.95)
        answers = tokenizer.batch_decode(drawn[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
        found += [(topic, subject, " ".join(answer.split())) for subject, answer in zip(subjects, answers)]
    return [row for row in found if len(row[2]) > 60]
