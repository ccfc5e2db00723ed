// Reads {model, prompt, tokens, threads} and prints what llama.cpp takes for it, one line of JSON.
import {readFileSync} from "node:fs";
import {getLlama} from "node-llama-cpp";

const {model: modelPath, prompt, tokens, threads} = JSON.parse(readFileSync(0, "utf8"));

function anonymous() {
  return Number(readFileSync("/proc/self/status", "utf8").match(/RssAnon:\s+(\d+)/)[1]) * 1024 / 1e6;
}

const before = anonymous();
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: threads});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const context = await model.createContext({
  contextSize: prompt.length + tokens + 8, batchSize: prompt.length, threads, ignoreMemorySafetyChecks: true
});
const sequence = context.getSequence();

// Seconds of the prompt without its last token, and of `count` tokens after the first one.
async function measured(given, count) {
  await sequence.clearHistory();
  const start = performance.now();
  await sequence.evaluateWithoutGeneratingNewTokens(given.slice(0, -1));
  const read = performance.now();
  let first, made = 0;
  for await (const _ of sequence.evaluate(given.slice(-1), {temperature: 0, yieldEogToken: true})) {
    first ??= performance.now();
    if (made++ === count) break;
  }
  return {prefill: (read - start) / 1000, decode: (performance.now() - first) / 1000};
}

await measured(prompt.slice(0, 9), 2);
const {prefill, decode} = await measured(prompt, tokens);
const result = {
  prefill_tokens_per_second: (prompt.length - 1) / prefill,
  decode_tokens_per_second: tokens / decode,
  own_mb: before
};
process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
