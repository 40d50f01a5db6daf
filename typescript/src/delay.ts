import { InvalidDelay } from "./errors.js";
import { MAX_DUE_MS } from "./limits.js";

/** When a message is due: so many milliseconds from now, or at an absolute time. Neither is at once. */
export interface DueTime {
  readonly delayMs?: number;
  readonly atMs?: number;
}

export function dueTime(delay: unknown, dueAt: unknown): DueTime {
  if (delay !== undefined && dueAt !== undefined) {
    throw new InvalidDelay("delay and dueAt are both given; give only one");
  }
  if (delay !== undefined) return { delayMs: delayMs(delay) };
  return dueAt === undefined ? {} : { atMs: dueAtMs(dueAt) };
}

function delayMs(delay: unknown): number {
  if (typeof delay !== "number" || !Number.isFinite(delay)) {
    throw new InvalidDelay(`delay=${String(delay)} is not a finite number; give seconds`);
  }
  if (delay < 0) {
    throw new InvalidDelay(`delay=${delay} is negative; use 0 or more (a dueAt in the past is sent at once)`);
  }
  const milliseconds = Math.ceil(delay * 1000);
  if (milliseconds > MAX_DUE_MS) {
    throw new InvalidDelay(`delay=${delay} is longer than ${MAX_DUE_MS} ms, which ends after the year 9999; give a shorter delay`);
  }
  return milliseconds;
}

function dueAtMs(dueAt: unknown): number {
  if (!(dueAt instanceof Date) || Number.isNaN(dueAt.getTime())) {
    throw new InvalidDelay(`dueAt=${String(dueAt)} is not a valid Date; give e.g. new Date("2027-01-31T09:00:00Z")`);
  }
  return Math.max(0, dueAt.getTime());
}

/** Epoch milliseconds, counted from `nowMs`. */
export function dueMsOf(due: DueTime, nowMs: number): number {
  const dueMs = due.atMs ?? nowMs + (due.delayMs ?? 0);
  if (dueMs > MAX_DUE_MS) {
    throw new InvalidDelay(`due time ${dueMs} ms is after the limit of ${MAX_DUE_MS} ms (end of the year 9999); give a shorter delay`);
  }
  return dueMs;
}

/** Whole seconds from now until due, rounded up, 0 when it has passed. */
export function secondsUntil(dueMs: number, nowMs: number): number {
  return Math.max(0, Math.ceil((dueMs - nowMs) / 1000));
}
