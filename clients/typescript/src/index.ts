// The client: one class, over the `fetch` that browsers and Node have.

import { BadAnswer, DeadlineMissed, NoAnswer, NoConnection, PunctualError, badInput, refusal } from "./errors.js";
import { type Data, type Input, type Output, fromJson, fromWire, toWire } from "./tensors.js";

export * from "./errors.js";
export type { Data, Input, Output, TypedArray } from "./tensors.js";

/** An input or output of a model. A dimension of -1 may have any size. */
export interface Tensor {
  name: string;
  datatype: string;
  shape: number[];
}

/** What a model takes and gives. */
export interface ModelMetadata {
  name: string;
  versions: string[];
  platform: string;
  inputs: Tensor[];
  outputs: Tensor[];
}

/** How to reach the server. */
export interface ClientOptions {
  /** The deadline of requests that name none, in milliseconds; without it they are batch work. */
  deadlineMs?: number;
  /** How long to listen beyond a deadline, in milliseconds, for the answer's way here. */
  graceMs?: number;
  /** How long to listen where there is no deadline, in milliseconds. */
  timeoutMs?: number;
  /** Sent with every call. */
  headers?: Record<string, string>;
}

/** What a request may say beside its inputs. */
export interface InferOptions {
  /** How long the caller is willing to wait, in milliseconds from now. */
  deadlineMs?: number;
  /** The model's version; by default the highest one that is ready. */
  version?: string;
  /** The outputs that are wanted; by default all. */
  outputs?: string[];
  /** 1 is the most urgent. */
  priority?: number;
  /** Comes back with the result. */
  id?: string;
  /** Ends the call, and takes the request out of the server's plan. */
  signal?: AbortSignal;
}

/** The outputs of a model. */
export interface Result {
  model: string;
  version: string;
  id: string;
  outputs: Record<string, Output>;
}

/** What `infer` takes: one input, if the model has one; or inputs by name. */
export type Inputs = Input | Record<string, Input>;

interface Answer {
  status: number;
  headers: Headers;
  body: Uint8Array;
}

/** A server's models. */
export class Client {
  readonly #url: string;
  readonly #options: ClientOptions;
  readonly #known = new Map<string, ModelMetadata>();

  constructor(url = "http://localhost:8000", options: ClientOptions = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#options = options;
  }

  /** Computes. */
  async infer(model: string, inputs: Inputs, options: InferOptions = {}): Promise<Result> {
    const startedAt = performance.now();
    const deadlineMs = options.deadlineMs ?? this.#options.deadlineMs;
    if (deadlineMs !== undefined && !(deadlineMs > 0)) {
      throw new RangeError(`deadlineMs is ${deadlineMs}: it must be above 0`);
    }
    const giveUpAt = startedAt + this.#patience(deadlineMs);
    const path = modelPath(model, options.version);
    const known = this.#known.get(path);
    try {
      return await this.#once(path, known ?? (await this.#metadata(path, giveUpAt, options.signal)), inputs, options, startedAt, deadlineMs, giveUpAt);
    } catch (error) {
      // The model may have changed since it was asked for its metadata. What is bad input was never computed.
      const doubtful = error instanceof PunctualError && ["bad_input", "model_not_found"].includes(error.reason);
      if (!doubtful || known === undefined) {
        throw error;
      }
      this.#known.delete(path);
      const fresh = await this.#metadata(path, giveUpAt, options.signal);
      if (JSON.stringify(fresh) === JSON.stringify(known)) {
        throw error;
      }
      return await this.#once(path, fresh, inputs, options, startedAt, deadlineMs, giveUpAt);
    }
  }

  /** What a model takes and gives, as it is now. */
  async metadata(model: string, version?: string): Promise<ModelMetadata> {
    return await this.#metadata(modelPath(model, version), performance.now() + this.#patience(undefined));
  }

  /** Whether the server is up. False too where it can't be reached. */
  async live(): Promise<boolean> {
    return await this.#yes("/v2/health/live");
  }

  /** Whether the server takes requests, or can be asked for a model. False too where it can't be reached. */
  async ready(model?: string, version?: string): Promise<boolean> {
    return await this.#yes(model === undefined ? "/v2/health/ready" : `${modelPath(model, version)}/ready`);
  }

