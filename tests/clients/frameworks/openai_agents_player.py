"""OpenAI Agents: an agent with a tool, one with an output type, several runs at once."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from player import CITY_WEATHER, Echo, play

set_tracing_disabled(True)


def agent_of(task, **more):
    client = AsyncOpenAI(base_url=f"{task.root}/v1", api_key=task.key)
    kind = OpenAIResponsesModel if task.api == "responses" else OpenAIChatCompletionsModel
    settings = ModelSettings(include_usage=True)
    return Agent(name="clerk", model=kind(task.model, openai_client=client), model_settings=settings, **more)


async def run(agent, text, streamed):
    if not streamed:
        return await Runner.run(agent, text)
    stream = Runner.run_streamed(agent, text)
    async for _ in stream.stream_events():
        pass
    return stream


async def tools(task):
    cities = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather in a city, now."""
        cities.append(city)
        return CITY_WEATHER

    done = await run(agent_of(task, tools=[get_weather]), task.text, task.streamed)
    return {"text": done.final_output, "cities": cities} | counted([done])


async def record(task):
    done = await run(agent_of(task, output_type=Echo), task.text, task.streamed)
    return {"record": done.final_output.model_dump()} | counted([done])


async def crowd(task):
    agent = agent_of(task)
    done = await asyncio.gather(*(run(agent, text, task.streamed) for text in task.texts))
    return {"texts": [one.final_output for one in done]} | counted(done)


def counted(runs):
    usages = [done.context_wrapper.usage for done in runs]
    return {"input": sum(u.input_tokens for u in usages), "output": sum(u.output_tokens for u in usages)}


play({"tools": tools, "record": record, "crowd": crowd})
