import type { SendMessageCommandInput } from "@aws-sdk/client-sqs";

import { secondsUntil } from "./delay.js";
import { newDeduplicationId, newMessageId } from "./ids.js";
import { type Attribute, type Attributes, type CheckedMessage, checkLimits, fits, text } from "./message.js";

export const DELAY_SECONDS = "NServiceBus.AmazonSQS.DelaySeconds";
export const DUE_AT = "sqsdelay.DueAt";
const WAS_DUE_AT = "sqsdelay.WasDueAt";
const DELAY_MS = "sqsdelay.DelayMilliseconds";
const MESSAGE_ID = "sqsdelay.MessageId";
const GROUP_ID = "sqsdelay.MessageGroupId";
const DEDUPLICATION_ID = "sqsdelay.MessageDeduplicationId";
const NSERVICEBUS_ID = "NServiceBus.MessageId";

/** What goes into one `SendMessage`, the queue aside. */
export type Request = Omit<SendMessageCommandInput, "QueueUrl" | "MessageBody"> & { MessageBody: string };

/** A checked message in the shape its queue gets. */
export interface Entry {
  readonly request: Request;
  /** Bytes as SQS counts them. */
  readonly size: number;
  readonly messageId: string | undefined;
}

/** To the destination itself, with a message timer. It carries an id only if its sender named one. */
export function direct(message: CheckedMessage, dueMs: number, remaining: number, fifo: boolean): Entry {
  const { messageId } = message;
  const added: Attributes = messageId === undefined ? {} : { [MESSAGE_ID]: text(messageId) };
  const timed = !fifo && (message.due.delayMs !== undefined || message.due.atMs !== undefined);
  return {
    request: {
      ...request(message, { ...message.attributes, ...added }),
      ...(timed && { DelaySeconds: remaining }),
      ...(message.groupId !== undefined && { MessageGroupId: message.groupId }),
      ...(fifo && { MessageDeduplicationId: message.deduplicationId ?? messageId ?? newMessageId(dueMs) }),
    },
    size: checkLimits(message.body, message.attributes, added),
    messageId,
  };
}

/** A FIFO queue takes no message timers: the standard queue before it does. */
export function throughDueQueue(message: CheckedMessage, dueMs: number, remaining: number): Entry {
  const messageId = message.messageId ?? newMessageId(dueMs);
  const added = {
    [GROUP_ID]: text(message.groupId ?? ""),
    [DEDUPLICATION_ID]: text(message.deduplicationId ?? messageId),
    [MESSAGE_ID]: text(messageId),
    [DUE_AT]: text(String(dueMs)),
  };
  const size = checkLimits(message.body, message.attributes, added);
  return {
    request: { ...request(message, { ...message.attributes, ...added }), DelaySeconds: remaining },
    size,
    messageId,
  };
}

export function throughDelayQueue(message: CheckedMessage, dueMs: number, remainingMs: number, fifo: boolean): Entry {
  const messageId = message.messageId ?? newMessageId(dueMs);
  const { atMs } = message.due;
  const added: Record<string, Attribute> = { [DELAY_SECONDS]: text(String(Math.ceil(remainingMs / 1000))) };
  if (atMs !== undefined) added[DUE_AT] = text(String(atMs));
  // A relative delay starts at the broker's SentTimestamp, which only the first hop knows.
  else if (remainingMs % 1000 !== 0) added[DELAY_MS] = text(String(remainingMs));
  if (message.groupId !== undefined) added[GROUP_ID] = text(message.groupId);
  if (fifo) added[DEDUPLICATION_ID] = text(message.deduplicationId ?? messageId);
  let wired: Attributes = { ...message.attributes, ...added };
  const identified = { ...wired, [MESSAGE_ID]: text(messageId) };
  // A hop by an NServiceBus endpoint adds an attribute of its own: without room for both, none of ours.
  if (fits(message.body, { ...identified, [NSERVICEBUS_ID]: text("x".repeat(36)) })) wired = identified;
  return {
    request: {
      ...request(message, wired),
      MessageGroupId: messageId,
      MessageDeduplicationId: newDeduplicationId(),
    },
    size: checkWholeWay(message, wired, added, messageId, dueMs),
    messageId,
  };
}

/** The size on the delay queue, if the message also fits at every hop and at the destination. */
function checkWholeWay(
  message: CheckedMessage,
  wired: Attributes,
  added: Attributes,
  messageId: string,
  dueMs: number,
): number {
  const atHops: Record<string, Attribute> = { ...added, [DUE_AT]: text(String(dueMs)) };
  delete atHops[DELAY_MS];
  const { [GROUP_ID]: group, [DEDUPLICATION_ID]: deduplication } = added;
  const arrival = { [MESSAGE_ID]: text(messageId), [WAS_DUE_AT]: text(String(dueMs)) };
  // On the due queue of a FIFO endpoint the queue's ids still travel as attributes.
  const atDestination: Attributes =
    deduplication === undefined || group === undefined
      ? arrival
      : { [MESSAGE_ID]: text(messageId), [DUE_AT]: text(String(dueMs)), [GROUP_ID]: group, [DEDUPLICATION_ID]: deduplication };
  const ours = Object.fromEntries(Object.entries(wired).filter(([name]) => !(name in message.attributes)));
  return checkLimits(message.body, message.attributes, ours, atHops, atDestination);
}

function request(message: CheckedMessage, attributes: Attributes): Request {
  return {
    MessageBody: message.body,
    ...(Object.keys(attributes).length > 0 && { MessageAttributes: { ...attributes } }),
    ...(message.traceHeader !== undefined && {
      MessageSystemAttributes: { AWSTraceHeader: text(message.traceHeader) },
    }),
  };
}

/** The same request at a later time: only an absolute due time leaves less to wait. */
export function retimed(request: Request, atMs: number, nowMs: number): Request {
  const remaining = secondsUntil(atMs, nowMs);
  if (request.DelaySeconds !== undefined) return { ...request, DelaySeconds: remaining };
  if (request.MessageAttributes?.[DELAY_SECONDS] === undefined) return request;
  return {
    ...request,
    MessageAttributes: { ...request.MessageAttributes, [DELAY_SECONDS]: text(String(remaining)) },
  };
}