  async #once(
    path: string,
    metadata: ModelMetadata,
    inputs: Inputs,
    options: InferOptions,
    startedAt: number,
    deadlineMs: number | undefined,
    giveUpAt: number,
  ): Promise<Result> {
    const parameters: Record<string, unknown> = { binary_data_output: true };
    const tensors = Object.entries(named(metadata, inputs)).map(([name, input]) => {
      const datatype = metadata.inputs.find((tensor) => tensor.name === name)?.datatype;
      if (datatype === undefined) {
        throw badInput(`the model "${metadata.name}" has no input "${name}": it takes ${names(metadata)}`);
      }
      const data = toWire(name, input.data, datatype);
      return { name, datatype, shape: input.shape ?? [1, count(input.data)], data };
    });
    if (options.priority !== undefined) {
      parameters["priority"] = options.priority;
    }
    if (deadlineMs !== undefined) {
      const leftUs = Math.floor((startedAt + deadlineMs - performance.now()) * 1000);
      if (leftUs <= 0) {
        throw new DeadlineMissed(`the ${deadlineMs} ms were over before the request could be sent`, { reason: "deadline_missed" });
      }
      parameters["timeout"] = leftUs;
    }
    const head = new TextEncoder().encode(
      JSON.stringify({
        id: options.id,
        parameters,
        inputs: tensors.map(({ data, ...rest }) => ({ ...rest, parameters: { binary_data_size: data.length } })),
        outputs: options.outputs?.map((name) => ({ name })),
      }),
    );
    const body = joined([head, ...tensors.map((tensor) => tensor.data)]);
    const headers = { "content-type": "application/octet-stream", "inference-header-content-length": String(head.length) };
    const answer = await this.#call(`${path}/infer`, { method: "POST", body, headers }, giveUpAt, options.signal);
    return result(checked(answer), answer.headers);
  }

  async #metadata(path: string, giveUpAt: number, signal?: AbortSignal): Promise<ModelMetadata> {
    const said = parsed(checked(await this.#call(path, {}, giveUpAt, signal))) as Partial<ModelMetadata>;
    if (!Array.isArray(said.inputs) || !Array.isArray(said.outputs)) {
      throw new BadAnswer("the server's metadata isn't what the protocol asks for", { reason: "bad_answer" });
    }
    this.#known.set(path, said as ModelMetadata);
    return said as ModelMetadata;
  }

  async #yes(path: string): Promise<boolean> {
    try {
      return (await this.#call(path, {}, performance.now() + this.#patience(undefined))).status === 200;
    } catch (error) {
      if (error instanceof PunctualError) {
        return false;
      }
      throw error;
    }
  }

  #patience(deadlineMs: number | undefined): number {
    return deadlineMs === undefined ? (this.#options.timeoutMs ?? 60_000) : deadlineMs + (this.#options.graceMs ?? 250);
  }

  async #call(path: string, init: RequestInit & { headers?: Record<string, string> }, giveUpAt: number, signal?: AbortSignal): Promise<Answer> {
    const ending = new AbortController();
    const end = (): void => ending.abort(signal?.reason);
    signal?.throwIfAborted();
    signal?.addEventListener("abort", end);
    const silence = new NoAnswer(`${this.#url} said nothing in time`, { reason: "no_answer" });
    const timer = setTimeout(() => ending.abort(silence), Math.max(0, giveUpAt - performance.now()));
    try {
      const headers = { ...this.#options.headers, ...init.headers };
      const response = await fetch(this.#url + path, { ...init, headers, signal: ending.signal });
      return { status: response.status, headers: response.headers, body: new Uint8Array(await response.arrayBuffer()) };
    } catch (error) {
      if (ending.signal.aborted) {
        throw ending.signal.reason;
      }
      throw new NoConnection(`${this.#url} can't be reached: ${String((error as Error).cause ?? error)}`, { reason: "no_connection" }, { cause: error });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
    }
  }
}

function modelPath(model: string, version?: string): string {
  const path = `/v2/models/${encodeURIComponent(model)}`;
  return version === undefined ? path : `${path}/versions/${encodeURIComponent(version)}`;
}

function names(metadata: ModelMetadata): string {
  return metadata.inputs.map((tensor) => `"${tensor.name}" (${tensor.datatype})`).join(", ");
}

function named(metadata: ModelMetadata, inputs: Inputs): Record<string, Input> {
  const one = (inputs as Input).data;
  if (!(Array.isArray(one) || ArrayBuffer.isView(one))) {
    return inputs as Record<string, Input>;
  }
  const [only, ...others] = metadata.inputs;
  if (only === undefined || others.length > 0) {
    throw badInput(`the model "${metadata.name}" takes ${names(metadata)}, but one was given: give them by name`);
  }
  return { [only.name]: inputs as Input };
}

function count(data: Data): number {
  return data.length;
}

function joined(parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function parsed(body: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(body));
  } catch (error) {
    throw new BadAnswer("the server's answer isn't JSON", { reason: "bad_answer" }, { cause: error });
  }
}

/** The body of a success; a refusal is thrown. */
function checked(answer: Answer): Uint8Array {
  if (answer.status === 200) {
    return answer.body;
  }
  let said: { error?: unknown; reason?: string; earliest_deadline_us?: number } = {};
  try {
    said = (JSON.parse(new TextDecoder().decode(answer.body)) ?? {}) as typeof said;
  } catch {
    // Not the server's own words: the status has to do.
  }
  const retryAfter = answer.headers.get("retry-after");
  throw refusal(typeof said.error === "string" ? said.error : `the server answered ${answer.status}`, {
    status: answer.status,
    ...(said.reason !== undefined && { reason: said.reason }),
    ...(said.earliest_deadline_us !== undefined && { earliestDeadlineMs: said.earliest_deadline_us / 1000 }),
    ...(retryAfter !== null && { retryAfter: Number(retryAfter) }),
  });
}

interface Said {
  model_name: string;
  model_version?: string;
  id?: string;
  outputs: (Tensor & { parameters?: { binary_data_size?: number }; data?: never[] })[];
}

function result(body: Uint8Array, headers: Headers): Result {
  let at = Number(headers.get("inference-header-content-length") ?? body.length);
  const said = parsed(body.subarray(0, at)) as Said;
  if (!Array.isArray(said.outputs)) {
    throw new BadAnswer("the server's answer isn't what the protocol asks for", { reason: "bad_answer" });
  }
  const outputs: Record<string, Output> = {};
  for (const { name, datatype, shape, parameters, data } of said.outputs) {
    const size = parameters?.binary_data_size;
    if (size === undefined) {
      outputs[name] = { name, datatype, shape, data: fromJson(datatype, data ?? []) };
    } else {
      if (at + size > body.length) {
        throw new BadAnswer(`the server's answer ends inside output "${name}"`, { reason: "bad_answer" });
      }
      outputs[name] = { name, datatype, shape, data: fromWire(name, datatype, body.subarray(at, at + size)) };
      at += size;
    }
  }
  return { model: said.model_name, version: said.model_version ?? "", id: said.id ?? "", outputs };
}
