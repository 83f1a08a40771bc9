// Against a running server: DIST is the compiled client, URL the server, SLOW_URL one whose model `slow` takes a second.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

const punctual = await import(`${process.env.DIST}/index.js`);
const client = new punctual.Client(process.env.URL);
const slow = new punctual.Client(process.env.SLOW_URL);
const row = { data: new Float32Array(10).fill(0.5), shape: [1, 10] };

function refused(kind, message, more = () => {}) {
  return (error) => {
    assert.ok(error instanceof kind && error instanceof punctual.PunctualError, `${error}`);
    assert.match(error.message, message);
    more(error);
    return true;
  };
}

test("computes, with inputs alone and by name", async () => {
  const result = await client.infer("mlp", row, { id: "question 7", version: "1", outputs: ["output"], priority: 1, deadlineMs: 60_000 });
  assert.deepEqual([result.model, result.version, result.id], ["mlp", "1", "question 7"]);
  const { data, shape, datatype } = result.outputs.output;
  assert.ok(data instanceof Float32Array && data.length === 10 && datatype === "FP32");
  assert.deepEqual(shape, [1, 10]);
  const again = await client.infer("mlp", { input: { data: Array(10).fill(0.5) } });
  assert.deepEqual(again.outputs.output.data, data);
});

test("every type comes back as it went", async () => {
  const arrays = {
    uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, int8: Int8Array, int16: Int16Array,
    int32: Int32Array, int64: BigInt64Array, fp32: Float32Array, fp64: Float64Array, fp16: Uint16Array, bf16: Uint16Array,
  };
  for (const [name, kind] of Object.entries(arrays)) {
    const wide = name.endsWith("64") && name !== "fp64";
    const data = kind.from([1, 2, 3, 4, 5].map((value) => (wide ? BigInt(value) : value)));
    const { outputs } = await client.infer(`identity_${name}`, { data });
    assert.deepEqual(outputs.output.data, data, name);
    const plain = await client.infer(`identity_${name}`, { data: [1, 2, 3, 4, 5] });
    assert.deepEqual(plain.outputs.output.data, data, name);
  }
  const bools = await client.infer("identity_bool", { data: [true, false, true, true, false] });
  assert.deepEqual([...bools.outputs.output.data], [1, 0, 1, 1, 0]);
  const texts = await client.infer("identity_bytes", { data: ["plain", "grüß", ""] });
  assert.deepEqual(texts.outputs.output.data.map((text) => new TextDecoder().decode(text)), ["plain", "grüß", ""]);
});

test("bad input is a sentence", async () => {
  const cases = [
    ["nothing", row, punctual.ModelNotFound, /there is no model "nothing"/],
    ["mlp", { data: new Float32Array(9) }, punctual.BadInput, /has the shape \[1, 9\], but the model takes/],
    ["mlp", { data: new Float64Array(10) }, punctual.BadInput, /is a Float64Array, but the model takes FP32: a Float32Array/],
    ["mlp", { x: row }, punctual.BadInput, /has no input "x": it takes "input" \(FP32\)/],
    ["add", row, punctual.BadInput, /but one was given: give them by name/],
    ["identity_uint8", { data: [1, 2, 3, 4, 256] }, punctual.BadInput, /the value 256, which UINT8 can't hold/],
    ["identity_int32", { data: [1.5, 2, 3, 4, 5] }, punctual.BadInput, /the value 1.5, which INT32 can't hold/],
    ["identity_int64", { data: [2 ** 60, 2, 3, 4, 5] }, punctual.BadInput, /give a bigint/],
    ["identity_bytes", { data: [1] }, punctual.BadInput, /but the model takes strings or bytes/],
  ];
  for (const [model, inputs, kind, message] of cases) {
    await assert.rejects(client.infer(model, inputs), refused(kind, message), model);
  }
  await assert.rejects(client.infer("mlp", row, { deadlineMs: 0 }), RangeError);
});

test("deadlines are refused with what could be met", async () => {
  await slow.metadata("slow");
  await assert.rejects(
    slow.infer("slow", row, { deadlineMs: 500 }),
    refused(punctual.DeadlineUnreachable, /even with nothing else to do/, (error) => {
      assert.ok(error.earliestDeadlineMs >= 1000);
      assert.deepEqual([error.reason, error.status, error.name], ["deadline_unreachable", 504, "DeadlineUnreachable"]);
    }),
  );
});

test("questions beside infer", async () => {
  assert.deepEqual([await client.live(), await client.ready(), await client.ready("mlp"), await client.ready("nothing")], [true, true, true, false]);
  assert.equal((await client.metadata("magika")).inputs[0].datatype, "INT32");
});

/** A server that handles requests as it is told, for as long as `use` takes. */
async function serving(handle, use) {
  const server = createServer(handle);
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  try {
    return await use(`http://127.0.0.1:${server.address().port}`);
  } finally {
    server.closeAllConnections();
    await new Promise((closed) => server.close(closed));
  }
}

test("servers that say nothing", async () => {
  await serving(() => {}, async (url) => {
    await assert.rejects(new punctual.Client(url, { timeoutMs: 300 }).infer("m", row), refused(punctual.NoAnswer, /said nothing in time/));
    const leaving = new AbortController();
    const waiting = new punctual.Client(url).infer("m", row, { signal: leaving.signal });
    leaving.abort();
    await assert.rejects(waiting, { name: "AbortError" });
  });
});

test("servers that speak otherwise, or are gone", async () => {
  const gone = await serving((_, response) => response.end("nope"), async (url) => {
    await assert.rejects(new punctual.Client(url).infer("m", row), refused(punctual.BadAnswer, /isn't JSON/));
    return new punctual.Client(url);
  });
  await assert.rejects(gone.infer("m", row), refused(punctual.NoConnection, /can't be reached/));
  assert.equal(await gone.live(), false);
});
