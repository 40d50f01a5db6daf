import { SQSClient } from "@aws-sdk/client-sqs";

import { type Clock, systemClock } from "./clock.js";
import { dueMsOf, secondsUntil } from "./delay.js";
import { type Endpoint, parseEndpoint, type QueueRef } from "./endpoint.js";
import { ConfigurationError, DelayQueueMissing, InvalidDelay, MessageTooLarge, QueueMissing, SqsDelayError } from "./errors.js";
import {
  DEFAULT_MAX_DELAY_SECONDS,
  MAX_BATCH_BYTES,
  MAX_BATCH_ENTRIES,
  MAX_DUE_MS,
  MAX_MESSAGE_BYTES,
  MAX_MESSAGE_TIMER_SECONDS,
  MIN_QUEUE_LIMIT_BYTES,
} from "./limits.js";
import { checked, type CheckedMessage, type Message, type SendOptions, sizeOf } from "./message.js";
import { type Outcome, Queues } from "./queues.js";
import { direct, type Entry, retimed, throughDelayQueue, throughDueQueue } from "./wire.js";

/** Where a message was sent first. */
export type Route = "direct" | "delay-queue" | "due-queue";

/** What became of one message; one that was not sent has an `error`. */
export interface SendResult {
  /** What receivers deduplicate on; SQS's own id for a direct message without one. */
  readonly messageId?: string | undefined;
  readonly route?: Route | undefined;
  /** Exact for `dueAt`, estimated with the broker's clock for `delay`. */
  readonly due?: Date | undefined;
  readonly sqsMessageId?: string | undefined;
  readonly error?: SqsDelayError | undefined;
}

export interface SenderSettings {
  /** The delay queues' delivery delay: 900 unless the endpoint was created with less. */
  hopSeconds?: number;
  /** How far ahead a message may be due: ten years unless the endpoint's delay consumer has another value. */
  maxDelaySeconds?: number;
  /** Batches `sendMany` keeps in flight. */
  concurrency?: number;
  /** The local clock, for tests. */
  clock?: Clock;
}

interface Prepared extends Entry {
  readonly url: string;
  readonly route: Route;
  readonly dueMs: number;
  readonly atMs: number | undefined;
}

const LIMIT_LIFETIME_MS = 300_000;

/** Sends to SQS with any delay. */
export class DelaySender {
  readonly #queues: Queues;
  readonly #clock: Clock;
  readonly #hopSeconds: number;
  readonly #maxDelaySeconds: number;
  readonly #concurrency: number;
  readonly #checkedHops = new Set<string>();
  readonly #limits = new Map<string, { limit: number; askedAt: number }>();

