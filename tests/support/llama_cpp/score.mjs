// Reads a list of {model, adapter, tokens, more, logits} and prints what llama.cpp makes of each, one line of JSON.
import {readFileSync} from "node:fs";
import {getLlama} from "node-llama-cpp";

const jobs = JSON.parse(readFileSync(0, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 2});

function row(output) {
  const logits = new Float32Array(output.next.logits.size);
  for (const [token, value] of output.next.logits) logits[token] = value;
  return logits;
}

function largest(logits) {
  return logits.reduce((best, value, token) => (value > logits[best] ? token : best), 0);
}

function logprob(logits, token) {
  const top = logits[largest(logits)];
  const sum = logits.reduce((total, value) => total + Math.exp(value - top), 0);
  return logits[token] - top - Math.log(sum);
}

async function run({model: modelPath, adapter, tokens, more, logits: whole}) {
  const model = await llama.loadModel({modelPath, gpuLayers: 0});
  const lora = adapter ? {adapters: [{filePath: adapter}]} : undefined;
  const context = await model.createContext({
    contextSize: tokens.length + more + 1, lora, threads: 2, ignoreMemorySafetyChecks: true
  });
  const sequence = context.getSequence();
  const ask = async (asked) => (await sequence.controlledEvaluate(
    asked.map((token) => [token, {generateNext: {logits: true}}])
  )).map(row);
  const rows = await ask(tokens);
  const logprobs = tokens.slice(1).map((token, place) => logprob(rows[place], token));
  const text = [];
  let last = rows.at(-1);
  while (text.length < more) {
    text.push(largest(last));
    [last] = await ask(text.slice(-1));
  }
  await context.dispose();
  await model.dispose();
  return {logprobs, text, logits: whole ? rows.map((values) => Array.from(values)) : null};
}

const found = [];
for (const job of jobs) {
  try {
    found.push(await run(job));
  } catch (error) {
    found.push({error: String(error)});
  }
}
process.stdout.write(JSON.stringify(found) + "\n", () => process.exit(0));
