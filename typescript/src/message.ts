import type { MessageAttributeValue } from "@aws-sdk/client-sqs";

import { dueTime, type DueTime } from "./delay.js";
import { InvalidMessage, MessageTooLarge, TooManyAttributes } from "./errors.js";
import { MAX_ATTRIBUTE_NAME_CHARS, MAX_ATTRIBUTES, MAX_ID_CHARS, MAX_MESSAGE_BYTES } from "./limits.js";

/** A plain value, or the SDK's shape for custom data types. */
export type AttributeInput = string | number | bigint | Uint8Array | MessageAttributeValue;

export interface SendOptions {
  /** Seconds, whole or fractional, from the broker's `SentTimestamp`; not with `dueAt`. */
  delay?: number | undefined;
  /** When the message should arrive; one in the past is sent at once; not with `delay`. */
  dueAt?: Date | undefined;
  /** Those of a received message will do: sqsdelay's own and NServiceBus's delay are replaced. */
  attributes?: Readonly<Record<string, AttributeInput>> | undefined;
  /** What receivers deduplicate on: 1 to 128 letters, digits and punctuation; generated when left out. */
  messageId?: string | undefined;
  /** Message group at the destination: required by a FIFO queue; a fair-queue group on a standard one. */
  messageGroupId?: string | undefined;
  /** FIFO queues only; the message id when left out. */
  messageDeduplicationId?: string | undefined;
  /** X-Ray trace header, sent as `AWSTraceHeader`. */
  traceHeader?: string | undefined;
}

export interface Message extends SendOptions {
  /** Text; every character must be one SQS takes. */
  body: string;
}

/** String and Number have a `StringValue`, Binary a `BinaryValue`. */
export interface Attribute {
  DataType: string;
  StringValue?: string;
  BinaryValue?: Uint8Array;
}
export type Attributes = Readonly<Record<string, Attribute>>;

export interface CheckedMessage {
  readonly body: string;
  readonly attributes: Attributes;
  readonly due: DueTime;
  readonly messageId?: string | undefined;
  readonly groupId?: string | undefined;
  readonly deduplicationId?: string | undefined;
  readonly traceHeader?: string | undefined;
}

const KNOWN = new Set([
  "body", "delay", "dueAt", "attributes", "messageId", "messageGroupId", "messageDeduplicationId", "traceHeader",
]);
const ID = /^[!-~]{1,128}$/;
const ATTRIBUTE_NAME = /^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$/;
const DATA_TYPE = /^(String|Number|Binary)(\.\S{1,249})?$/;
const FORBIDDEN = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/u;

/** The message, checked for what can be told before its way is known; not yet its size. */
export function checked(message: Message, fifo: boolean): CheckedMessage {
  for (const name of Object.keys(message)) {
    // A misspelt delay would be sent at once.
    if (!KNOWN.has(name)) throw new InvalidMessage(`unknown option ${name}; use ${[...KNOWN].join(", ")}`);
  }
  const due = dueTime(message.delay, message.dueAt);
  if (typeof message.body !== "string" || message.body === "") {
    throw new InvalidMessage(`body is ${message.body === "" ? "empty" : typeof message.body}; SQS takes text of at least 1 character`);
  }
  checkCharacters(message.body, "body");
  checkIds(message, fifo);
  const { traceHeader } = message;
  if (traceHeader !== undefined && (typeof traceHeader !== "string" || traceHeader === "")) {
    throw new InvalidMessage(`traceHeader=${String(traceHeader)} is not an X-Ray trace header; give text such as 'Root=1-…'`);
  }
  return {
    body: message.body,
    attributes: attributesOf(message.attributes ?? {}),
    due,
    messageId: message.messageId,
    groupId: message.messageGroupId,
    deduplicationId: message.messageDeduplicationId,
    traceHeader,
  };
}

export function text(value: string): Attribute {
  return { DataType: "String", StringValue: value };
}

function attributesOf(given: Readonly<Record<string, AttributeInput>>): Attributes {
  const found: Record<string, Attribute> = {};
  for (const [name, value] of Object.entries(given)) {
    // A receiver's attributes may be passed on: the new message gets a delay and an id of its own.
    if (name.startsWith("sqsdelay.") || name === "NServiceBus.AmazonSQS.DelaySeconds") continue;
    found[name] = attributeOf(name, value);
  }
  return found;
}

function attributeOf(name: string, value: AttributeInput): Attribute {
  if (!ATTRIBUTE_NAME.test(name)) {
    throw new InvalidMessage(`attribute name "${name}" is not allowed by SQS; use letters, digits, '-', '_' and inner '.'`);
  }
  if (name.length > MAX_ATTRIBUTE_NAME_CHARS) {
    throw new InvalidMessage(
      `attribute name "${name.slice(0, 20)}"… has ${name.length} characters; ` +
        `the limit is ${MAX_ATTRIBUTE_NAME_CHARS}; shorten it`,
    );
  }
  if (/^(aws|amazon)\./i.test(name)) {
    throw new InvalidMessage(`attribute name "${name}" has a prefix reserved for AWS; choose another`);
  }
  const attribute = shaped(name, value);
  if (!attribute.StringValue && !attribute.BinaryValue?.length) {
    throw new InvalidMessage(`attribute "${name}" is empty; SQS requires at least 1 byte`);
  }
  checkCharacters(attribute.StringValue ?? "", `attribute "${name}"`);
  return attribute;
}

