package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
)

// Call is in the one argument of each activity, in addition to `with`.
type Call struct {
	Saga struct {
		Key        string `json:"key"`         // identifies this operation; each attempt has the same
		ForwardKey string `json:"forward_key"` // the key of what a probe or an undo is about
	} `json:"_saga"`
}

// HoldCall has the arguments of seats.hold, too.
type HoldCall struct {
	Booking
	Call
}

// Seats keeps what was done under which key. In production these are rows, written in the transaction of the effect.
type Seats struct {
	mutex    sync.Mutex
	held     map[string]Booking // the answer to a repeated request
	refused  map[string]bool    // keys without an effect, for good
	released map[string]bool    // undos that were carried out
}

// Hold holds the seats once per key, and never for a key that was undone or sealed.
func (s *Seats) Hold(ctx context.Context, request HoldCall) (*Booking, error) {
	if request.Flight == "SLOW" {
		time.Sleep(10 * time.Second) // an effect that comes after the timeout of its attempt
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.refused[request.Saga.Key] {
		note("hold", request, "late")
		return nil, temporal.NewNonRetryableApplicationError("the seats were released", "AlreadyCompensated", nil)
	}
	if request.Flight == "FULL" {
		note("hold", request, "rejected")
		return nil, rejected(ctx, "the flight is sold out", RefusalDetail{
			"sold-out", request.Price, request.Invoice, request.Seats, request.Voucher,
		})
	}
	if _, repeated := s.held[request.Saga.Key]; !repeated {
		s.held[request.Saga.Key] = request.Booking
	}
	note("hold", request, "held")
	if request.Flight == "LOST" {
		return nil, errors.New("the answer is lost") // the effect is there, and the engine cannot know
	}
	answer := s.held[request.Saga.Key]
	return &answer, nil
}

// Release gives the seats back, if they were held, and refuses each later attempt to hold them.
func (s *Seats) Release(_ context.Context, request Call) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.refused[request.Saga.ForwardKey] = true
	if !s.released[request.Saga.Key] {
		s.released[request.Saga.Key] = true
		delete(s.held, request.Saga.ForwardKey)
	}
	note("release", request, "released")
	return nil
}

// Answer is what a probe returns.
type Answer struct {
	Probe  string   `json:"probe"`
	Result *Booking `json:"result,omitempty"`
}

// Find says whether the seats are held. If not, it refuses the key, so that "absent" stays true.
func (s *Seats) Find(_ context.Context, request Call) (Answer, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if held, there := s.held[request.Saga.ForwardKey]; there {
		note("find", request, "done")
		return Answer{"done", &held}, nil
	}
	s.refused[request.Saga.ForwardKey] = true
	note("find", request, "absent")
	return Answer{Probe: "absent"}, nil
}

// rejected is a definite no: with the number of the attempt the engine knows that no earlier one is under way.
func rejected(ctx context.Context, message string, details any) error {
	detail := map[string]any{"attempt": activity.GetInfo(ctx).Attempt, "details": details}
	return temporal.NewNonRetryableApplicationError(message, "Rejected", nil, detail)
}

// note prints a request as it was read, and the answer.
func note(operation string, request any, answer string) {
	printLine(map[string]any{"operation": operation, "request": request, "answer": answer})
}

func serve(temporal client.Client, taskQueue string) error {
	seats := &Seats{held: map[string]Booking{}, refused: map[string]bool{}, released: map[string]bool{}}
	served := worker.New(temporal, taskQueue, worker.Options{})
	served.RegisterActivityWithOptions(seats.Hold, activity.RegisterOptions{Name: "seats.hold"})
	served.RegisterActivityWithOptions(seats.Release, activity.RegisterOptions{Name: "seats.release"})
	served.RegisterActivityWithOptions(seats.Find, activity.RegisterOptions{Name: "seats.find"})
	return served.Run(worker.InterruptCh()) // until SIGINT or SIGTERM
}
