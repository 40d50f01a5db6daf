/** What a network and a service do to a sender; and what JavaScript lets pass where types would not. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { SQSClient } from "@aws-sdk/client-sqs";

import { ConfigurationError, DelaySender, InvalidMessage, QueueUnavailable, SendFailed } from "sqsdelay";

function senderOver(answer, settings) {
  const client = new SQSClient({
    region: "us-east-1",
    credentials: { accessKeyId: "test", secretAccessKey: "test" },
    md5: false,
    maxAttempts: 1,
    requestHandler: {
      handle: async ({ headers, body }) => {
        const asked = JSON.parse(Buffer.from(body).toString());
        const { statusCode = 200, ...told } = answer(headers["x-amz-target"].split(".")[1], asked);
        const stamped = { date: new Date(told.nowMs ?? Date.now()).toUTCString(), "x-amzn-requestid": "r-1" };
        return { response: { statusCode, headers: stamped, body: new Blob([JSON.stringify(told)]).stream() } };
      },
    },
  });
  return new DelaySender(client, settings);
}

const url = ({ QueueName: name }) => ({ QueueUrl: `https://sqs.us-east-1.amazonaws.com/123456789012/${name}` });
const entryOf = ({ Id }) => ({ Id, MessageId: `sqs-${Id}` });

test("an entry that SQS fails by itself is sent again, the others are not", async () => {
  const batches = [];
  const sender = senderOver((operation, asked) => {
    if (operation === "GetQueueUrl") return url(asked);
    if (operation === "SendMessage") {
      batches.push([asked.MessageBody]);
      return { MessageId: "again" };
    }
    batches.push(asked.Entries.map((entry) => entry.MessageBody));
    const [first, ...rest] = asked.Entries;
    return {
      Successful: rest.map(entryOf),
      Failed: [{ Id: first.Id, Code: "InternalError", Message: "oh", SenderFault: false }],
    };
  });
  const results = await sender.sendMany("orders", [{ body: "a" }, { body: "b" }, { body: "c" }]);
  assert.deepEqual(batches, [["a", "b", "c"], ["a"]]);
  assert.deepEqual(results.map((result) => result.sqsMessageId), ["again", "sqs-1", "sqs-2"]);
});

test("a batch that SQS refuses as a whole is sent one by one: only the bad message fails", async () => {
  const sender = senderOver((operation, asked) => {
    if (operation === "GetQueueUrl") return url(asked);
    if (operation === "SendMessage" && asked.MessageBody !== "bad") return { MessageId: asked.MessageBody };
    return { statusCode: 400, __type: "com.amazonaws.sqs#InvalidMessageContents", message: "no" };
  });
  const [good, bad] = await sender.sendMany("orders", [{ body: "good" }, { body: "bad" }]);
  assert.equal(good.sqsMessageId, "good");
  assert.ok(bad.error instanceof SendFailed);
  assert.deepEqual([bad.error.code, bad.error.transient], ["InvalidMessageContents", false]);
});

test("a missing region is an error of ours, which says what to set", async () => {
  const none = { AWS_REGION: undefined, AWS_DEFAULT_REGION: undefined, AWS_CONFIG_FILE: "/dev/null" };
  const before = { ...process.env };
  for (const [name, value] of Object.entries(none)) value ? (process.env[name] = value) : delete process.env[name];
  try {
    await assert.rejects(new DelaySender().send("orders", "x", { delay: 3600 }), (error) => {
      assert.ok(error instanceof ConfigurationError, String(error));
      return /Region is missing.*set AWS_REGION/.test(error.message);
    });
  } finally {
    process.env = before;
  }
});

test("denied and unreachable are unavailable, for each message of a batch", async () => {
  const denied = senderOver((operation, asked) =>
    operation === "GetQueueUrl"
      ? url(asked)
      : { statusCode: 403, __type: "com.amazonaws.sqs#AccessDeniedException", message: "no" },
  );
  const results = await denied.sendMany("orders", [{ body: "a" }, { body: "b" }]);
  for (const { error } of results) assert.ok(error instanceof QueueUnavailable, String(error));
  const nowhere = new DelaySender(
    new SQSClient({
      region: "us-east-1",
      endpoint: "http://127.0.0.1:9",
      maxAttempts: 1,
      credentials: { accessKeyId: "test", secretAccessKey: "test" },
    }),
  );
  await assert.rejects(nowhere.send("orders", "x"), /QueueUnavailable: queue orders cannot be used now: .*try again later/);
});

test("a wrong local clock plays no part in an absolute due time", async () => {
  const sent = [];
  const trueMs = Date.parse("2027-01-15T08:00:00Z");
  const clock = { now: () => trueMs + 3_600_000, monotonic: () => 0 };
  const sender = senderOver(
    (operation, asked) => {
      if (operation === "GetQueueUrl") return { ...url(asked), nowMs: trueMs };
      sent.push(asked);
      return { MessageId: "m", nowMs: trueMs };
    },
    { clock },
  );
  await sender.send("orders", "x", { dueAt: new Date(trueMs + 600_000) });
  assert.equal(sent[0].DelaySeconds, 600);
});

test("a misspelt option is refused, where the message would be sent at once", async () => {
  const sender = senderOver(() => assert.fail("nothing is asked"));
  await assert.rejects(sender.send("orders", "x", { delaySeconds: 3600 }), InvalidMessage);
  for (const settings of [{ hopSeconds: 0 }, { hopSeconds: 901 }, { maxDelaySeconds: 60 }, { concurrency: 1.5 }]) {
    assert.throws(() => new DelaySender(undefined, settings), /use a whole number from/);
  }
});
