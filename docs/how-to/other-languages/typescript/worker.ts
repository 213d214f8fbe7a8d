/** `node build/worker.js TASK_QUEUE` serves the steps of the saga `booking`. */

import { activityInfo } from '@temporalio/activity';
import { ApplicationFailure } from '@temporalio/common';
import { NativeConnection, Worker } from '@temporalio/worker';
import { type Booking, type RefusalDetail, printLine } from './booking';

/** In the one argument of each activity, in addition to `with`. */
interface Call {
  _saga: {
    key: string; // identifies this operation; each attempt has the same
    forward_key: string; // the key of what a probe or an undo is about
  };
}

type Answer = { probe: 'done'; result: Booking } | { probe: 'absent' };

// What was done under which key. In production these are rows, written in the transaction of the effect.
const held = new Map<string, Booking>(); // the answer to a repeated request
const refused = new Set<string>(); // keys without an effect, for good
const released = new Set<string>(); // undos that were carried out

/** Hold the seats once per key, and never for a key that was undone or sealed. */
async function hold(request: Booking & Call): Promise<Booking> {
  if (request.flight === 'SLOW') {
    await new Promise((resolve) => setTimeout(resolve, 10_000)); // an effect after the timeout of its attempt
  }
  const { _saga, ...booking } = request;
  if (refused.has(_saga.key)) {
    note('hold', request, 'late');
    throw ApplicationFailure.nonRetryable('the seats were released', 'AlreadyCompensated');
  }
  if (request.flight === 'FULL') {
    note('hold', request, 'rejected');
    const { price, invoice, seats, voucher } = request;
    throw rejected('the flight is sold out', { code: 'sold-out', price, invoice, seats, voucher });
  }
  const answer = held.get(_saga.key) ?? booking;
  held.set(_saga.key, answer);
  note('hold', request, 'held');
  if (request.flight === 'LOST') {
    throw new Error('the answer is lost'); // the effect is there, and the engine cannot know
  }
  return answer;
}

/** Give the seats back, if they were held, and refuse each later attempt to hold them. */
async function release(request: Call): Promise<void> {
  refused.add(request._saga.forward_key);
  if (!released.has(request._saga.key)) {
    released.add(request._saga.key);
    held.delete(request._saga.forward_key);
  }
  note('release', request, 'released');
}

/** Say whether the seats are held. If not, refuse the key, so that "absent" stays true. */
async function find(request: Call): Promise<Answer> {
  const result = held.get(request._saga.forward_key);
  if (result !== undefined) {
    note('find', request, 'done');
    return { probe: 'done', result };
  }
  refused.add(request._saga.forward_key);
  note('find', request, 'absent');
  return { probe: 'absent' };
}

/** A definite no: with the number of the attempt the engine knows that no earlier one is under way. */
function rejected(message: string, details: RefusalDetail): ApplicationFailure {
  return ApplicationFailure.nonRetryable(message, 'Rejected', { attempt: activityInfo().attempt, details });
}

/** Print a request as it was read, and the answer. */
function note(operation: string, request: Call, answer: string): void {
  printLine({ operation, request, answer });
}

async function serve(taskQueue: string): Promise<void> {
  const connection = await NativeConnection.connect({ address: process.env.TEMPORAL_ADDRESS });
  const worker = await Worker.create({
    connection,
    taskQueue,
    activities: { 'seats.hold': hold, 'seats.release': release, 'seats.find': find },
    dataConverter: { payloadConverterPath: require.resolve('./exact-json') },
  });
  await worker.run(); // until SIGINT or SIGTERM
}

serve(process.argv[2]).catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
