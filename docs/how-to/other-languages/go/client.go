package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
)

// follow carries out one command about the saga whose id is the first argument.
func follow(sagas client.Client, command string, arguments []string) error {
	ctx, id := context.Background(), arguments[0]
	switch command {
	case "start": // ID BOOKING
		var booking Booking
		if err := json.Unmarshal([]byte(arguments[1]), &booking); err != nil {
			return err
		}
		return start(ctx, sagas, id, booking)
	case "approve": // ID APPROVAL
		var approval Approval
		if err := json.Unmarshal([]byte(arguments[1]), &approval); err != nil {
			return err
		}
		return sagas.SignalWorkflow(ctx, id, "", "approval", approval)
	case "cancel": // ID REASON
		return cancel(ctx, sagas, id, arguments[1])
	case "wait": // ID
		return wait(ctx, sagas, id)
	}
	return fmt.Errorf("the command is start, approve, cancel or wait, not %s", command)
}

// start starts the saga, unless its id was used before, whatever became of that saga.
func start(ctx context.Context, sagas client.Client, id string, booking Booking) error {
	_, err := sagas.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                                       id,
		TaskQueue:                                os.Getenv("SAGA_TASK_QUEUE"),
		WorkflowIDReusePolicy:                    enums.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		WorkflowIDConflictPolicy:                 enums.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
	}, "booking", booking)
	var already *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &already) {
		printLine(map[string]string{"already_started": id})
		return nil
	}
	if err == nil {
		printLine(map[string]string{"started": id})
	}
	return err
}

// cancel asks the saga to undo what it did. The answer is "accepted", "recorded" or why it is too late.
func cancel(ctx context.Context, sagas client.Client, id string, reason string) error {
	handle, err := sagas.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID:   id,
		UpdateName:   "cancel",
		WaitForStage: client.WorkflowUpdateStageCompleted,
		Args:         []any{map[string]string{"reason": reason, "who": "the Go client"}},
	})
	if err != nil {
		return err
	}
	var answer string
	if err := handle.Get(ctx, &answer); err != nil {
		return err
	}
	printLine(map[string]string{"cancel": answer})
	return nil
}

// wait waits for the end of the saga, and reads its typed output, or its typed failure.
func wait(ctx context.Context, sagas client.Client, id string) error {
	var output Output
	err := sagas.GetWorkflow(ctx, id, "").Get(ctx, &output)
	if err == nil {
		printLine(map[string]any{"completed": output})
		return nil
	}
	var failure *temporal.ApplicationError
	if !errors.As(err, &failure) {
		return err // it was terminated, or the server cannot be reached
	}
	seen := map[string]any{"failed": failure.Type(), "message": failure.Message()}
	if failure.HasDetails() { // SagaCompensated or SagaResidue; SagaRefused has none, and nothing was run
		var story Story
		if err := failure.Details(&story); err != nil {
			return err
		}
		seen["story"] = story
	}
	printLine(seen)
	return nil
}