function shaped(name: string, value: AttributeInput): Attribute {
  if (typeof value === "string") return text(value);
  if (value instanceof Uint8Array) return { DataType: "Binary", BinaryValue: value };
  if (typeof value === "bigint" || (typeof value === "number" && Number.isFinite(value))) {
    return { DataType: "Number", StringValue: String(value) };
  }
  if (typeof value !== "object" || value === null) {
    throw new InvalidMessage(
      `attribute "${name}" is ${String(value)}; give text, bytes, a number or the SDK's { DataType: … } shape`,
    );
  }
  const { DataType: type, StringValue: string, BinaryValue: binary } = value;
  if (typeof type !== "string" || !DATA_TYPE.test(type)) {
    throw new InvalidMessage(
      `attribute "${name}" has DataType ${JSON.stringify(type)}; ` +
        "use String, Number or Binary, optionally with a .custom suffix",
    );
  }
  if (type.startsWith("Binary") && binary instanceof Uint8Array) return { DataType: type, BinaryValue: binary };
  if (!type.startsWith("Binary") && typeof string === "string") return { DataType: type, StringValue: string };
  const wanted = type.startsWith("Binary") ? "BinaryValue" : "StringValue";
  throw new InvalidMessage(`attribute "${name}" of DataType "${type}" needs a ${wanted}`);
}

function checkCharacters(value: string, what: string): void {
  const match = FORBIDDEN.exec(value);
  if (match !== null) {
    const code = (match[0].codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
    throw new InvalidMessage(
      `${what} contains the character U+${code} at position ${match.index}, which SQS refuses; ` +
        "encode it (e.g. base64) or send it as a Binary attribute",
    );
  }
}

function checkIds(message: Message, fifo: boolean): void {
  for (const name of ["messageId", "messageGroupId", "messageDeduplicationId"] as const) {
    const value: unknown = message[name];
    if (value !== undefined && (typeof value !== "string" || !ID.test(value))) {
      throw new InvalidMessage(`${name}=${JSON.stringify(value)} is not valid; use 1 to ${MAX_ID_CHARS} letters, digits and punctuation`);
    }
  }
  if (fifo && message.messageGroupId === undefined) {
    throw new InvalidMessage("messageGroupId is missing; FIFO queues require one and keep the order within it");
  }
  if (!fifo && message.messageDeduplicationId !== undefined) {
    throw new InvalidMessage(
      "messageDeduplicationId is for FIFO queues; leave it out: receivers of a standard queue deduplicate on messageId",
    );
  }
}

const encoder = new TextEncoder();

/** Bytes SQS counts: body, and names, types and values of the attributes, in UTF-8. */
export function sizeOf(body: string, attributes: Attributes): number {
  let size = encoder.encode(body).length;
  for (const [name, { DataType, StringValue = "", BinaryValue }] of Object.entries(attributes)) {
    size += encoder.encode(name + DataType + StringValue).length + (BinaryValue?.length ?? 0);
  }
  return size;
}

export function fits(body: string, attributes: Attributes): boolean {
  return Object.keys(attributes).length <= MAX_ATTRIBUTES && sizeOf(body, attributes) <= MAX_MESSAGE_BYTES;
}

/** The size of a message with the first additions, if SQS takes it with each of them. */
export function checkLimits(body: string, attributes: Attributes, ...additions: Attributes[]): number {
  const added = Math.max(0, ...additions.map((addition) => Object.keys(addition).length));
  const count = Object.keys(attributes).length + added;
  if (count > MAX_ATTRIBUTES) {
    throw new TooManyAttributes(
      `${count} message attributes (${added} of them added for the delay); ` +
        `the limit is ${MAX_ATTRIBUTES}; move ${count - MAX_ATTRIBUTES} into the body`,
    );
  }
  const own = sizeOf(body, attributes);
  const sizes = [...additions, ...(additions.length ? [] : [{}])].map((addition) => own + sizeOf("", addition));
  const largest = Math.max(...sizes);
  if (largest > MAX_MESSAGE_BYTES) {
    throw new MessageTooLarge(
      `message of ${largest} bytes (body and attributes in UTF-8, ${largest - own} bytes added for the delay); ` +
        `the limit is ${MAX_MESSAGE_BYTES}; shorten it, or keep the body elsewhere and send where it is`,
    );
  }
  return sizes[0] ?? own;
}
