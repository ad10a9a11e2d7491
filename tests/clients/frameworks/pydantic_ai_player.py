"""Pydantic AI: an agent with a tool, one with an output type, several runs at once."""

import asyncio

from player import CITY_WEATHER, Echo, Place, play
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def model_of(task):
    if task.api == "messages":
        return AnthropicModel(task.model, provider=AnthropicProvider(base_url=task.root, api_key=task.key))
    kind = OpenAIResponsesModel if task.api == "responses" else OpenAIChatModel
    return kind(task.model, provider=OpenAIProvider(base_url=f"{task.root}/v1", api_key=task.key))


async def run(agent, text, streamed):
    if not streamed:
        return await agent.run(text)
    async with agent.run_stream(text) as stream:
        await stream.get_output()
        return stream


async def tools(task):
    cities = []
    agent = Agent(model_of(task))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city, now."""
        cities.append(city)
        return CITY_WEATHER

    done = await run(agent, task.text, task.streamed)
    return {"text": await output_of(done), "cities": cities} | counted([done])


async def record(task):
    kind = Place if task.text == "place" else NativeOutput(Echo)
    done = await run(Agent(model_of(task), output_type=kind), task.text, task.streamed)
    return {"record": (await output_of(done)).model_dump()} | counted([done])


async def crowd(task):
    agent = Agent(model_of(task))
    done = await asyncio.gather(*(run(agent, text, task.streamed) for text in task.texts))
    return {"texts": [await output_of(one) for one in done]} | counted(done)


async def output_of(done):
    return done.output if hasattr(done, "output") else await done.get_output()


def counted(runs):
    usages = [done.usage() if callable(done.usage) else done.usage for done in runs]
    return {"input": sum(u.input_tokens for u in usages), "output": sum(u.output_tokens for u in usages)}


play({"tools": tools, "record": record, "crowd": crowd})
