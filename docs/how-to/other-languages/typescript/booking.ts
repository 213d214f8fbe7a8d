/** What worker and client exchange with the saga. Numbers are LosslessNumber, so that no digit is lost. */

import type { LosslessNumber } from 'lossless-json';
import { write } from './exact-json';

/** The input of the saga; its fields are arguments and result of seats.hold. */
export interface Booking {
  flight: string;
  price: LosslessNumber; // the digits of 12.10
  invoice: LosslessNumber; // whole above 2^53; BigInt(invoice.value) computes with it
  seats: string[];
  voucher: string | null; // null is written; a property that is undefined is left out
}

/** The data of the signal that the saga waits for. */
export interface Approval {
  approved: boolean;
  limit: LosslessNumber;
}

/** The result of a completed saga. */
export interface Output {
  held: Booking;
  approval: Approval;
}

/** The reason of a rejection by seats.hold. */
export interface RefusalDetail {
  code: string;
  price: LosslessNumber;
  invoice: LosslessNumber;
  seats: string[];
  voucher: string | null;
}

/** The fields of `saga show` that this client reads. A failed saga has it as its first detail. */
export interface Story {
  state: string;
  reason: { kind: string; step: string | null; message: string; details?: RefusalDetail };
}

/** Print one line of JSON. */
export function printLine(value: unknown): void {
  process.stdout.write(write(value) + '\n');
}
