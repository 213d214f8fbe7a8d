import io.temporal.api.enums.v1.WorkflowIdConflictPolicy;
import io.temporal.api.enums.v1.WorkflowIdReusePolicy;
import io.temporal.client.WorkflowClient;
import io.temporal.client.WorkflowExecutionAlreadyStarted;
import io.temporal.client.WorkflowFailedException;
import io.temporal.client.WorkflowOptions;
import io.temporal.client.WorkflowStub;
import io.temporal.failure.ApplicationFailure;
import java.util.LinkedHashMap;
import java.util.Map;

/** "java … BookingClient start ID BOOKING | approve ID APPROVAL | cancel ID REASON | wait ID" */
public class BookingClient {

  /** Starts the saga, unless its id was used before, whatever became of that saga. */
  static void start(WorkflowClient sagas, String id, Booking booking) {
    WorkflowOptions options =
        WorkflowOptions.newBuilder()
            .setWorkflowId(id)
            .setTaskQueue(System.getenv("SAGA_TASK_QUEUE"))
            .setWorkflowIdReusePolicy(WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE)
            .setWorkflowIdConflictPolicy(WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL)
            .build();
    try {
      sagas.newUntypedWorkflowStub("booking", options).start(booking);
      Booking.printLine(Map.of("started", id));
    } catch (WorkflowExecutionAlreadyStarted already) {
      Booking.printLine(Map.of("already_started", id));
    }
  }

  /** Waits for the end of the saga, and reads its typed output, or its typed failure. */
  static void waitForEnd(WorkflowStub saga) {
    try {
      Booking.printLine(Map.of("completed", saga.getResult(Booking.Output.class)));
    } catch (WorkflowFailedException error) {
      if (!(error.getCause() instanceof ApplicationFailure failure)) {
        throw error; // it was terminated
      }
      Map<String, Object> seen = new LinkedHashMap<>();
      seen.put("failed", failure.getType());
      seen.put("message", failure.getOriginalMessage());
      if (failure.getDetails().getSize() > 0) { // SagaCompensated or SagaResidue; SagaRefused has none
        seen.put("story", failure.getDetails().get(Booking.Story.class));
      }
      Booking.printLine(seen);
    }
  }

  public static void main(String[] arguments) throws Exception {
    WorkflowClient sagas = Booking.connect();
    String command = arguments[0], id = arguments[1];
    WorkflowStub saga = sagas.newUntypedWorkflowStub(id);
    switch (command) {
      case "start" -> start(sagas, id, Booking.read(arguments[2], Booking.class));
      case "approve" -> saga.signal("approval", Booking.read(arguments[2], Booking.Approval.class));
      case "cancel" -> { // the answer is "accepted", "recorded" or why it is too late
        Map<String, String> request = Map.of("reason", arguments[2], "who", "the Java client");
        Booking.printLine(Map.of("cancel", saga.update("cancel", String.class, request)));
      }
      case "wait" -> waitForEnd(saga);
      default -> throw new IllegalArgumentException(
          "the command is start, approve, cancel or wait, not " + command);
    }
    sagas.getWorkflowServiceStubs().shutdown();
  }
}
