/** The sender against contract/vectors.json, which Python's sender answers, too. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { SQSClient } from "@aws-sdk/client-sqs";

import * as sqsdelay from "sqsdelay";

const contract = JSON.parse(readFileSync(process.env.VECTORS, "utf8"));
const nowMs = Date.parse(contract.now);
const clock = { now: () => nowMs, monotonic: () => 0 };
const ACCOUNT = "123456789012";

/** SQS as a vector has it: it answers over HTTP, dated, and notes what it was sent. */
class Sqs {
  sends = [];
  calls = [];

  constructor(vector) {
    const name = vector.endpoint.split(/[:/]/).at(-1);
    const base = name.replace(/\.fifo$/, "");
    const queues = [name, `${base}-delay.fifo`, ...(name.endsWith(".fifo") ? [`${base}-due`] : [])];
    this.queues = new Set(queues.filter((queue) => !vector.missing?.includes(queue)));
    this.deployed = vector.deployed ?? {};
    this.client = new SQSClient({
      region: "us-east-1",
      credentials: { accessKeyId: "test", secretAccessKey: "test" },
      md5: false,
      requestHandler: { handle: async (request) => ({ response: this.answer(request) }) },
    });
  }

  answer(request) {
    const operation = request.headers["x-amz-target"].split(".")[1];
    const asked = JSON.parse(Buffer.from(request.body).toString());
    const [statusCode, body] = this[operation](asked);
    const headers = {
      "content-type": "application/x-amz-json-1.0",
      date: new Date(nowMs).toUTCString(),
      "x-amzn-requestid": "r-1",
    };
    return { statusCode, headers, body: new Blob([JSON.stringify(body)]).stream() };
  }

  GetQueueUrl({ QueueName: name, QueueOwnerAWSAccountId: account = ACCOUNT }) {
    if (!this.queues.has(name)) return [400, { __type: "com.amazonaws.sqs#QueueDoesNotExist", message: "no such queue" }];
    return [200, { QueueUrl: `https://sqs.us-east-1.amazonaws.com/${account}/${name}` }];
  }

  GetQueueAttributes({ QueueUrl: url }) {
    return [200, { Attributes: this.deployed[url.split("/").at(-1)] ?? { DelaySeconds: "900" } }];
  }

  SendMessage(asked) {
    this.calls.push({ queueUrl: asked.QueueUrl, entries: 1 });
    this.sends.push(asked);
    return [200, { MessageId: `sqs-${this.sends.length}` }];
  }

  SendMessageBatch({ QueueUrl: queueUrl, Entries: entries }) {
    this.calls.push({ queueUrl, entries: entries.length });
    return [200, { Successful: entries.map(({ Id }) => ({ Id, MessageId: `sqs-${Id}` })) }];
  }
}

function messageOf({ body, bodyRepeat = 1, dueAt, attributes = {}, times: _, ...rest }) {
  const bytes = (value) =>
    value.BinaryValue === undefined ? value : { ...value, BinaryValue: Buffer.from(value.BinaryValue, "base64") };
  return {
    ...rest,
    body: body.repeat(bodyRepeat),
    ...(dueAt !== undefined && { dueAt: new Date(dueAt) }),
    attributes: Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, bytes(value)])),
  };
}

/** The request with what is made up anew each time named, as the contract has it. */
function shown({ QueueUrl: queueUrl, ...request }, result, vector) {
  const { id } = vector.sends;
  let text = JSON.stringify({ ...request, ...(request.MessageBody !== vector.message.body && { MessageBody: "{body}" }) });
  for (const madeUp of [result.messageId, request.MessageDeduplicationId]) {
    if (id !== undefined && new RegExp(id).test(madeUp ?? "")) text = text.replaceAll(madeUp, "{id}");
  }
  text = text.replace(/send\.[0-9a-f]{64}/, "{deduplication id}");
  return {
    route: result.route,
    queueUrl,
    dueMs: result.due.getTime(),
    ...(id !== undefined && { id }),
    messageId: id !== undefined && new RegExp(id).test(result.messageId) ? "{id}" : result.messageId,
    request: JSON.parse(text),
  };
}

for (const vector of contract.vectors) {
  test(vector.name, async () => {
    const sqs = new Sqs(vector);
    const sender = new sqsdelay.DelaySender(sqs.client, { ...vector.settings, clock });
    const { body, ...options } = messageOf(vector.message);
    const sending = sender.send(vector.endpoint, body, options);
    if (vector.error === undefined) {
      const result = await sending;
      assert.equal(sqs.sends.length, 1);
      assert.deepEqual(shown(sqs.sends[0], result, vector), vector.sends);
      return;
    }
    await assert.rejects(sending, (error) => {
      assert.ok(error instanceof sqsdelay[vector.error], `${error.name}: ${error.message}`);
      assert.equal(error.name, vector.error);
      for (const words of vector.says) assert.ok(error.message.includes(words), `${words}: ${error.message}`);
      return true;
    });
    assert.deepEqual(sqs.sends, []);
  });
}

for (const batch of contract.batches) {
  test(batch.name, async () => {
    const sqs = new Sqs(batch);
    const messages = batch.messages.flatMap((m) => Array.from({ length: m.times ?? 1 }, () => messageOf(m)));
    const results = await new sqsdelay.DelaySender(sqs.client, { clock }).sendMany(batch.endpoint, messages);
    const order = (a, b) => a.queueUrl.localeCompare(b.queueUrl) || a.entries - b.entries;
    assert.deepEqual(sqs.calls.toSorted(order), batch.calls);
    const failed = results.flatMap((result, position) => (result.error ? [[position, result.error.name]] : []));
    assert.deepEqual(Object.fromEntries(failed), batch.errors);
  });
}

test("the limits are those of the contract", async () => {
  const limits = await import(new URL("limits.js", import.meta.resolve("sqsdelay")));
  assert.deepEqual({ ...limits }, contract.limits);
});
