/** What is asked of the machine's clock, in milliseconds. */
export interface Clock {
  /** Wall clock, epoch milliseconds; may be wrong and may jump. */
  now(): number;
  /** Since some fixed instant; never jumps back. */
  monotonic(): number;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
};

const PROOF_LIFETIME_MS = 300_000;
const APART_TOLERANCE_MS = 500;
/** How much faster than true time a monotonic clock may run: as far as NTP may steer one. */
const MAX_DRIFT_RATE = 500e-6;
const PROOFS_KEPT = 64;

interface Proof {
  readonly brokerMs: number;
  readonly takenAt: number;
  readonly wallMs: number;
}

/**
 * The broker's now, never ahead of it, learned from the `Date` of its answers.
 *
 * What has passed since an answer the monotonic clock tells, less what it may run fast; so a message is
 * never early, and a wall clock that is wrong plays no part.
 */
export class BrokerClock {
  readonly #local: Clock;
  #proofs: Proof[] = [];

  constructor(local: Clock) {
    this.#local = local;
  }

  /** Record that the broker's clock read at least `brokerMs`, just now. */
  observe(brokerMs: number): void {
    const proof = { brokerMs, takenAt: this.#local.monotonic(), wallMs: this.#local.now() };
    this.#proofs = [...this.#proofs.slice(1 - PROOFS_KEPT), proof];
  }

  /** Whether an answer of the last five minutes tells the broker's time. */
  get synchronised(): boolean {
    return this.#now() !== undefined;
  }

  /** Epoch milliseconds; the bare local clock while nothing is learned. */
  now(): number {
    return this.#now() ?? this.#local.now();
  }

  #now(): number | undefined {
    const mono = this.#local.monotonic();
    const wall = this.#local.now();
    // A proof is dropped when the clocks have run apart: one was stepped, or the process stood still.
    this.#proofs = this.#proofs.filter(({ takenAt, wallMs }) => {
      const passed = mono - takenAt;
      return passed <= PROOF_LIFETIME_MS && Math.abs(wall - wallMs - passed) <= APART_TOLERANCE_MS;
    });
    if (this.#proofs.length === 0) return undefined;
    const told = this.#proofs.map((p) => p.brokerMs + (mono - p.takenAt) * (1 - MAX_DRIFT_RATE));
    return Math.floor(Math.max(...told));
  }
}