  /** @param client An SQS client; one with time limits of seconds is made when left out. */
  constructor(client: SQSClient = defaultClient(), settings: SenderSettings = {}) {
    this.#hopSeconds = inRange(settings, "hopSeconds", MAX_MESSAGE_TIMER_SECONDS, 1, MAX_MESSAGE_TIMER_SECONDS);
    const most = Math.floor(MAX_DUE_MS / 1000);
    this.#maxDelaySeconds = inRange(
      settings, "maxDelaySeconds", DEFAULT_MAX_DELAY_SECONDS, MAX_MESSAGE_TIMER_SECONDS, most,
    );
    this.#concurrency = inRange(settings, "concurrency", 8, 1, 1000);
    this.#clock = settings.clock ?? systemClock;
    this.#queues = new Queues(client, this.#clock);
  }

  /**
   * Send one message.
   *
   * @param endpoint The destination queue's name, URL or ARN.
   * @throws {SqsDelayError} One of its kinds: the message was not sent, or SQS did not say so.
   */
  async send(endpoint: string, body: string, options: SendOptions = {}): Promise<SendResult> {
    const prepared = await this.#prepare(parseEndpoint(endpoint), { ...options, body });
    const [outcome] = await this.#sendBatch([prepared]);
    const result = resultOf(prepared, outcome as Outcome);
    if (result.error !== undefined) throw result.error;
    return result;
  }

  /**
   * Send many messages in full batches, several at a time.
   *
   * @returns A result for each message, in order; none is lost for another's error.
   * @throws {InvalidEndpoint} Nothing was sent.
   */
  async sendMany(endpoint: string, messages: Iterable<Message>): Promise<SendResult[]> {
    const parsed = parseEndpoint(endpoint);
    const results: SendResult[] = [];
    const ready: [number, Prepared][] = [];
    for (const message of messages) {
      const position = results.push({}) - 1;
      try {
        ready.push([position, await this.#prepare(parsed, message)]);
      } catch (error) {
        if (!(error instanceof SqsDelayError)) throw error;
        results[position] = { messageId: message.messageId, error };
      }
    }
    const batches = fullBatches(ready);
    const worker = async (): Promise<void> => {
      for (let batch = batches.shift(); batch !== undefined; batch = batches.shift()) {
        const outcomes = await this.#sendBatch(batch.map(([, prepared]) => prepared));
        for (const [index, [position, prepared]] of batch.entries()) {
          results[position] = resultOf(prepared, outcomes[index] as Outcome);
        }
      }
    };
    await Promise.all(Array.from({ length: Math.min(this.#concurrency, batches.length) }, worker));
    return results;
  }

  async #prepare(endpoint: Endpoint, given: Message): Promise<Prepared> {
    const message = checked(given, endpoint.fifo);
    const { atMs } = message.due;
    let nowMs = this.#queues.clock.now();
    let dueMs = dueMsOf(message.due, nowMs);
    if (atMs !== undefined) nowMs = await this.#brokerNow(endpoint);
    const remaining = secondsUntil(dueMs, nowMs);
    this.#checkMaxDelay(remaining, dueMs);
    if (remaining <= this.#hopSeconds && !(endpoint.fifo && remaining > 0)) {
      const entry = direct(message, dueMs, remaining, endpoint.fifo);
      return { ...entry, url: await this.#queues.url(endpoint.queue), route: "direct", dueMs, atMs };
    }
    if (remaining <= this.#hopSeconds) {
      // The due time orders the messages of a group: it must be the broker's, as near as can be.
      dueMs = dueMsOf(message.due, await this.#brokerNow(endpoint));
      const entry = throughDueQueue(message, dueMs, remaining);
      await this.#checkArrival(endpoint, message);
      return { ...entry, url: await this.#queues.url(endpoint.dueQueue), route: "due-queue", dueMs, atMs };
    }
    const entry = throughDelayQueue(message, dueMs, dueMs - nowMs, endpoint.fifo);
    const url = await this.#delayQueueUrl(endpoint);
    await this.#checkArrival(endpoint, message);
    await this.#checkSize(endpoint.delayQueue, entry.size);
    return { ...entry, url, route: "delay-queue", dueMs, atMs };
  }

  #checkMaxDelay(remaining: number, dueMs: number): void {
    if (remaining > this.#maxDelaySeconds) {
      throw new InvalidDelay(
        `due in ${remaining} s, at ${dueMs} ms; this endpoint allows delays of up to ${this.#maxDelaySeconds} s; ` +
          "shorten it, or raise maxDelaySeconds and the delay consumer's limit (consume --max-delay, -c maxDelay=)",
      );
    }
  }

  /** The broker's now, for an absolute due time; SQS is asked if no recent answer had it. */
  async #brokerNow(endpoint: Endpoint): Promise<number> {
    if (!this.#queues.clock.synchronised) await this.#queues.synchronise(endpoint.queue);
    return this.#queues.clock.now();
  }

  async #delayQueueUrl({ queue, delayQueue }: Endpoint): Promise<string> {
    let url: string;
    try {
      url = await this.#queues.url(delayQueue);
    } catch (error) {
      if (!(error instanceof QueueMissing)) throw error;
      throw new DelayQueueMissing(
        `queue ${delayQueue.name} does not exist, so endpoint ${queue.name} accepts no delays above ` +
          `${this.#hopSeconds} s; create it with: sqsdelay endpoint create ${queue.name}`,
        { cause: error },
      );
    }
    if (this.#hopSeconds < MAX_MESSAGE_TIMER_SECONDS && !this.#checkedHops.has(url)) {
      // A hop longer than what the sender counts on would make every message late.
      const deployed = Number((await this.#queues.attributes(url))["DelaySeconds"] ?? 0);
      if (deployed > this.#hopSeconds) {
        throw new ConfigurationError(
          `hopSeconds=${this.#hopSeconds}, but ${delayQueue.name} holds messages for ${deployed} s; ` +
            `use hopSeconds: ${deployed}`,
        );
      }
      this.#checkedHops.add(url);
    }
    return url;
  }

  /** Refuse now, not when the message is due. What sqsdelay adds is left out there rather than refused. */
  async #checkArrival(endpoint: Endpoint, message: CheckedMessage): Promise<void> {
    const own = sizeOf(message.body, message.attributes);
    if (endpoint.fifo) await this.#checkSize(endpoint.dueQueue, own);
    await this.#checkSize(endpoint.queue, own);
  }

  async #checkSize(queue: QueueRef, size: number): Promise<void> {
    // No queue's limit is below 1 KiB: for smaller messages it is not asked.
    const limit = size <= MIN_QUEUE_LIMIT_BYTES ? MAX_MESSAGE_BYTES : await this.#limitOf(queue);
    if (size > limit) {
      throw new MessageTooLarge(
        `message of ${size} bytes (body and attributes in UTF-8) on its way through queue ${queue.name}, ` +
          `which takes ${limit} (its MaximumMessageSize); shorten it, or raise that to at most ${MAX_MESSAGE_BYTES}`,
      );
    }
  }

  async #limitOf(queue: QueueRef): Promise<number> {
    const known = this.#limits.get(queue.name);
    const now = this.#clock.monotonic();
    if (known !== undefined && now - known.askedAt <= LIMIT_LIFETIME_MS) return known.limit;
    let limit = MAX_MESSAGE_BYTES;
    try {
      limit = Number((await this.#queues.attributes(await this.#queues.url(queue)))["MaximumMessageSize"]) || limit;
    } catch (error) {
      // To know it is no condition: what is too large for a queue is refused when it is sent there.
      if (!(error instanceof SqsDelayError)) throw error;
    }
    this.#limits.set(queue.name, { limit, askedAt: now });
    return limit;
  }

  async #sendBatch(batch: readonly Prepared[]): Promise<Outcome[]> {
    const { clock } = this.#queues;
    // By a local clock a timer could end early: then it stays as it was worked out.
    const timed = ({ request, atMs }: Prepared) =>
      atMs !== undefined && clock.synchronised ? retimed(request, atMs, clock.now()) : request;
    return this.#queues.sendBatch(batch[0]?.url ?? "", batch.map(timed));
  }
}

function resultOf({ messageId, route, dueMs }: Prepared, outcome: Outcome): SendResult {
  const due = new Date(dueMs);
  if (typeof outcome !== "string") return { messageId, route, due, error: outcome };
  return { messageId: messageId ?? outcome, route, due, sqsMessageId: outcome };
}

/** As few calls as 10 entries and 1 MiB allow, in order for each queue. */
function fullBatches(ready: readonly [number, Prepared][]): [number, Prepared][][] {
  const batches: [number, Prepared][][] = [];
  const open = new Map<string, { batch: [number, Prepared][]; size: number }>();
  for (const item of ready) {
    const [, { url, size }] = item;
    let current = open.get(url);
    if (current === undefined || current.batch.length === MAX_BATCH_ENTRIES || current.size + size > MAX_BATCH_BYTES) {
      current = { batch: [], size: 0 };
      batches.push(current.batch);
      open.set(url, current);
    }
    current.batch.push(item);
    current.size += size;
  }
  return batches;
}

function inRange(
  settings: SenderSettings,
  name: "hopSeconds" | "maxDelaySeconds" | "concurrency",
  usual: number,
  least: number,
  most: number,
): number {
  const value: unknown = settings[name] ?? usual;
  if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > most) {
    throw new ConfigurationError(`${name}=${String(value)}; use a whole number from ${least} to ${most}`);
  }
  return value;
}

function defaultClient(): SQSClient {
  return new SQSClient({
    maxAttempts: 3,
    requestHandler: { connectionTimeout: 5000, requestTimeout: 5000, throwOnRequestTimeout: true },
  });
}
