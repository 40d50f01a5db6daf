import {
  type BatchResultErrorEntry,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  type SQSClient,
} from "@aws-sdk/client-sqs";

import { BrokerClock, type Clock } from "./clock.js";
import type { QueueRef } from "./endpoint.js";
import { ConfigurationError, InvalidEndpoint, QueueMissing, QueueUnavailable, SendFailed, SqsDelayError } from "./errors.js";
import { ENTRY_ATTEMPTS } from "./limits.js";
import type { Request } from "./wire.js";

const MISSING = /NonExistentQueue|QueueDoesNotExist/;
/** What no later attempt will cure. Everything else may work again. */
const PERMANENT =
  /BatchRequestTooLong|UnsupportedOperation|InvalidAttributeValue|InvalidMessageContents|InvalidParameter|MissingParameter|Validation/;
/** Marked as the sender's fault too, yet they pass. */
const MAY_PASS = /AccessDenied|Throttl|Kms|KMS|Expired/;

type Command =
  | GetQueueAttributesCommand
  | GetQueueUrlCommand
  | SendMessageBatchCommand
  | SendMessageCommand;

/** SQS's id of a message it has, or why it does not have it. */
export type Outcome = string | SqsDelayError;

/** SQS through one client of the SDK's. */
export class Queues {
  readonly clock: BrokerClock;
  readonly #client: SQSClient;
  readonly #urls = new Map<string, string>();

  constructor(client: SQSClient, clock: Clock) {
    this.#client = client;
    this.clock = new BrokerClock(clock);
  }

