// The saga booking in Go: "booking worker" serves its steps, the other commands start a saga and follow it.
package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
)

// Booking is the input of the saga, and its fields are arguments and result of seats.hold.
type Booking struct {
	Flight  string      `json:"flight"`
	Price   json.Number `json:"price"`   // the digits of 12.10; a float64 has another value
	Invoice int64       `json:"invoice"` // whole above 2^53, where a float64 has gaps
	Seats   []string    `json:"seats"`   // an empty list must be made: a nil slice is written as null
	Voucher *string     `json:"voucher"` // nil is null
}

// Approval is the data of the signal that the saga waits for.
type Approval struct {
	Approved bool        `json:"approved"`
	Limit    json.Number `json:"limit"`
}

// Output is the result of a completed saga.
type Output struct {
	Held     Booking  `json:"held"`
	Approval Approval `json:"approval"`
}

// Story has the fields of "saga show" that this client reads. A failed saga has it as its first detail.
type Story struct {
	State  string `json:"state"`
	Reason struct {
		Kind    string         `json:"kind"` // rejected, cancelled, late, …
		Step    *string        `json:"step"`
		Message string         `json:"message"`
		Details *RefusalDetail `json:"details"`
	} `json:"reason"`
}

// RefusalDetail says why seats.hold was rejected.
type RefusalDetail struct {
	Code    string      `json:"code"`
	Price   json.Number `json:"price"`
	Invoice int64       `json:"invoice"`
	Seats   []string    `json:"seats"`
	Voucher *string     `json:"voucher"`
}

func main() {
	temporal, err := client.Dial(client.Options{
		HostPort: os.Getenv("TEMPORAL_ADDRESS"),
		Logger:   log.NewStructuredLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
	})
	check(err)
	defer temporal.Close()
	if os.Args[1] == "worker" {
		check(serve(temporal, os.Args[2]))
	} else {
		check(follow(temporal, os.Args[1], os.Args[2:]))
	}
}

var output sync.Mutex

// printLine prints one line of JSON.
func printLine(value any) {
	line, err := json.Marshal(value)
	check(err)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
