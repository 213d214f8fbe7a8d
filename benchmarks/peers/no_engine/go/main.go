// The saga in Go without an engine: goroutines, a pool of connections, and a barrier row in each transaction.
// It speaks the lines of benchmarks/peers/program.py. Its argument is the URL of the database.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connections = 20
	barrier     = "insert into hand_barrier (key, op, result) values ($1, $2, '1') on conflict do nothing"
	change      = "update account set balance = balance - $1 where id = $2"
)

var errRejected = errors.New("no such account, or not enough on it")

type call struct {
	key, account string
	amount       int64
}

type job struct {
	Run         string  `json:"run"`
	Concurrency int     `json:"concurrency"`
	Payments    [][]any `json:"payments"`
}

type answer struct {
	Seconds   float64   `json:"seconds"`
	Latencies []float64 `json:"latencies"`
	Succeeded []bool    `json:"succeeded"`
}

func main() {
	config, err := pgxpool.ParseConfig(os.Args[1])
	check(err)
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	check(err)
	fmt.Println("ready")
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var todo job
		check(json.Unmarshal(line, &todo))
		told, err := json.Marshal(runJob(pool, todo))
		check(err)
		fmt.Println(string(told))
	}
}

func runJob(pool *pgxpool.Pool, todo job) answer {
	count := len(todo.Payments)
	done := answer{Latencies: make([]float64, count), Succeeded: make([]bool, count)}
	var next atomic.Int64
	var group sync.WaitGroup
	begin := time.Now()
	for range todo.Concurrency {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				number := int(next.Add(1)) - 1
				if number >= count {
					return
				}
				started := time.Now()
				done.Succeeded[number] = runSaga(pool, fmt.Sprintf("%s-%d", todo.Run, number), todo.Payments[number])
				done.Latencies[number] = time.Since(started).Seconds()
			}
		}()
	}
	group.Wait()
	done.Seconds = time.Since(begin).Seconds()
	return done
}

// runSaga takes from the accounts in three steps; false if one is not possible, and those before it are undone.
func runSaga(pool *pgxpool.Pool, id string, payment []any) bool {
	account, amount := payment[0].(string), int64(payment[1].(float64))
	second, excess := payment[2].(string), int64(payment[3].(float64))
	steps := []call{
		{id + "/0", account, amount},
		{id + "/1", second, amount + excess},
		{id + "/2", account, amount},
	}
	for number, step := range steps {
		err := perform(pool, step.key, "do", step.account, step.amount)
		if err == nil {
			continue
		}
		if !errors.Is(err, errRejected) {
			log.Fatal(err)
		}
		for back := number - 1; back >= 0; back-- {
			check(perform(pool, steps[back].key, "undo", steps[back].account, -steps[back].amount))
		}
		return false
	}
	return true
}

func perform(pool *pgxpool.Pool, key, op, account string, amount int64) error {
	ctx := context.Background()
	err := pgx.BeginFunc(ctx, pool, func(transaction pgx.Tx) error {
		inserted, err := transaction.Exec(ctx, barrier, key, op)
		if err != nil || inserted.RowsAffected() == 0 {
			return err
		}
		changed, err := transaction.Exec(ctx, change, amount, account)
		if err == nil && changed.RowsAffected() == 0 {
			return errRejected
		}
		return err
	})
	var violation *pgconn.PgError
	if errors.As(err, &violation) && violation.Code == "23514" {
		return errRejected
	}
	return err
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
