const LETTERS = "0123456789abcdefghjkmnpqrstvwxyz";

/** `u` and a ULID in small letters whose time is the due time: a store finds a message by its id alone. */
export function newMessageId(dueMs: number): string {
  let value = BigInt(dueMs);
  for (const byte of randomBytes(10)) value = (value << 8n) | BigInt(byte);
  let letters = "";
  for (let shift = 125n; shift >= 0n; shift -= 5n) letters += LETTERS[Number((value >> shift) & 31n)];
  return `u${letters}`;
}

/** One of its own for a call to send: its retries are one message, and no other is taken for it. */
export function newDeduplicationId(): string {
  const digits = Array.from(randomBytes(32), (byte) => byte.toString(16).padStart(2, "0"));
  return `send.${digits.join("")}`;
}

function randomBytes(count: number): Uint8Array {
  return globalThis.crypto.getRandomValues(new Uint8Array(count));
}
