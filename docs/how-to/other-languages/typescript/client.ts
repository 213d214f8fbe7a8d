/** `node build/client.js start ID BOOKING | approve ID APPROVAL | cancel ID REASON | wait ID` */

import {
  Client,
  Connection,
  WorkflowExecutionAlreadyStartedError,
  WorkflowFailedError,
} from '@temporalio/client';
import { ApplicationFailure, WorkflowIdConflictPolicy, WorkflowIdReusePolicy } from '@temporalio/common';
import { type Approval, type Booking, type Output, type Story, printLine } from './booking';
import { read } from './exact-json';

/** Start the saga, unless its id was used before, whatever became of that saga. */
async function start(sagas: Client, id: string, booking: Booking): Promise<void> {
  try {
    await sagas.workflow.start('booking', {
      workflowId: id,
      taskQueue: process.env.SAGA_TASK_QUEUE ?? 'sagas',
      args: [booking],
      workflowIdReusePolicy: WorkflowIdReusePolicy.REJECT_DUPLICATE,
      workflowIdConflictPolicy: WorkflowIdConflictPolicy.FAIL,
    });
    printLine({ started: id });
  } catch (error) {
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) {
      throw error;
    }
    printLine({ already_started: id });
  }
}

/** Wait for the end of the saga, and read its typed output, or its typed failure. */
async function wait(sagas: Client, id: string): Promise<void> {
  try {
    const output = (await sagas.workflow.getHandle(id).result()) as Output;
    printLine({ completed: output });
  } catch (error) {
    const failure = error instanceof WorkflowFailedError ? error.cause : undefined;
    if (!(failure instanceof ApplicationFailure)) {
      throw error; // it was terminated, or the server cannot be reached
    }
    // SagaCompensated or SagaResidue; SagaRefused has no details, and nothing was run
    const story = failure.details?.[0] as Story | undefined;
    printLine({ failed: failure.type, message: failure.message, story });
  }
}

async function follow(command: string, id: string, argument: string): Promise<void> {
  const connection = await Connection.connect({ address: process.env.TEMPORAL_ADDRESS });
  const sagas = new Client({ connection, dataConverter: { payloadConverterPath: require.resolve('./exact-json') } });
  const saga = sagas.workflow.getHandle(id);
  switch (command) {
    case 'start':
      await start(sagas, id, read<Booking>(argument));
      break;
    case 'approve':
      await saga.signal('approval', read<Approval>(argument));
      break;
    case 'cancel': // the answer is "accepted", "recorded" or why it is too late
      printLine({
        cancel: await saga.executeUpdate<string, [object]>('cancel', {
          args: [{ reason: argument, who: 'the TypeScript client' }],
        }),
      });
      break;
    case 'wait':
      await wait(sagas, id);
      break;
    default:
      throw new Error(`the command is start, approve, cancel or wait, not ${command}`);
  }
  await connection.close();
}

const [command, id, argument] = process.argv.slice(2);
follow(command, id, argument).catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
