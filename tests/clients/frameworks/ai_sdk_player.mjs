// AI SDK: texts with a tool, structured outputs, several calls at once. It is asked as player.py says.
import readline from "node:readline";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateObject, generateText, isStepCount, streamObject, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const echo = z.object({ bytes: z.number(), fnv: z.string() });
const place = z.object({ city: z.string() });

// Neither is so unasked.
const COMPATIBLE = { name: "tollgate", includeUsage: true, supportsStructuredOutputs: true };

function modelOf({ api, model, root, key }) {
  const at = { baseURL: `${root}/v1`, apiKey: key };
  switch (api) {
    case "chat":
      return createOpenAI(at).chat(model);
    case "responses":
      return createOpenAI(at)(model);
    case "messages":
      return createAnthropic(at)(model);
    case "compatible":
      return createOpenAICompatible({ ...at, ...COMPATIBLE })(model);
  }
}


async function told(task, more) {
  const call = { model: modelOf(task), prompt: task.text, ...more };
  if (!task.streamed) return generateText(call);
  let failed;
  const stream = streamText({ ...call, onError: ({ error }) => (failed = error) });
  await stream.consumeStream();
  if (failed) throw failed;
  return { text: await stream.text, output: more.output && (await stream.output), totalUsage: await stream.totalUsage };
}

async function tools(task) {
  const cities = [];
  const weather = tool({
    description: "The weather in a city, now.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (cities.push(city), "31 degrees"),
  });
  const done = await told(task, { tools: { get_weather: weather }, stopWhen: isStepCount(5) });
  return { text: done.text, cities, ...counted([done.totalUsage]) };
}

async function record(task) {
  const schema = task.text === "place" ? place : echo;
  if (task.text !== "object echo") {
    const done = await told(task, { output: Output.object({ schema }) });
    return { record: done.output, ...counted([done.totalUsage]) };
  }
  const call = { model: modelOf(task), prompt: task.text, schema };
  if (!task.streamed) {
    const done = await generateObject(call);
    return { record: done.object, ...counted([done.usage]) };
  }
  let failed;
  const stream = streamObject({ ...call, onError: ({ error }) => (failed = error) });
  for await (const _ of stream.partialObjectStream);
  if (failed) throw failed;
  return { record: await stream.object, ...counted([await stream.usage]) };
}

async function crowd(task) {
  const done = await Promise.all(task.texts.map((text) => told({ ...task, text }, {})));
  return { texts: done.map(({ text }) => text), ...counted(done.map(({ totalUsage }) => totalUsage)) };
}

function counted(usages) {
  const sum = (name) => usages.reduce((all, usage) => all + usage[name], 0);
  return { input: sum("inputTokens"), output: sum("outputTokens") };
}

const parts = { tools, record, crowd };
for await (const line of readline.createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  const answer = await parts[task.part](task).catch((error) => ({ error: `${error.name}: ${error.message}` }));
  console.log(JSON.stringify(answer));
}
