// Typed arrays as the protocol's tensors, and back.

import { BadAnswer, badInput } from "./errors.js";

/** The elements of a tensor. `FP16` and `BF16` are bits in a `Uint16Array`; `BYTES` goes in as strings or bytes. */
export type Data =
  | Float32Array
  | Float64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | readonly number[]
  | readonly bigint[]
  | readonly boolean[]
  | readonly string[]
  | readonly Uint8Array[];

/** An input: its elements, row by row, and its shape. Without a shape it is one row of them: `[1, n]`. */
export interface Input {
  data: Data;
  shape?: readonly number[];
}

/** An output. `BYTES` comes as an array of `Uint8Array`, `BOOL` as a `Uint8Array` of zeros and ones. */
export interface Output {
  name: string;
  datatype: string;
  shape: number[];
  data: TypedArray | Uint8Array[];
}

/** The typed arrays that outputs come in. */
export type TypedArray = InstanceType<(typeof ARRAYS)[keyof typeof ARRAYS]>;

const ARRAYS = {
  BOOL: Uint8Array,
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  FP16: Uint16Array,
  BF16: Uint16Array,
  FP32: Float32Array,
  FP64: Float64Array,
} as const;

function arrayOf(datatype: string): (typeof ARRAYS)[keyof typeof ARRAYS] | undefined {
  return Object.hasOwn(ARRAYS, datatype) ? ARRAYS[datatype as keyof typeof ARRAYS] : undefined;
}

/** The bytes of an input. Every machine that runs JavaScript today is little-endian, as the protocol is. */
export function toWire(name: string, data: Data, datatype: string): Uint8Array {
  if (datatype === "BYTES") {
    return stringsToWire(name, data);
  }
  const kind = arrayOf(datatype);
  if (kind === undefined) {
    throw badInput(`input "${name}" takes ${datatype}, which this client doesn't know: a newer one may`);
  }
  if (ArrayBuffer.isView(data)) {
    if (!(data instanceof kind)) {
      throw badInput(`input "${name}" is a ${data.constructor.name}, but the model takes ${datatype}: a ${kind.name}`);
    }
    return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  }
  const array = converted(name, data, datatype, kind);
  return new Uint8Array(array.buffer, 0, array.byteLength);
}

function converted(name: string, data: readonly unknown[], datatype: string, kind: NonNullable<ReturnType<typeof arrayOf>>): TypedArray {
  const array = new kind(data.length);
  data.forEach((element, index) => {
    const value = typeof element === "boolean" ? Number(element) : element;
    const is64 = array instanceof BigInt64Array || array instanceof BigUint64Array;
    if (typeof value !== "number" && !(is64 && typeof value === "bigint")) {
      throw badInput(`input "${name}" has the element ${String(value)}, which is not a value of ${datatype}`);
    }
    if (is64) {
      if (typeof value === "number" && !Number.isSafeInteger(value)) {
        throw badInput(`input "${name}" has the value ${value}, which is not a whole number that JavaScript has exactly: give a bigint`);
      }
      array[index] = BigInt(value);
      if (array[index] !== BigInt(value)) {
        throw badInput(`input "${name}" has the value ${value}, which ${datatype} can't hold`);
      }
    } else {
      array[index] = Number(value);
      const exact = array instanceof Float32Array || array instanceof Float64Array || array[index] === value;
      if (!exact || (Number.isFinite(value) && !Number.isFinite(array[index]))) {
        throw badInput(`input "${name}" has the value ${value}, which ${datatype} can't hold`);
      }
    }
  });
  return array;
}

function stringsToWire(name: string, data: Data): Uint8Array {
  const elements: Uint8Array[] = [];
  for (const element of data as Iterable<unknown>) {
    if (typeof element !== "string" && !(element instanceof Uint8Array)) {
      throw badInput(`input "${name}" has the element ${String(element)}, but the model takes strings or bytes (BYTES)`);
    }
    elements.push(typeof element === "string" ? new TextEncoder().encode(element) : element);
  }
  const all = new Uint8Array(elements.reduce((size, element) => size + 4 + element.length, 0));
  const view = new DataView(all.buffer);
  let at = 0;
  for (const element of elements) {
    view.setUint32(at, element.length, true);
    all.set(element, at + 4);
    at += 4 + element.length;
  }
  return all;
}

/** An output from its bytes, which are copied: typed arrays must begin at multiples of their elements' size. */
export function fromWire(name: string, datatype: string, bytes: Uint8Array): Output["data"] {
  if (datatype === "BYTES") {
    return stringsFromWire(name, bytes);
  }
  const kind = arrayOf(datatype);
  if (kind === undefined || bytes.length % kind.BYTES_PER_ELEMENT !== 0) {
    throw new BadAnswer(`output "${name}" has ${bytes.length} bytes, which isn't a tensor of ${datatype}`, { reason: "bad_answer" });
  }
  return new kind(bytes.slice().buffer);
}

function stringsFromWire(name: string, bytes: Uint8Array): Uint8Array[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const elements: Uint8Array[] = [];
  let at = 0;
  while (at < bytes.length) {
    const end = at + 4 <= bytes.length ? at + 4 + view.getUint32(at, true) : Infinity;
    if (end > bytes.length) {
      throw new BadAnswer(`output "${name}" ends inside element ${elements.length}`, { reason: "bad_answer" });
    }
    elements.push(bytes.slice(at + 4, end));
    at = end;
  }
  return elements;
}

/** An output that came as JSON. */
export function fromJson(datatype: string, data: readonly never[]): Output["data"] {
  if (datatype === "BYTES") {
    return data.map((text) => new TextEncoder().encode(text));
  }
  const kind = arrayOf(datatype);
  if (kind === BigInt64Array || kind === BigUint64Array) {
    return kind.from((data as readonly number[]).map((value) => BigInt(value)));
  }
  return ((kind ?? Float64Array) as Float64ArrayConstructor).from(data);
}
