"""LlamaIndex: an agent with a tool, structured predictions, several calls at once."""

import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from player import CITY_WEATHER, Echo, Place, play


def model_of(task):
    if task.api == "messages":
        return Anthropic(model=task.model, base_url=task.root, api_key=task.key)
    at = {"model": task.model, "api_base": f"{task.root}/v1", "api_key": task.key}
    if task.api == "compatible":
        return OpenAILike(**at, is_chat_model=True, is_function_calling_model=True)
    return OpenAIResponses(**at) if task.api == "responses" else OpenAI(**at)


async def tools(task):
    cities = []

    def get_weather(city: str) -> str:
        """The weather in a city, now."""
        cities.append(city)
        return CITY_WEATHER

    agent = FunctionAgent(llm=model_of(task), tools=[get_weather], streaming=task.streamed)
    run = agent.run(task.text)
    if not task.streamed:
        return {"text": str(await run), "cities": cities}
    pieces = [event.delta async for event in run.stream_events() if isinstance(event, AgentStream)]
    whole = str(await run)
    return {"text": whole if whole in "".join(pieces) else f"{whole!r} came as {pieces}", "cities": cities}


async def record(task):
    kind = Place if task.text == "place" else Echo
    prompt = PromptTemplate(task.text)
    if not task.streamed:
        return {"record": (await model_of(task).astructured_predict(kind, prompt)).model_dump()}
    last = None
    async for partial in await model_of(task).astream_structured_predict(kind, prompt):
        last = partial
    return {"record": last.model_dump()}


async def crowd(task):
    model = model_of(task)

    async def say(text):
        asked = [ChatMessage(text)]
        if not task.streamed:
            return (await model.achat(asked)).message.content
        return "".join([piece.delta or "" async for piece in await model.astream_chat(asked)])

    return {"texts": await asyncio.gather(*map(say, task.texts))}


play({"tools": tools, "record": record, "crowd": crowd})
