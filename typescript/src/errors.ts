/** Base of all errors of this package. Each text states the value, the limit and the remedy. */
export class SqsDelayError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** A delay or due time that cannot be honoured. */
export class InvalidDelay extends SqsDelayError {}

/** An endpoint that is not a usable queue name, URL or ARN. */
export class InvalidEndpoint extends SqsDelayError {}

/** A message SQS would refuse, found before anything is sent. */
export class InvalidMessage extends SqsDelayError {}

/** Body and attributes together exceed the size limit of a message. */
export class MessageTooLarge extends InvalidMessage {}

/** More message attributes than SQS takes, those of the delay included. */
export class TooManyAttributes extends InvalidMessage {}

/** Settings that contradict each other or the deployed queues. */
export class ConfigurationError extends SqsDelayError {}

/** A queue that should exist does not. */
export class QueueMissing extends SqsDelayError {}

/** The endpoint has no delay queue, so it does not accept delays above a message timer (yet). */
export class DelayQueueMissing extends QueueMissing {}

/** SQS could not be reached, throttled or denied access: try again later. */
export class QueueUnavailable extends SqsDelayError {}

/** SQS refused a message. */
export class SendFailed extends SqsDelayError {
  /**
   * @param code SQS's error code, e.g. `InvalidMessageContents`.
   * @param transient Whether the same send may succeed later.
   */
  constructor(
    text: string,
    readonly code: string,
    readonly transient: boolean,
    options?: ErrorOptions,
  ) {
    super(text, options);
  }
}
