import { InvalidEndpoint } from "./errors.js";
import { MAX_ENDPOINT_CHARS, MAX_QUEUE_NAME_CHARS } from "./limits.js";

/** One queue: its name, and where the caller said so, its account, region and URL. */
export interface QueueRef {
  readonly name: string;
  readonly accountId?: string | undefined;
  readonly region?: string | undefined;
  readonly url?: string | undefined;
}

/** A destination queue with the queues beside it that serve its delays. */
export interface Endpoint {
  readonly queue: QueueRef;
  readonly fifo: boolean;
  readonly delayQueue: QueueRef;
  readonly dueQueue: QueueRef;
}

const ARN = /^arn:[a-z-]+:sqs:([a-z0-9-]+):(\d{12}):([^:/]+)$/;
const AWS_HOST =
  /^(?:(?:sqs|queue)\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)|([a-z0-9-]+)\.queue\.amazonaws\.com)$/;

/** The endpoint of a queue name, queue URL or queue ARN. */
export function parseEndpoint(text: unknown): Endpoint {
  if (typeof text !== "string") {
    throw new InvalidEndpoint(`endpoint ${String(text)} is not a queue name, queue URL or queue ARN`);
  }
  const queue = text.startsWith("arn:") ? fromArn(text) : text.includes("://") ? fromUrl(text) : { name: text };
  checkName(queue.name);
  const fifo = queue.name.endsWith(".fifo");
  const base = withoutFifo(queue.name);
  const beside = (suffix: string): QueueRef => ({ ...queue, name: base + suffix, url: undefined });
  return { queue, fifo, delayQueue: beside("-delay.fifo"), dueQueue: beside("-due") };
}

function withoutFifo(name: string): string {
  return name.endsWith(".fifo") ? name.slice(0, -".fifo".length) : name;
}

function fromArn(text: string): QueueRef {
  const [, region, accountId, name] = ARN.exec(text) ?? [];
  if (name === undefined) {
    throw new InvalidEndpoint(`endpoint "${text}" is not a queue ARN; write arn:aws:sqs:REGION:ACCOUNT:NAME`);
  }
  return { name, accountId, region };
}

function fromUrl(text: string): QueueRef {
  if (!URL.canParse(text)) throw new InvalidEndpoint(`endpoint "${text}" is not a queue URL`);
  const { hostname, pathname } = new URL(text);
  const segments = pathname.split("/").filter((segment) => segment !== "");
  const name = segments.at(-1);
  if (name === undefined) {
    throw new InvalidEndpoint(`endpoint "${text}" is not a queue URL: it has no queue name`);
  }
  const account = segments.at(-2);
  const [, region, legacy] = AWS_HOST.exec(hostname) ?? [];
  return {
    name,
    accountId: account !== undefined && /^\d{12}$/.test(account) ? account : undefined,
    region: region ?? legacy,
    url: text.replace(/\/+$/, ""),
  };
}

function checkName(name: string): void {
  const base = withoutFifo(name);
  if (!/^[A-Za-z0-9_-]+$/.test(base)) {
    throw new InvalidEndpoint(`endpoint "${name}" is not a queue name; use letters, digits, '-' and '_'`);
  }
  if (base.length > MAX_ENDPOINT_CHARS) {
    throw new InvalidEndpoint(
      `endpoint "${name}" has ${base.length} characters; the limit is ${MAX_ENDPOINT_CHARS} ` +
        `(SQS takes ${MAX_QUEUE_NAME_CHARS}, and "-delay-error" is added); shorten it`,
    );
  }
  if (base.endsWith("-delay-error") || base.endsWith("-delay")) {
    throw new InvalidEndpoint(
      `endpoint "${name}" ends like one of sqsdelay's own queues; name the destination queue`,
    );
  }
}
