// Reads a list of {model, adapter, tokens, more, logits} and prints what llama.cpp makes of each, one line of JSON.
import {readFileSync} from "node:fs";
import {getLlama} from "node-llama-cpp";

const jobs = JSON.parse(readFileSync(0, "utf8"));
// One thread: others that wait in a loop cost more than they bring where cores are shared.
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 1});

// All logits are many objects: a vocabulary's for each token take a second.
function wanted(token, next, whole) {
  const filter = {tokens: [next], includeTop: 1};
  return [token, {generateNext: {logits: whole || {filter}, totalLogitWeight: true}}];
}

// The token of the largest logit, and that.
function largest(output) {
  return [...output.next.logits].reduce((best, entry) => (entry[1] > best[1] ? entry : best));
}

function logprob(output, token) {
  return output.next.logits.get(token) - largest(output)[1] - Math.log(output.next.totalLogitWeight);
}

function row(output) {
  const values = new Array(output.next.logits.size);
  for (const [token, value] of output.next.logits) values[token] = value;
  return values;
}

async function run({model: modelPath, adapter, tokens, more, logits: whole}) {
  const model = await llama.loadModel({modelPath, gpuLayers: 0});
  const lora = adapter ? {adapters: [{filePath: adapter}]} : undefined;
  const context = await model.createContext({
    contextSize: tokens.length + more + 1, lora, threads: 1, ignoreMemorySafetyChecks: true
  });
  const sequence = context.getSequence();
  const outputs = await sequence.controlledEvaluate(
    tokens.map((token, place) => wanted(token, tokens[place + 1] ?? 0, whole))
  );
  const logprobs = tokens.slice(1).map((token, place) => logprob(outputs[place], token));
  const text = [];
  let last = outputs.at(-1);
  while (text.length < more) {
    text.push(largest(last)[0]);
    [last] = await sequence.controlledEvaluate([wanted(text.at(-1), 0, false)]);
  }
  await context.dispose();
  await model.dispose();
  return {logprobs, text, logits: whole ? outputs.map(row) : null};
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
