/** The limits of sqsdelay/core/limits.py, where each has its source; contract/vectors.json keeps them alike. */

export const MAX_MESSAGE_TIMER_SECONDS = 900;
export const MAX_BATCH_ENTRIES = 10;
export const MAX_BATCH_BYTES = 1_048_576;
export const MAX_MESSAGE_BYTES = 1_048_576;
export const MIN_QUEUE_LIMIT_BYTES = 1024;
export const MAX_ATTRIBUTES = 10;
export const MAX_ATTRIBUTE_NAME_CHARS = 256;
export const MAX_QUEUE_NAME_CHARS = 80;
export const MAX_ENDPOINT_CHARS = 68;
export const MAX_ID_CHARS = 128;
/** The last second of the year 9999, epoch milliseconds. */
export const MAX_DUE_MS = 253_402_300_799_000;
/** Ten years of 365 days. */
export const DEFAULT_MAX_DELAY_SECONDS = 315_360_000;
/** Sends of an entry that SQS fails without the sender's fault, the first included. */
export const ENTRY_ATTEMPTS = 4;