  /** The queue's URL; remembered. */
  async url(queue: QueueRef): Promise<string> {
    const region = await this.#client.config.region().catch((error: unknown) => {
      throw new ConfigurationError(`${String(error)}; set AWS_REGION, or give SQSClient a region`, { cause: error });
    });
    if (queue.region !== undefined && queue.region !== region) {
      throw new InvalidEndpoint(
        `queue ${queue.name} is in ${queue.region}, the client in ${region}; use a client of ${queue.region}`,
      );
    }
    if (queue.url !== undefined) return queue.url;
    const key = `${queue.accountId ?? ""}/${queue.name}`;
    const known = this.#urls.get(key);
    if (known !== undefined) return known;
    const account = queue.accountId === undefined ? {} : { QueueOwnerAWSAccountId: queue.accountId };
    const command = new GetQueueUrlCommand({ QueueName: queue.name, ...account });
    const { QueueUrl: url } = await this.#call(queue.name, command, (c) => this.#client.send(c));
    if (url === undefined) {
      throw new QueueUnavailable(`the answer on queue ${queue.name} has no QueueUrl; try again later`);
    }
    this.#urls.set(key, url);
    return url;
  }

  /** Learn the broker's time from one cheap request. */
  async synchronise(queue: QueueRef): Promise<void> {
    const command = new GetQueueUrlCommand({ QueueName: queue.name });
    await this.#call(queue.name, command, (c) => this.#client.send(c)).catch((error: unknown) => {
      // A refusal is dated, too.
      if (!this.clock.synchronised) throw error;
    });
  }

  async attributes(url: string): Promise<Partial<Record<string, string>>> {
    const command = new GetQueueAttributesCommand({ QueueUrl: url, AttributeNames: ["All"] });
    return (await this.#call(url, command, (c) => this.#client.send(c))).Attributes ?? {};
  }

  /** Send up to ten; an outcome for each, in order. It throws nothing. */
  async sendBatch(url: string, requests: readonly Request[]): Promise<Outcome[]> {
    const outcomes = await this.#sendOnce(url, requests);
    for (let attempt = 1; attempt < ENTRY_ATTEMPTS; attempt++) {
      const again = [...outcomes.keys()].filter((position) => isForRetry(outcomes[position]));
      if (again.length === 0) break;
      const pause = Math.random() * 100 * 2 ** attempt;
      await new Promise((resolve) => setTimeout(resolve, pause));
      const answers = await this.#sendOnce(url, again.map((position) => requests[position] as Request));
      for (const [index, position] of again.entries()) outcomes[position] = answers[index] as Outcome;
    }
    return outcomes;
  }

  async #sendOnce(url: string, requests: readonly Request[]): Promise<Outcome[]> {
    const [only] = requests;
    if (only !== undefined && requests.length === 1) return [await this.#sendSingle(url, only)];
    const entries = requests.map((request, position) => ({ ...request, Id: String(position) }));
    const command = new SendMessageBatchCommand({ QueueUrl: url, Entries: entries });
    try {
      const answer = await this.#call(url, command, (c) => this.#client.send(c));
      const sent = new Map(answer.Successful?.map((entry) => [entry.Id, entry.MessageId]));
      const failed = new Map(answer.Failed?.map((entry) => [entry.Id, entryFailure(entry)]));
      return entries.map(({ Id: id }) => sent.get(id) ?? failed.get(id) ?? unanswered(url));
    } catch (error) {
      if (!(error instanceof SqsDelayError)) throw error;
      // One entry can make SQS refuse the whole batch: find out which, lose none.
      if (error instanceof SendFailed) return Promise.all(requests.map((request) => this.#sendSingle(url, request)));
      return requests.map(() => error);
    }
  }

  async #sendSingle(url: string, request: Request): Promise<Outcome> {
    const command = new SendMessageCommand({ QueueUrl: url, ...request });
    try {
      return (await this.#call(url, command, (c) => this.#client.send(c))).MessageId ?? unanswered(url);
    } catch (error) {
      if (error instanceof SqsDelayError) return error;
      throw error;
    }
  }

  /** Make a call, learn the broker's time from its answer, and translate its error. */
  async #call<C extends Command, A>(queue: string, command: C, send: (command: C) => Promise<A>): Promise<A> {
    (command as GetQueueUrlCommand).middlewareStack.add(
      (next) => async (args) => {
        const result = await next(args);
        this.#observe((result.response as { headers?: Record<string, string> }).headers ?? {});
        return result;
      },
      { step: "deserialize", priority: "low", name: "sqsdelayDate" },
    );
    try {
      return await send(command);
    } catch (error) {
      const failure = translated(error, queue);
      if (failure instanceof QueueMissing) this.#forget(queue);
      throw failure;
    }
  }

  #forget(url: string): void {
    for (const [key, known] of this.#urls) if (known === url) this.#urls.delete(key);
  }

  #observe(headers: Record<string, string>): void {
    // Without a request id it is no answer of SQS's, but a proxy's, whose clock says nothing.
    const dateMs = Date.parse(headers["date"] ?? "");
    if (headers["x-amzn-requestid"] !== undefined && !Number.isNaN(dateMs)) this.clock.observe(dateMs);
  }
}

function isForRetry(outcome: Outcome | undefined): boolean {
  return outcome instanceof SendFailed && outcome.transient;
}

function translated(error: unknown, queue: string): SqsDelayError {
  const code = error instanceof Error ? error.name : "Unknown";
  const words = error instanceof Error ? `${code}: ${error.message}` : String(error);
  if (MISSING.test(code)) {
    return new QueueMissing(`queue ${queue} does not exist; create it, or correct the name`, { cause: error });
  }
  if (PERMANENT.test(code)) {
    return new SendFailed(`SQS refused the call on ${queue}: ${words}`, code, false, { cause: error });
  }
  return new QueueUnavailable(`queue ${queue} cannot be used now: ${words}; try again later`, { cause: error });
}

function entryFailure({ Code: code = "Unknown", Message: words, SenderFault: senderFault }: BatchResultErrorEntry): SqsDelayError {
  const failed = `SQS failed the entry: ${code}: ${words ?? ""}`;
  if (senderFault && MAY_PASS.test(code)) return new QueueUnavailable(`${failed}; try again later`);
  return new SendFailed(failed, code, !senderFault);
}

function unanswered(url: string): SqsDelayError {
  return new SendFailed(`the answer of ${url} does not mention this entry`, "Unanswered", true);
}
