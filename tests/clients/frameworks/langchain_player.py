"""LangChain: an agent with a tool, a model with a structured output, a batch."""

import asyncio

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from player import CITY_WEATHER, Echo, Place, play


def model_of(task):
    if task.api == "messages":
        return ChatAnthropic(model=task.model, base_url=task.root, api_key=task.key)
    at = {"base_url": f"{task.root}/v1", "api_key": task.key}
    # At an address of one's own it does not ask for the usage of streams by itself.
    return ChatOpenAI(model=task.model, **at, stream_usage=True, use_responses_api=task.api == "responses")


async def tools(task):
    cities = []

    def get_weather(city: str) -> str:
        """The weather in a city, now."""
        cities.append(city)
        return CITY_WEATHER

    agent = create_agent(model_of(task), [get_weather])
    asked = {"messages": [{"role": "user", "content": task.text}]}
    if task.streamed:
        pieces = [piece async for piece, _ in agent.astream(asked, stream_mode="messages")]
        said = [piece for piece in pieces if piece.type == "AIMessageChunk"]
        text = "".join(piece.text for piece in said)
    else:
        said = [message for message in (await agent.ainvoke(asked))["messages"] if message.type == "ai"]
        text = said[-1].text
    return {"text": text, "cities": cities} | counted(said)


async def record(task):
    kind, method = (Place, "function_calling") if task.text == "place" else (Echo, "json_schema")
    model = model_of(task).with_structured_output(kind, method=method, include_raw=True)
    if not task.streamed:
        whole = await model.ainvoke(task.text)
        return {"record": whole["parsed"].model_dump()} | counted([whole["raw"]])
    raw = parsed = None
    async for piece in model.astream(task.text):
        parsed = piece.get("parsed") or parsed
        raw = raw + piece["raw"] if raw and "raw" in piece else piece.get("raw", raw)
    return {"record": parsed.model_dump()} | counted([raw])


async def crowd(task):
    model = model_of(task)
    if not task.streamed:
        said = await model.abatch(task.texts)
    else:
        said = await asyncio.gather(*(whole_of(model.astream(text)) for text in task.texts))
    return {"texts": [message.text for message in said]} | counted(said)


async def whole_of(stream):
    whole = None
    async for piece in stream:
        whole = piece if whole is None else whole + piece
    return whole


def counted(messages):
    usages = [message.usage_metadata for message in messages if message.usage_metadata]
    return {"input": sum(u["input_tokens"] for u in usages), "output": sum(u["output_tokens"] for u in usages)}


play({"tools": tools, "record": record, "crowd": crowd})
