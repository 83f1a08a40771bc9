// Every way in which a call can end without an answer.

/** What a refusal carries. */
export interface Details {
  /** The server's word for it. */
  reason?: string;
  /** The smallest deadline that could have been met, in milliseconds from the request's arrival, where the server knows it. */
  earliestDeadlineMs?: number;
  /** After how many seconds it is worth asking again, where the server says so. */
  retryAfter?: number;
  /** The HTTP status, where the server was reached. */
  status?: number;
}

/** There is no answer. The message is the server's sentence: what was wrong with which value, and what to do. */
export class PunctualError extends Error {
  readonly reason: string;
  readonly earliestDeadlineMs: number | undefined;
  readonly retryAfter: number | undefined;
  readonly status: number | undefined;

  constructor(message: string, details: Details = {}, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.reason = details.reason ?? "error";
    this.earliestDeadlineMs = details.earliestDeadlineMs;
    this.retryAfter = details.retryAfter;
    this.status = details.status;
  }
}

/** Even an idle server could not answer in time: `earliestDeadlineMs` says what it could. */
export class DeadlineUnreachable extends PunctualError {}
/** It was planned, but no answer came in time; or the time was over before the request could be sent. */
export class DeadlineMissed extends PunctualError {}
/** Others are ahead, and behind them the answer would come too late. */
export class Overloaded extends PunctualError {}
/** The server has no such model or version. */
export class ModelNotFound extends PunctualError {}
/** The request isn't what the model or the protocol asks for. */
export class BadInput extends PunctualError {}
/** The server can't be reached, or went away. Found by the client. */
export class NoConnection extends PunctualError {}
/** The server said nothing in time, not even no. Found by the client. */
export class NoAnswer extends PunctualError {}
/** What came back isn't this protocol. Found by the client. */
export class BadAnswer extends PunctualError {}

const BY_REASON: Record<string, typeof PunctualError> = {
  deadline_unreachable: DeadlineUnreachable,
  deadline_missed: DeadlineMissed,
  overloaded: Overloaded,
  model_not_found: ModelNotFound,
  bad_input: BadInput,
};

/** The error for a refusal. Reasons without a class of their own are a `PunctualError` that names them. */
export function refusal(message: string, details: Details): PunctualError {
  const kind = BY_REASON[details.reason ?? ""] ?? PunctualError;
  return new kind(message, details);
}

/** Input that is wrong for a reason that the client sees by itself. */
export function badInput(message: string): BadInput {
  return new BadInput(message, { reason: "bad_input" });
}
