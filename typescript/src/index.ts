export type { Clock } from "./clock.js";
export * from "./errors.js";
export type { AttributeInput, Message, SendOptions } from "./message.js";
export { DelaySender, type Route, type SenderSettings, type SendResult } from "./sender.js";
